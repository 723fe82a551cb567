"""Builds `/lbz.json`, whose schema is `shape`, from `statistics()`.

All of it is bounded: how many there are of each, and how long a text may be. A channel
or server that raises meanwhile, as code of its user's may, is told of by its error; the
others are told of as ever.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import cleandoc
from math import isfinite
from platform import python_version
from typing import TYPE_CHECKING, Any

import grpc

import lbclient
from lbclient.admin import shape
from lbclient.client.kinds import is_channel
from lbclient.config import ChannelConfig, ServerConfig, is_disabled, settings
from lbclient.core.errors import ConfigError
from lbclient.core.model import TaskState
from lbclient.core.statistics.events import Events
from lbclient.core.statistics.recent import Recent
from lbclient.core.statistics.records import MOST_ZONES
from lbclient.core.statistics.registry import CHANNELS, SERVERS
from lbclient.core.text import brief, printable
from lbclient.log import Log
from lbclient.server.kinds import is_server
from lbclient.server.workers.membership import membership

if TYPE_CHECKING:
    from lbclient.client.channel import Channel
    from lbclient.server import Server, SyncServer

# Ours: what a page shows of one process, so that it takes no megabytes.
MOST_CHANNELS = 100
MOST_SERVERS = 20
MOST_BACKENDS = 1000  # of all channels together; half a megabyte
MOST_CUSTOMERS = 100  # of a server, those that use most
MOST_TABLES = 20  # of the settings file, of which no channel is open
MOST_EJECTIONS = 5  # of a backend; who fails more fails for one cause, most likely
LONGEST = 400  # characters: a peer's text of 300, and our words around it

logger = Log(__name__)


def program() -> str:
    return str(plain(os.path.basename(sys.argv[0]) or sys.executable))


def snapshot() -> dict[str, Any]:
    """Looking starts recording: picks and latencies are kept for a minute."""
    channels = [(n, one) for n, one in CHANNELS.present() if is_channel(one)]
    servers = [(number, one) for number, one in SERVERS.present() if is_server(one)]
    told: dict[str, list[dict[str, Any]]] = {"channels": [], "servers": []}
    untold: list[dict[str, Any]] = []
    room = MOST_BACKENDS
    for number, channel in channels[:MOST_CHANNELS]:
        with or_why_not(untold, "channel", number, channel._label()):
            told["channels"].append(of_channel(number, channel, room))
            room -= len(told["channels"][-1]["backends"])
    for number, server in servers[:MOST_SERVERS]:
        with or_why_not(untold, "server", number, ", ".join(server._ports)):
            told["servers"].append(of_server(number, server))
    return {
        "version": shape.VERSION,
        "lbclient": lbclient.__version__,
        "grpcio": grpc.__version__,
        "python": python_version(),
        "program": program(),
        "host": plain(socket.gethostname()),
        "pid": os.getpid(),
        "time": time.time(),
        "clock": time.monotonic(),
        "disabled": of_kill_switch(),
        **told,
        "channels_left_out": max(0, len(channels) - MOST_CHANNELS),
        "servers_left_out": max(0, len(servers) - MOST_SERVERS),
        "unused_tables": unused_tables(one._config for _, one in channels),
        "untold": untold,
    }


def unused_tables(configs: Iterable[ChannelConfig]) -> list[str]:
    """Tables of the settings file for single channels, of which none is open."""
    is_used: dict[str, bool] = {}
    for config in configs:
        for table, is_own in config.tables().items():
            is_used[table] = is_used.get(table, False) or is_own
    unused = [plain(table) for table, used in is_used.items() if not used]
    return unused[:MOST_TABLES]


def of_kill_switch() -> int:
    try:
        return int(is_disabled())
    except ConfigError:  # a word that says neither, with which nothing can be made
        return 0


@contextmanager
def or_why_not(
    untold: list[dict[str, Any]], kind: str, number: int, name: str
) -> Iterator[None]:
    """Enters what cannot be described, with its error, instead of raising it."""
    try:
        yield
    except Exception as error:
        channel = name if kind == "channel" else ""
        words = "%s %s could not be described"
        logger.exception(words, kind, name, channel=channel, reason=error)
        # What code of the user's says may hold anything.
        words = f"{type(error).__name__}: the log says more"
        why_not = {"kind": kind, "number": number, "name": plain(name)}
        untold.append(why_not | {"error": plain(words)})


def of_channel(number: int, channel: Channel, room: int) -> dict[str, Any]:
    seen, balancer = channel.statistics(), channel._balancer
    now, recent = channel._clock(), channel._keep_picks()
    events, resolver, rule = Events(), "", ""
    if balancer is not None:
        events = balancer.backends.events
        resolver = repr(balancer.backends.discovery.resolver).strip("<>")
        rule = rule_of(type(balancer.pickers.inner()))
    backends = [of_backend(each, recent, now) for each in seen.backends[:room]]
    return {
        **told_of(seen, shape.CHANNEL),
        **quantiles(recent, now),
        "number": number,
        "rule": plain(rule),
        "zones": [told_of(each, shape.ZONE) for each in seen.zones[:MOST_ZONES]],
        "throttle": [told_of(each, shape.THROTTLE) for each in seen.throttle],
        "refused": seen.refused,
        "resolver": {
            **told_of(seen.resolver, shape.RESOLVER),
            "name": plain(resolver),
        },
        "backends": backends,
        "backends_left_out": len(seen.backends) - len(backends),
        "picks": [
            {"age": now - pick.at, "backend": pick.backend, "because": pick.because}
            for pick in reversed(list(recent.picks))
        ],
        "events": [
            {
                "age": now - event.at,
                "about": plain(event.about),
                "what": plain(event.what),
                "why": plain(event.why),
            }
            for event in events.newest_first()
        ],
        "config": of_config(channel._config),
    }


def rule_of(picker: type) -> str:
    """What a picker goes by: its class attribute `rule`, or the first line of its
    docstring. A class that has neither is as the one that it inherits from.
    """
    for each in picker.__mro__[:-1]:  # without `object`
        own = vars(each)
        for said in (own.get("rule"), own.get("__doc__")):
            if isinstance(said, str) and said:
                return cleandoc(said).partition("\n")[0]
    return ""


def of_backend(seen: Any, recent: Recent, now: float) -> dict[str, Any]:
    p50, p99 = recent.of(seen.address).quantiles(now, 0.5, 0.99)
    ejected = [told_of(one, shape.EJECTION) for one in seen.ejected[:MOST_EJECTIONS]]
    told = {**told_of(seen, shape.BACKEND), "ejected": ejected}
    told["is_slowed"] = int(seen.is_slowed)
    return {**told, "p50": p50, "p99": p99}


def of_server(number: int, server: Server | SyncServer) -> dict[str, Any]:
    seen, recent = server.statistics(), server._keep_recent()
    # Those who use most. A name is who the customer says it is.
    usage = sorted(seen.usage.items(), key=lambda used: -used[1])[:MOST_CUSTOMERS]
    return {
        **told_of(seen, shape.SERVER),
        **quantiles(recent, server._clock()),
        "number": number,
        "worker_number": None if (member := membership()) is None else member.number,
        "pid": os.getpid(),
        "ports": [plain(port) for port in seen.ports],
        "services": [plain(service) for service in seen.services],
        "contention": told_of(seen.contention, shape.CONTENTION),
        "cost": {
            **told_of(seen.cost, shape.COST),
            "is_slowed": int(seen.cost.is_slowed),
        },
        "attempts": {
            **told_of(seen.attempts, shape.ATTEMPTS),
            "others_refuse": int(seen.attempts.others_refuse),
        },
        "signals": [told_of(signal, shape.SIGNAL) for signal in seen.signals],
        "refused": [
            {"reason": reason, "criticality": criticality, "requests": requests}
            for reason, by_criticality in seen.refused.items()
            for criticality, requests in by_criticality.items()
            if requests
        ],
        "usage": [{"customer": plain(name), "cpu": cpu} for name, cpu in usage],
        "usage_left_out": len(seen.usage) - len(usage),
        "udp": told_of(seen.udp, shape.UDP),
        "config": of_config(server._config),
    }


def quantiles(recent: Recent, now: float) -> dict[str, float | None]:
    p50, p99 = recent.latencies.quantiles(now, 0.5, 0.99)
    return {"p50": p50, "p99": p99}


# --- values -------------------------------------------------------------------


def told_of(record: object, fields: Mapping[str, shape.Shape]) -> dict[str, Any]:
    """The fields that the record has, as JSON has them."""
    return {
        name: plain(getattr(record, name)) for name in fields if hasattr(record, name)
    }


def plain(value: Any) -> Any:
    """As JSON has it: without infinities, and without texts that have no end."""
    if isinstance(value, str):
        return printable(value, LONGEST)
    if isinstance(value, float) and not isfinite(value):
        return None
    if isinstance(value, TaskState):
        return value.name.lower().replace("_", " ")
    return value


def of_config(config: ChannelConfig | ServerConfig) -> list[dict[str, str]]:
    """Secrets are not shown."""
    sources = config.sources()
    return [
        {
            "name": setting.name,
            "value": plain(
                text_of(getattr(config, setting.name))
                if not setting.is_secret
                else "set, and not shown"
                if getattr(config, setting.name)
                else "not set"
            ),
            "source": plain(sources[setting.name]),
        }
        for setting in settings(type(config))
    ]


def text_of(value: object) -> str:
    """A setting as text for people: functions by name, URLs without passwords.

    >>> text_of({"total": 4.0}), text_of(("redis://:secret@host", len))
    ("{'total': 4.0}", "('redis://...@host', len)")
    """
    if isinstance(value, Mapping):
        items = [f"{text_of(name)}: {text_of(one)}" for name, one in value.items()]
        return f"{{{', '.join(items)}}}"
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return f"({', '.join(map(text_of, value))})"
    if callable(value):
        return str(getattr(value, "__qualname__", type(value).__qualname__))
    return brief(value)
