"""The bytes between client and server: keys, method paths, and how reports are parsed.

A report from the network is not to be trusted: what does not parse is None, and
NaN, infinite or negative numbers count as missing (gRFC A58).
"""

from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from math import inf
from struct import Struct
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from lbclient.core.backends.task_workers import ToldWorkers
from lbclient.core.criticality import Criticality
from lbclient.core.model import LoadReport, TaskState
from lbclient.core.quotas.quota import LONGEST, OTHERS
from lbclient.core.refusal import Refusal
from lbclient.core.retries.ending import Ending
from lbclient.core.retries.retry import parse_pushback
from lbclient.v1 import health_pb2, load_pb2
from lbclient.wire.datagram import SEAL_SIZE, Seal
from lbclient.wire.metrics import Metrics

LOAD_KEY = "lbclient-load-bin"
ATTEMPT_KEY = "lbclient-attempt"  # of a retry: 1, 2, ...; none: it is the first
STOCK_ATTEMPT_KEY = "grpc-previous-rpc-attempts"  # likewise, of gRPC's own (gRFC A6)
CRITICALITY_KEY = "lbclient-criticality"
CUSTOMER_KEY = "lbclient-customer"
REFUSAL_KEY = "lbclient-refusal"  # a word of `refusal.Refusal`
PUSHBACK_KEY = "grpc-retry-pushback-ms"  # gRFC A6
ORCA_KEY = "endpoint-load-metrics-bin"  # hidden from Python clients by grpcio
COST_KEY = "lbclient-cost"  # CPU seconds of this request, as decimal text

WATCH_METHOD = "/lbclient.v1.BackendHealth/Watch"
CHECK_METHOD = "/lbclient.v1.BackendHealth/Check"
SERVING_WATCH_METHOD = "/grpc.health.v1.Health/Watch"
SERVING_CHECK_METHOD = "/grpc.health.v1.Health/Check"
ORCA_METHOD = "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics"

# Seconds; a server cannot ask for more patience than this. Ours, with 4,000 streams,
# asks for 8.
REPORT_FLOOR_CEILING = 60.0
LONGEST_SECRET = 64  # bytes, of a session's; HMAC-SHA256 gains nothing from more

_TASK_STATES: dict[int, TaskState] = {state.value: state for state in TaskState}


def sound(number: float) -> float:
    """`number` if it is finite and not negative, else 0.0, which means unknown."""
    return number if 0.0 <= number < inf else 0.0


def from_message(message: load_pb2.LoadReport) -> LoadReport:
    # Application utilization first, then the CPU's (gRFC A58).
    utilization = message.application_utilization
    if not 0.0 < utilization < inf:
        utilization = sound(message.cpu_utilization)
    qps, eps = message.rps_fractional, message.eps
    told = message.HasField
    return _report(
        (
            utilization,
            qps if 0.0 <= qps < inf else 0.0,
            eps if 0.0 <= eps < inf else 0.0,
            message.active_requests if told("active_requests") else None,
            message.runnable_requests if told("runnable_requests") else None,
            _TASK_STATES.get(message.state),
            sound(message.latency),
            message.task_id,
            _refused(message.refused_percent),
            Metrics(message),
        )
    )


_NONE_REFUSED = (0.0,) * len(Criticality)


def _refused(percents: bytes) -> tuple[float, ...] | None:
    """Shares by criticality; None where there are none, or what cannot be shares.

    >>> _refused(bytes([90])), _refused(b""), _refused(bytes([101]))
    ((0.9, 0.0, 0.0, 0.0), None, None)
    """
    if percents == b"\0":
        return _NONE_REFUSED  # as nearly always
    if not percents or len(percents) > len(Criticality) or max(percents) > 100:
        return None
    rest = len(Criticality) - len(percents)
    return tuple(percent / 100 for percent in percents) + (0.0,) * rest


# What a named tuple's own constructor does after a call in Python.
_report: Callable[[tuple[object, ...]], LoadReport]
_report = partial(tuple.__new__, LoadReport)


SHORT = 1024  # bytes; ours has 60, and what is long is not worth remembering


def parse_report(data: bytes) -> LoadReport | None:
    """Reads a `LoadReport`, or an ORCA report; None if it is neither."""
    return _remembered(data) if len(data) <= SHORT else _parse(data)


_from_string = load_pb2.LoadReport.FromString


def _parse(data: bytes) -> LoadReport | None:
    try:
        report = from_message(_from_string(data))
    except (DecodeError, TypeError):
        return None
    return report if len(data) <= SHORT else _without_message(report)


def _without_message(report: LoadReport) -> LoadReport:
    """The same, and what a stranger sent without a bound is not kept."""
    return report._replace(metrics=dict(report.metrics))


# A server samples its load every 0.1 s, so a busy one says the same many times over;
# to remember it costs a fifth of parsing it.
_remembered = lru_cache(maxsize=256)(_parse)


def find_report(trailers: Iterable[tuple[str, Any]]) -> LoadReport | None:
    """The report in a response's trailing metadata, if there is a sound one."""
    for key, value in trailers:
        if key == LOAD_KEY:  # so the value is bytes, as of every key in -bin
            return _remembered(value) if len(value) <= SHORT else _parse(value)
    return None


def find_refusal(trailers: Iterable[tuple[str, Any]]) -> Refusal | None:
    """Why a backend did not execute a request, where it says so in words we know.

    Of several the last counts, as of all our keys, and for who reads a dict.
    """
    found = None
    for key, value in trailers:
        if key == REFUSAL_KEY:
            found = _REFUSALS.get(value)
    return found


COST_NAME = "cpu_seconds"  # of the cost in ORCA's `request_cost`
_COST_FIELD = load_pb2.LoadReport(request_cost={COST_NAME: 1.0}).SerializeToString()
_COST_HEAD, _as_double = _COST_FIELD[:-8], Struct("<d").pack


def cost_field(seconds: float) -> bytes:
    """The field `request_cost` of a load report: append it to the report's bytes.

    >>> dict(load_pb2.LoadReport.FromString(cost_field(0.25)).request_cost)
    {'cpu_seconds': 0.25}
    """
    return _COST_HEAD + _as_double(seconds)


def find_cost(trailers: Iterable[tuple[str, Any]]) -> float | None:
    """CPU seconds that a request cost, as its server told; None if it did not."""
    for key, value in trailers:
        if key == COST_KEY:
            return _cost(value)
    return None


def _cost(said: Any) -> float | None:
    """
    >>> _cost("0.25"), _cost("-1"), _cost("nan"), _cost("1e999"), _cost(b"0.25")
    (0.25, None, None, None, None)
    """
    try:
        seconds = float(said) if isinstance(said, str) else -1.0
    except ValueError:
        return None
    return seconds if 0.0 <= seconds < inf else None


def read_trailers(code: int, trailers: Iterable[tuple[str, Any]]) -> Ending:
    """All that the end of a failed attempt says, read once."""
    reports, refusal, told = [], None, []
    for key, value in trailers:
        if key == LOAD_KEY:
            reports.append(value)
        elif key == REFUSAL_KEY:
            refusal = _REFUSALS.get(value)  # of several the last, as in `find_refusal`
        elif key == PUSHBACK_KEY:
            told.append(str(value))
    report = parse_report(reports[0]) if reports else None
    pushback = parse_pushback(told) if told else None
    return Ending(code, report, refusal, pushback)


def find_customer(metadata: Iterable[tuple[str, Any]] | None) -> str:
    """The customer who pays for a request, as its server takes it: a name that is too
    long counts as none."""
    found = OTHERS
    for key, value in metadata or ():
        if key == CUSTOMER_KEY:
            found = str(value)
    return found if len(found) <= LONGEST else OTHERS


_REFUSALS: dict[Any, Refusal] = {refusal.value: refusal for refusal in Refusal}


class UdpSession(NamedTuple):
    """The UDP port of a task for health checks, and the seal that it gave to this
    client alone."""

    port: int
    seal: Seal


class Health(NamedTuple):
    """What a `HealthReport` tells. `udp_port` 0: no health checks by UDP, or only with
    a `udp_session`.

    `report_floor` is how many seconds are between two reports of a stream, at least.
    `reason` is what a server that is not ours said, where that is not the state's name.
    `clients` are connected to the task; None: it does not tell. `cost_rise`, too: by
    what factor requests cost the task more than usual, compared with the fleet.
    `own_utilization` is that of one of several workers, `task_cpu` of all of them over
    the CPUs that the task may use; None: it told none.
    Not `is_own`: it was told by grpc.health.v1, and who tells so owes no reports.
    """

    state: TaskState
    report: LoadReport | None = None
    udp_port: int = 0
    report_floor: float = 0.0
    reason: str = ""
    clients: int | None = None
    is_own: bool = True
    udp_session: UdpSession | None = None
    cost_rise: float | None = None
    workers: ToldWorkers | None = None
    own_utilization: float | None = None
    task_cpu: float | None = None


def parse_health(data: bytes) -> Health | None:
    """Reads a `HealthReport`; None if it does not parse or names no known state."""
    try:
        message = health_pb2.HealthReport.FromString(data)
    except DecodeError:
        return None
    state = _TASK_STATES.get(message.state)
    if state is None:
        return None
    report = from_message(message.load) if message.HasField("load") else None
    if report is not None and len(data) > SHORT:
        report = _without_message(report)
    port = message.udp_port if message.udp_port < 2**16 else 0
    floor = min(sound(message.report_floor), REPORT_FLOOR_CEILING)
    clients = message.clients if message.HasField("clients") else None
    session = _udp_session(message.udp_session)
    return Health(
        state,
        report,
        port,
        floor,
        clients=clients,
        udp_session=session,
        cost_rise=sound(message.cost_rise) or None,
        workers=_workers(message.workers) if message.HasField("workers") else None,
        own_utilization=sound(message.workers.own_utilization) or None,
        task_cpu=sound(message.workers.task_cpu) or None,
    )


MOST_SHARED_PORTS, MOST_WORKERS = 8, 64  # of a task


def _workers(message: health_pb2.Workers) -> ToldWorkers | None:
    """None for what can be none: no group, too many, no ports."""
    ports = []
    for one in message.ports:
        own = tuple(one.own)
        if not own or len(own) > MOST_WORKERS or max(own) >= 2**16:
            return None
        ports.append((one.shared, own))
    if not message.group or len(ports) > MOST_SHARED_PORTS:
        return None
    serving = min(message.serving, MOST_WORKERS)
    return ToldWorkers(message.group, tuple(ports), serving)


def _udp_session(message: health_pb2.UdpSession) -> UdpSession | None:
    """None where there is none, or what cannot be one."""
    is_sound = 0 < message.port < 2**16 and message.id
    if not is_sound or not SEAL_SIZE <= len(message.secret) <= LONGEST_SECRET:
        return None
    return UdpSession(message.port, Seal(message.secret, message.id))
