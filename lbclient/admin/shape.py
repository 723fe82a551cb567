"""The JSON schema of `/lbz.json`, which the page and `lbclient inspect` rely on.

Fields may be added in any release, so readers ignore what they do not know. Whatever
else changes raises `VERSION`, and readers refuse a version that is not theirs.
docs/admin.md says what each field means. Times in seconds, rates per second; None is
what is not known.
"""

from collections.abc import Mapping
from typing import Any

VERSION = 1  # of the answer in JSON, see above

TEXT, NUMBER, MAYBE = "text", "number", "number or null"
COUNTS = "numbers by name"

SETTING = {"name": TEXT, "value": TEXT, "source": TEXT}

EJECTION = {"method": TEXT, "why": TEXT, "age": NUMBER, "next_trial": MAYBE}

BACKEND = {
    "address": TEXT,
    "task": MAYBE,
    "zone": TEXT,
    "priority": NUMBER,
    "why": TEXT,
    "state": TEXT,
    "reason": TEXT,
    "state_age": NUMBER,
    "health_refused": TEXT,
    "last_error": TEXT,
    "last_error_age": MAYBE,
    "weight": NUMBER,
    "utilization": MAYBE,
    "qps": MAYBE,
    "eps": MAYBE,
    "active": MAYBE,
    "report_age": MAYBE,
    "in_flight": NUMBER,
    "started": NUMBER,
    "served": NUMBER,
    "rejected": NUMBER,
    "failed": NUMBER,
    "abandoned": NUMBER,
    "declined": NUMBER,
    "recent_errors": NUMBER,
    "first_message": MAYBE,
    "relative_cost": MAYBE,
    "cost_rise": MAYBE,
    "is_slowed": NUMBER,
    "own_cost_rise": MAYBE,
    "ejected": [EJECTION],
    "p50": MAYBE,
    "p99": MAYBE,
}

ZONE = {
    "zone": TEXT,
    "priority": NUMBER,
    "backends": NUMBER,
    "ready": NUMBER,
    "utilization": MAYBE,
    "limit": MAYBE,
    "share": NUMBER,
    "in_flight": NUMBER,
}

THROTTLE = {
    "criticality": TEXT,
    "probability": NUMBER,
    "accepted": NUMBER,
    "refused_there": NUMBER,
    "refused_here": NUMBER,
}

RESOLVER = {
    "name": TEXT,
    "endpoints": NUMBER,
    "updates": NUMBER,
    "age": MAYBE,
    "error": TEXT,
}

CHANNEL = {
    "number": NUMBER,
    "name": TEXT,
    "target": TEXT,
    "state": TEXT,
    "picker": TEXT,
    "rule": TEXT,
    "subset": TEXT,
    "subset_size": NUMBER,
    "replacements": NUMBER,
    "draining": NUMBER,
    "ejected": NUMBER,
    "ejections": NUMBER,
    "zones": [ZONE],
    "spilled": NUMBER,
    "calls": COUNTS,
    "attempts": COUNTS,
    "in_flight": NUMBER,
    "waiting": NUMBER,
    "waited": NUMBER,
    "waited_seconds": NUMBER,
    "loop_stall_seconds": NUMBER,
    "p50": MAYBE,
    "p99": MAYBE,
    "resends": NUMBER,
    "retries": NUMBER,
    "retries_left": NUMBER,
    "hedges": NUMBER,
    "hedges_won": NUMBER,
    "hedges_withheld": COUNTS,
    "sent_attempts": COUNTS,
    "refused_attempts": COUNTS,
    "throttled": NUMBER,
    "throttle": [THROTTLE],
    "refused": COUNTS,
    "resolver": RESOLVER,
    "task_failures": NUMBER,
    "backends": [BACKEND],
    "backends_left_out": NUMBER,
    "picks": [{"age": NUMBER, "backend": TEXT, "because": TEXT}],
    "events": [{"age": NUMBER, "about": TEXT, "what": TEXT, "why": TEXT}],
    "config": [SETTING],
}

SIGNAL = {"name": TEXT, "value": NUMBER, "target": MAYBE}

UDP = {
    "port": NUMBER,
    "answered": NUMBER,
    "malformed": NUMBER,
    "forged": NUMBER,
    "limited": NUMBER,
    "pushed": NUMBER,
}

ATTEMPTS = {
    "requests": COUNTS,
    "recent": COUNTS,
    "others_refuse": NUMBER,
    "granted": NUMBER,
    "withheld": NUMBER,
}

CONTENTION = {
    "waiting": MAYBE,
    "throttled": MAYBE,
    "stolen": MAYBE,
    "loop": NUMBER,
    "lag": NUMBER,
}

COST = {
    "relative": MAYBE,
    "rise": MAYBE,
    "is_slowed": NUMBER,
    "clients": NUMBER,
}

SERVER = {
    "number": NUMBER,
    "worker_number": MAYBE,
    "pid": MAYBE,
    "ports": [TEXT],
    "services": [TEXT],
    "state": TEXT,
    "utilization": NUMBER,
    "contention": CONTENTION,
    "cost": COST,
    "load": NUMBER,
    "qps": NUMBER,
    "eps": NUMBER,
    "active": NUMBER,
    "p50": MAYBE,
    "p99": MAYBE,
    "requests": COUNTS,
    "watchers": NUMBER,
    "signals": [SIGNAL],
    "signal_failures": NUMBER,
    "task_failures": NUMBER,
    "admitted": COUNTS,
    "refused": [{"reason": TEXT, "criticality": TEXT, "requests": NUMBER}],
    "declined": NUMBER,
    "attempts": ATTEMPTS,
    "misread": COUNTS,
    "usage": [{"customer": TEXT, "cpu": NUMBER}],
    "usage_left_out": NUMBER,
    "udp": UDP,
    "config": [SETTING],
}

PROCESS = {
    "version": NUMBER,
    "lbclient": TEXT,
    "grpcio": TEXT,
    "python": TEXT,
    "program": TEXT,
    "host": TEXT,
    "pid": NUMBER,
    "time": NUMBER,
    "clock": NUMBER,
    "disabled": MAYBE,
    "channels": [CHANNEL],
    "channels_left_out": NUMBER,
    "servers": [SERVER],
    "servers_left_out": NUMBER,
    "unused_tables": [TEXT],
    "untold": [{"kind": TEXT, "number": NUMBER, "name": TEXT, "error": TEXT}],
}

MOST = 1e16  # no count or time of ours is beyond it, nor can it be shown as a date

Shape = Any  # a word of the first lines, a list with the shape of its items, a dict


def filled(value: Any, shape: Shape = PROCESS) -> Any:
    """The same with 0 for numbers that an older release does not count.

    >>> filled([{"served": 1}], [{"served": NUMBER, "declined": NUMBER, "name": TEXT}])
    [{'served': 1, 'declined': 0}]
    """
    if isinstance(shape, Mapping) and isinstance(value, Mapping):
        known = {name: filled(value[name], shape.get(name, TEXT)) for name in value}
        return {name: 0 for name, one in shape.items() if one == NUMBER} | known
    if isinstance(shape, list) and isinstance(value, list):
        return [filled(one, shape[0]) for one in value]
    return value


def flaw(value: Any, shape: Shape = PROCESS, path: str = "") -> str:
    """What is wrong with a value that should have this shape; "": nothing.

    >>> flaw({"name": "seed", "value": 7}, SETTING)
    'value is not text'
    >>> flaw([], TEXT, path="x"), flaw(None, MAYBE), flaw({"a": 1}, COUNTS)
    ('x is not text', '', '')
    """
    if isinstance(shape, Mapping):
        if not isinstance(value, Mapping):
            return f"{path or 'it'} is no record"
        parts = [  # what is missing is no null
            (value.get(name, ...), one, f"{path}.{name}") for name, one in shape.items()
        ]
    elif isinstance(shape, list):
        if not isinstance(value, list | tuple):
            return f"{path} is no list"
        parts = [(one, shape[0], f"{path}[{at}]") for at, one in enumerate(value)]
    elif shape == COUNTS:
        if not isinstance(value, Mapping):
            return f"{path} is no record"
        parts = [(one, NUMBER, f"{path}.{name}") for name, one in value.items()]
    else:
        return "" if _is(value, shape) else f"{path.strip('.')} is not {shape}"
    return next(filter(None, (flaw(*part) for part in parts)), "")


def _is(value: Any, shape: str) -> bool:
    if shape == TEXT:
        return isinstance(value, str)
    if value is None:
        return shape == MAYBE
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and -MOST < value < MOST
