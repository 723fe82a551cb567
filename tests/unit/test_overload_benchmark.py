"""What `benchmarks.overload` adds up, and what it calls missed."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.frames import Call
from benchmarks.overload.cells import Cell, Figures
from benchmarks.overload.neighbours import Impossible, burner, cgroup
from benchmarks.overload.tally import Tally, from_json, total
from benchmarks.overload.targets import late, missed
from tests import needs

CELL = Cell("10", "quiet", "lbclient", "frames", 2.0, 0.5)
RUN = Figures(
    cell=CELL,
    capacity=100.0,
    allowed=95.0,
    goodput=90.0,
    p50=0.1,
    p99=0.3,
    offered={"CRITICAL_PLUS": 10.0, "CRITICAL": 60.0, "SHEDDABLE": 130.0},
    served={"CRITICAL_PLUS": 10.0, "CRITICAL": 60.0, "SHEDDABLE": 20.0},
    fits={"CRITICAL_PLUS": 10.0, "CRITICAL": 60.0, "SHEDDABLE": 20.0},
    ends={"OK": 900, "overloaded": 1100},
    lateness=0.002,
    normal_after=0.1,
    memory=1.0,
    ran=1.0,
    available=1.0,
    refused=110.0,
    by_second=[],
)


def of(**fields: Any) -> Figures:
    """The run, in another cell if so told."""
    cell = {key: fields.pop(key) for key in list(fields) if hasattr(CELL, key)}
    return replace(RUN, cell=replace(CELL, **cell), **fields)


def test_what_is_promised_holds() -> None:
    assert missed([RUN, of(kind="grpcio", goodput=0.0)]) == []


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (of(goodput=85.0), "goodput is 0.89 of what is allowed, target 0.9"),
        (of(surroundings="neighbour", goodput=75.0), "goodput is 0.79 of what is"),
        (of(p99=0.51), "p99 is 510 ms, target 500 ms"),
        (of(surroundings="cgroup", p99=0.51), "p99 is 510 ms, target 500 ms"),
        (of(normal_after=2.1), "normal 2.1 s after the flood, target 2 s"),
        (
            of(served={"CRITICAL_PLUS": 10.0, "CRITICAL": 57.0}),
            "CRITICAL has 0.950 of what would fit of it",
        ),
        (
            of(served={"CRITICAL_PLUS": 9.0, "CRITICAL": 60.0}),
            "CRITICAL_PLUS has 0.900 of what would fit of it",
        ),
    ],
)
def test_each_target_can_be_missed(run: Figures, said: str) -> None:
    (found,) = missed([run]) or []
    assert said in found
    assert run.cell.surroundings in found


def test_at_the_capacity_some_of_what_is_critical_is_refused_anyway() -> None:
    about = {"CRITICAL_PLUS": 10.0, "CRITICAL": 80.0, "SHEDDABLE": 110.0}
    some = {"CRITICAL_PLUS": 10.0, "CRITICAL": 57.0}
    assert missed([of(offered=about, served=some)]) == []


def test_goodput_is_no_less_than_that_of_a_bare_server() -> None:
    (found,) = missed([RUN, of(kind="grpcio", goodput=93.0)]) or []
    assert found == "10 ms, quiet, 2 x: goodput is 90.0/s, of grpc.aio alone 93.0/s"
    assert missed([RUN, of(kind="grpcio", goodput=99.0, times=5.0)]) == []


def test_goodput_is_judged_up_to_a_load_only() -> None:
    assert missed([of(times=30.0, goodput=50.0)]) == []


def test_a_load_that_was_sent_late_is_named_and_not_judged() -> None:
    tardy = of(lateness=0.2, goodput=0.0)
    assert missed([tardy]) is None
    assert missed([RUN, tardy]) == []
    assert late([RUN, tardy]) == ["10 ms, quiet, 2 x, lbclient: 200 ms"]


def test_servers_that_are_not_whole_are_not_judged() -> None:
    bare = of(kind="grpcio", goodput=0.0)
    assert missed([bare, of(kind="without intake", goodput=0.0)]) is None


def call(at: float, code: str = "OK", latency: float = 0.1) -> Call:
    return Call(at, "CRITICAL", code, "", latency, 0.001)


def test_a_tally_counts_what_is_sent_in_its_time() -> None:
    tally = Tally(1.0, 3.0)
    for one in (call(0.95), call(1.5, "CANCELLED"), call(2.95), call(3.0)):
        tally.add(one)
    counts = tally.counts["CRITICAL"]
    assert counts.sent == 2
    assert counts.ends == {"OK": 1, "CANCELLED": 1}
    assert tally.by_second == {"1": 1, "3": 2}
    assert tally.latest(0.99) == 0.001


def test_an_answer_behind_its_deadline_is_none() -> None:
    tally = Tally(1.0, 3.0)
    tally.add(call(1.2, latency=1.1))
    assert tally.counts["CRITICAL"].ends == {"DEADLINE_EXCEEDED": 1}
    assert not tally.by_second


def test_tallies_of_several_processes_are_one() -> None:
    one, other = Tally(1.0, 3.0), Tally(1.0, 3.0)
    one.add(call(1.5))
    other.add(call(1.5))
    other.add(call(4.0, "CANCELLED"))
    both = total([one, from_json(asdict(other))])
    assert both.counts["CRITICAL"].ends == {"OK": 2}
    assert both.by_second == {"1": 2}
    assert both.failed_at == 4.0


async def test_a_burner_ends_with_its_context() -> None:
    async with burner() as pid:
        assert is_alive(pid)
    assert not is_alive(pid)


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_control_group_is_removed_with_its_context() -> None:
    try:
        context = cgroup(0.5)
        group = context.__enter__()
    except Impossible as error:
        needs.skip(str(error))
    assert group.exists()
    context.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert not group.exists()
