"""Adds up durations and sizes of messages over all channels and servers.

Of each method and status. The times of a source that is gone are kept, so no count goes
down. Of methods the first 100 are told apart, as each has up to 16 series a status.
"""

import sys
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import NamedTuple

from lbclient.core.counting.call_counts import Method
from lbclient.core.statistics.call_times import (
    BOUNDS,
    CallTimes,
    Exemplar,
    Times,
    Trace,
)
from lbclient.metrics.samples import GO_CODES, TYPES, UNKNOWN
from lbclient.pickers.scheduler_updates import SchedulerUpdates
from lbclient.wire.codes import STATUS_OF_NUMBER

MAX_TIMED = 100  # methods

# Seconds. Every third of gRPC's bounds, for Prometheus has a series for each.
SHOWN = (
    0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0,
    50.0,
)  # fmt: skip

# What is kept of a server's requests, by what is kept of a channel's calls.
OF_REQUESTS = {
    "call": "request",
    "sent": "request_sent",
    "received": "request_received",
}

NO_CODE = -1  # of what is not told apart by status

BoundedMethod = Callable[[tuple[str, str, str]], tuple[str, str, str]]


class Key(NamedTuple):
    """What is timed: "call", "attempt", "retries", "resends", "delays", "request",
    what is measured, "sent", "received", "request_sent", "request_received", or,
    without a method, "weights".

    `target` is empty on a server. `method` is its type, service and name.
    """

    what: str
    target: str
    method: tuple[str, str, str] | tuple[()]
    code: int


class Started(NamedTuple):
    """Attempts that have begun, or requests."""

    target: str
    method: tuple[str, str, str]


class Durations:
    """Sums over sources. Made anew for each scrape, but for those that are kept."""

    def __init__(self) -> None:
        self.times: dict[Key, Times] = {}
        self.started: dict[Started, int] = {}
        self.updates: dict[str, tuple[int, int, int]] = {}  # as in `UPDATES`

    def add(self, times: CallTimes, target: str, bounded: BoundedMethod) -> None:
        for method, of_method in times.read():
            name = bounded(_labels(method))
            started = Started(target, name)
            before = self.started.get(started, 0)
            self.started[started] = before + of_method.started
            for what, code, found in of_method.read():
                shown = what if target else OF_REQUESTS.get(what)
                if shown is not None:
                    self._merge(Key(shown, target, name, code), found)

    def add_updates(self, updates: SchedulerUpdates, target: str) -> None:
        counts = updates.fallbacks, updates.not_yet_usable, updates.stale
        before = self.updates.get(target, (0, 0, 0))
        self.updates[target] = (
            before[0] + counts[0],
            before[1] + counts[1],
            before[2] + counts[2],
        )
        self._merge(Key("weights", target, (), NO_CODE), updates.weights)

    def add_all(self, other: "Durations") -> None:
        for started, count in other.started.items():
            self.started[started] = self.started.get(started, 0) + count
        for target, counts in other.updates.items():
            self.updates[target] = counts  # it is the first to be added
        for key, times in other.times.items():
            self._merge(key, times)

    def _merge(self, key: Key, times: Times) -> None:
        known = self.times.get(key)
        if known is None:
            known = self.times[key] = Times(times.bounds)
        known.add(times)

    def __repr__(self) -> str:
        return f"<{len(self.times)} durations>"


def _labels(method: Method) -> tuple[str, str, str]:
    kind, path = method
    service, slash, name = path.removeprefix("/").rpartition("/")
    return (TYPES.get(kind, "unknown"), service, name) if slash else UNKNOWN


def find_trace() -> Trace | None:
    """The sampled trace that OpenTelemetry has in the current context, if it is there.

    Its API is not imported for this: who does not use it has no trace.
    """
    api = sys.modules.get("opentelemetry.trace")
    if api is None or not sys.modules["opentelemetry.context"].get_current():
        return None  # nothing is in the context: no span is, asked with fewer frames
    span = api.get_current_span().get_span_context()
    return Trace(span.trace_id, span.span_id) if span.trace_flags.sampled else None


FAMILY_OF = {
    "call": "lbclient_call_duration_seconds",
    "attempt": "lbclient_attempt_duration_seconds",
    "request": "lbclient_server_request_duration_seconds",
}

PROMETHEUS_CODES = {
    number: GO_CODES[status.name] for number, status in STATUS_OF_NUMBER.items()
}

Shown = tuple[str, tuple[str, ...], float, Exemplar | None]
"""A sample's name, the values of its labels, its number, and an exemplar of it."""


def samples_of(durations: Durations) -> Iterator[Shown]:
    """Prometheus' samples: its buckets accumulate, and are fewer."""
    for (what, target, method, code), times in durations.times.items():
        family = FAMILY_OF.get(what)
        if family is None or not method:
            continue
        _, service, name = method
        labels: tuple[str, ...] = (service, name, PROMETHEUS_CODES[code])
        if target:
            labels = (target, *labels)
        at_most = list(accumulate(times.counts))
        above = -1
        for bound, le in zip((*SHOWN, None), (*map(str, SHOWN), "+Inf"), strict=True):
            last = len(BOUNDS) if bound is None else BOUNDS.index(bound)
            exemplar = times.last_exemplar(above + 1, last)
            yield f"{family}_bucket", (*labels, le), at_most[last], exemplar
            above = last
        yield f"{family}_sum", labels, times.sum, None
        yield f"{family}_count", labels, at_most[-1], None
