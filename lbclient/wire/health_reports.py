"""Parses health reports: state, load, UDP ports and workers of a task."""

from typing import NamedTuple

from google.protobuf.message import DecodeError

from lbclient.core.backends.task_workers import ToldWorkers
from lbclient.core.model import LoadReport, TaskState
from lbclient.v1 import health_pb2
from lbclient.wire.datagram import SEAL_SIZE, Seal
from lbclient.wire.reports import (
    SHORT,
    TASK_STATES,
    from_message,
    sound,
    without_message,
)

# Seconds; a server cannot ask for more patience than this. Ours, with 4,000 streams,
# asks for 8.
REPORT_FLOOR_CEILING = 60.0
LONGEST_SECRET = 64  # bytes, of a session's; HMAC-SHA256 gains nothing from more


class UdpSession(NamedTuple):
    """The UDP port of a task for health checks, and the seal that it gave to this
    client alone."""

    port: int
    seal: Seal


class Health(NamedTuple):
    """What a `HealthReport`, or another server's health response, says.

    `udp_port` 0: there are no health checks by UDP, or only with a `udp_session`.
    `report_floor` is the least number of seconds between two reports of a stream.
    `reason` is what a server other than lbclient's said, if more than the state.
    `clients` is the number of clients connected to the task. `cost_rise` is the factor
    by which requests cost the task more than usual, compared with the fleet.
    `own_utilization` is that of one of several workers, and `task_cpu` the CPU time of
    all of them over the CPUs that the task may use. None means unknown. Not `is_own`:
    it is a response of grpc.health.v1, whose servers owe no further reports.
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
    state = TASK_STATES.get(message.state)
    if state is None:
        return None
    report = from_message(message.load) if message.HasField("load") else None
    if report is not None and len(data) > SHORT:
        report = without_message(report)
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
    """None if it is invalid: without a group or own ports, or with too many."""
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
    """None if there is none, or it is invalid."""
    is_sound = 0 < message.port < 2**16 and message.id
    if not is_sound or not SEAL_SIZE <= len(message.secret) <= LONGEST_SECRET:
        return None
    return UdpSession(message.port, Seal(message.secret, message.id))
