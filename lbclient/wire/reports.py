"""Parses load reports of responses and health checks, and encodes a request's cost.

Reports come from the network: one that does not parse is None, and NaN, infinite or
negative numbers count as missing (gRFC A58), as do those above `LARGEST`.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from struct import Struct
from typing import Any

from google.protobuf.message import DecodeError

from lbclient.core.criticality import Criticality
from lbclient.core.model import LoadReport, TaskState
from lbclient.v1 import load_pb2
from lbclient.wire.keys import LOAD_KEY
from lbclient.wire.metrics import LARGEST, Metrics

TASK_STATES: dict[int, TaskState] = {state.value: state for state in TaskState}


def sound(number: float) -> float:
    """`number` from 0.0 to `LARGEST`, else 0.0, which means unknown."""
    return number if 0.0 <= number <= LARGEST else 0.0


def from_message(message: load_pb2.LoadReport) -> LoadReport:
    # Application utilization first, then the CPU's (gRFC A58).
    utilization = message.application_utilization
    if not 0.0 < utilization <= LARGEST:
        utilization = sound(message.cpu_utilization)
    qps, eps = message.rps_fractional, message.eps
    told = message.HasField
    return _report(
        (
            utilization,
            qps if 0.0 <= qps <= LARGEST else 0.0,
            eps if 0.0 <= eps <= LARGEST else 0.0,
            message.active_requests if told("active_requests") else None,
            message.runnable_requests if told("runnable_requests") else None,
            TASK_STATES.get(message.state),
            sound(message.latency),
            message.task_id,
            _refused(message.refused_percent),
            Metrics(message),
        )
    )


_NONE_REFUSED = (0.0,) * len(Criticality)


def _refused(percents: bytes) -> tuple[float, ...] | None:
    """Shares by criticality; None if there are none, or they are invalid.

    >>> _refused(bytes([90])), _refused(b""), _refused(bytes([101]))
    ((0.9, 0.0, 0.0, 0.0), None, None)
    """
    if percents == b"\0":
        return _NONE_REFUSED  # as nearly always
    if not percents or len(percents) > len(Criticality) or max(percents) > 100:
        return None
    rest = len(Criticality) - len(percents)
    return tuple(percent / 100 for percent in percents) + (0.0,) * rest


# As a named tuple's own constructor, without its call of a function in Python.
_report: Callable[[tuple[object, ...]], LoadReport]
_report = partial(tuple.__new__, LoadReport)


SHORT = 1024  # bytes; lbclient's have 60, and longer ones are not cached


def parse_report(data: bytes) -> LoadReport | None:
    """Reads a `LoadReport`, or an ORCA report; None if it is neither."""
    return _remembered(data) if len(data) <= SHORT else _parse(data)


_from_string = load_pb2.LoadReport.FromString


def _parse(data: bytes) -> LoadReport | None:
    try:
        report = from_message(_from_string(data))
    except (DecodeError, TypeError):
        return None
    return report if len(data) <= SHORT else without_message(report)


def without_message(report: LoadReport) -> LoadReport:
    """The same report without its protobuf message, whose size has no bound."""
    return report._replace(metrics=dict(report.metrics))


# A server samples its load every 0.1 s, so a busy one sends the same report many times;
# a look into the cache costs a fifth of parsing it.
_remembered = lru_cache(maxsize=256)(_parse)


def find_report(trailers: Iterable[tuple[str, Any]]) -> LoadReport | None:
    """The report in a response's trailing metadata; None if there is no valid one."""
    for key, value in trailers:
        if key == LOAD_KEY:  # so the value is bytes, as of every key in -bin
            return _remembered(value) if len(value) <= SHORT else _parse(value)
    return None


COST_NAME = "cpu_seconds"  # of the cost in ORCA's `request_cost`
_COST_FIELD = load_pb2.LoadReport(request_cost={COST_NAME: 1.0}).SerializeToString()
_COST_HEAD, _as_double = _COST_FIELD[:-8], Struct("<d").pack


def cost_field(seconds: float) -> bytes:
    """The field `request_cost` of a load report: append it to the report's bytes.

    >>> dict(load_pb2.LoadReport.FromString(cost_field(0.25)).request_cost)
    {'cpu_seconds': 0.25}
    """
    return _COST_HEAD + _as_double(seconds)
