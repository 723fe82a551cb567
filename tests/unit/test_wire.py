"""Reports from the network are read with suspicion."""

from math import inf, nan
from typing import Any

import pytest

from lbclient import wire
from lbclient.core.backends.task_workers import ToldWorkers
from lbclient.core.model import LoadReport, TaskState
from lbclient.core.refusal import Refusal
from lbclient.v1 import health_pb2, load_pb2
from lbclient.wire import Health
from lbclient.wire.datagram import Seal
from lbclient.wire.metrics import LONGEST, MOST


def report(**fields: float) -> bytes:
    return load_pb2.LoadReport(**fields).SerializeToString()  # type: ignore[arg-type]


def test_a_report_is_read_whole() -> None:
    data = report(
        cpu_utilization=0.5,
        rps_fractional=10.0,
        eps=1.0,
        state=2,
        active_requests=3,
        runnable_requests=2,
    )
    assert wire.parse_report(data) == LoadReport(
        0.5, 10.0, 1.0, 3, 2, TaskState.SERVING, metrics={"cpu_utilization": 0.5}
    )


def test_metrics_are_read_by_the_names_of_the_grfc() -> None:
    message = load_pb2.LoadReport(
        cpu_utilization=0.5,
        mem_utilization=0.26,
        application_utilization=0.0,
        utilization={"disk": 0.3, "idle": 0.0, "bad": nan, "huge": 1e300},
        named_metrics={"pool": 7.0, "a.b": 0.1, "worse": inf, "less": -1.0, "of": 9e15},
    )
    parsed = wire.parse_report(message.SerializeToString())
    assert parsed is not None
    assert parsed.metrics == {
        "cpu_utilization": 0.5,
        "mem_utilization": 0.26,
        "utilization.disk": 0.3,
        "named_metrics.pool": 7.0,
        "named_metrics.a.b": 0.1,
        "named_metrics.of": 9e15,
    }


@pytest.mark.parametrize("size", [1, 10, 300])
def test_of_too_many_or_too_long_names_none_is_read(size: int) -> None:
    """Also in a report that is too long to be remembered."""
    many = {f"{n:0{size}}": 1.0 for n in range(MOST)}
    message = load_pb2.LoadReport(mem_utilization=0.26, named_metrics=many)
    data = message.SerializeToString()
    report = wire.parse_report(data)
    health = wire.parse_health(
        health_pb2.HealthReport(state="SERVING", load=message).SerializeToString()
    )
    for parsed in report, health and health.report:
        assert parsed is not None
        assert len(parsed.metrics) == (1 if size > LONGEST else 1 + MOST)
    message.utilization["one more"] = 1.0
    parsed = wire.parse_report(message.SerializeToString())
    assert parsed is not None
    assert parsed.metrics == {"mem_utilization": 0.26}


def test_the_applications_utilization_comes_first() -> None:
    data = report(cpu_utilization=0.5, application_utilization=0.8)
    parsed = wire.parse_report(data)
    assert parsed is not None
    assert parsed.utilization == 0.8


def test_what_is_not_said_is_unknown() -> None:
    assert wire.parse_report(b"") == LoadReport()


@pytest.mark.parametrize("bad", [nan, inf, -inf, -1.0, 1.7e308, 1e16])
def test_an_impossible_number_counts_as_missing(bad: float) -> None:
    data = report(
        cpu_utilization=0.5, application_utilization=bad, rps_fractional=bad, eps=bad
    )
    assert wire.parse_report(data) == LoadReport(0.5, metrics={"cpu_utilization": 0.5})
    assert wire.parse_report(report(cpu_utilization=bad)) == LoadReport()


@pytest.mark.parametrize(
    ("percents", "shares"),
    [
        ([], None),
        ([0], (0.0, 0.0, 0.0, 0.0)),
        ([90, 0, 40], (0.9, 0.0, 0.4, 0.0)),
        ([1, 2, 3, 100], (0.01, 0.02, 0.03, 1.0)),
        ([101], None),
        ([1, 2, 3, 4, 5], None),
    ],
)
def test_what_is_refused_is_told_by_criticality_or_unknown(
    percents: list[int], shares: tuple[float, ...] | None
) -> None:
    message = load_pb2.LoadReport(refused_percent=bytes(percents))
    assert wire.parse_report(message.SerializeToString()) == LoadReport(refused=shares)


def test_an_unknown_state_is_no_state() -> None:
    data = load_pb2.LoadReport()
    data.ParseFromString(b"\xc0\x3e\x63")  # field 1000, varint 99
    assert wire.from_message(data).state is None


@pytest.mark.parametrize("garbage", [b"\xff", b"\x09\x00", b"not a report"])
def test_garbage_is_no_report(garbage: bytes) -> None:
    assert wire.parse_report(garbage) is None
    assert wire.parse_health(garbage) is None
    assert wire.find_report([(wire.LOAD_KEY, garbage)]) is None


def test_the_report_is_found_among_trailers() -> None:
    trailers: list[tuple[str, str | bytes]] = [
        ("x", "y"),
        (wire.LOAD_KEY, report(eps=1.0)),
        ("z-bin", b"\xff"),
    ]
    assert wire.find_report(trailers) == LoadReport(eps=1.0)
    assert wire.find_report([("x", "y")]) is None
    assert wire.find_report([(wire.LOAD_KEY, "text")]) is None


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (["overloaded", "quota"], Refusal.QUOTA),
        (["quota", "overloaded"], Refusal.OVERLOADED),
        (["overloaded", "no word of ours"], None),
        ([], None),
    ],
)
def test_of_several_refusals_the_last_counts(
    values: list[str], found: Refusal | None
) -> None:
    """The docs said so, and the code went by the first."""
    trailers = [("x", "y"), *((wire.REFUSAL_KEY, value) for value in values)]
    assert wire.find_refusal([*trailers, ("z", "y")]) is found


def test_a_health_report_has_a_state_and_perhaps_a_load_and_a_udp_port() -> None:
    message = health_pb2.HealthReport(state=load_pb2.LAME_DUCK)
    said = Health(TaskState.LAME_DUCK)
    assert wire.parse_health(message.SerializeToString()) == said
    message.load.eps = 2.0
    message.udp_port = 50051
    said = Health(TaskState.LAME_DUCK, LoadReport(eps=2.0), 50051)
    assert wire.parse_health(message.SerializeToString()) == said
    message.udp_port = 2**16
    assert wire.parse_health(message.SerializeToString()) == said._replace(udp_port=0)
    assert wire.parse_health(b"") is None


SESSION = health_pb2.UdpSession(port=50051, id=7, secret=bytes(32))


def read_session(**fields: Any) -> wire.UdpSession | None:
    message = health_pb2.HealthReport(state="SERVING", udp_session=SESSION)
    for name, value in fields.items():
        setattr(message.udp_session, name, value)
    health = wire.parse_health(message.SerializeToString())
    assert health is not None
    return health.udp_session


def test_a_session_has_a_port_a_number_and_a_secret() -> None:
    assert read_session() == wire.UdpSession(50051, Seal(bytes(32), 7))


@pytest.mark.parametrize(
    "fields",
    [{"port": 0}, {"port": 2**16}, {"id": 0}]
    + [{"secret": bytes(size)} for size in (0, 15, 65, 100_000)],
)
def test_what_can_be_no_session_is_none(fields: dict[str, Any]) -> None:
    assert read_session(**fields) is None


def health_of(*ports: health_pb2.WorkerPorts, group: int = 7) -> wire.Health | None:
    workers = health_pb2.Workers(group=group, ports=ports)
    report = health_pb2.HealthReport(state="SERVING", workers=workers)
    return wire.parse_health(report.SerializeToString())


def test_workers_are_read_as_far_as_they_can_be() -> None:
    ports = health_pb2.WorkerPorts
    health = health_of(ports(shared=50051, own=[40000, 0]))
    assert health is not None
    assert health.workers == ToldWorkers(7, ((50051, (40000, 0)),))
    for strange in (
        health_of(ports(shared=1, own=[40000]), group=0),
        health_of(ports(shared=1, own=[65536])),
        health_of(ports(shared=1)),
        health_of(ports(shared=1, own=[40000] * (wire.MOST_WORKERS + 1))),
        health_of(*[ports(shared=1, own=[2])] * (wire.MOST_SHARED_PORTS + 1)),
    ):
        assert strange is not None
        assert strange.state is TaskState.SERVING
        assert strange.workers is None
