"""What `benchmarks.overload` adds up, and that it leaves nothing behind."""

import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks.frames import Call
from benchmarks.overload.cells import Cell, Figures
from benchmarks.overload.neighbours import Impossible, burner, cgroup
from benchmarks.overload.tally import Tally, from_json, total
from benchmarks.overload.targets import measured_of, missed
from benchmarks.overload.watch import Rates, Reading
from benchmarks.overload.without import MECHANISMS, put
from lbclient.server.overload import run_queue
from tests import needs


def call(at: float, code: str = "OK", latency: float = 0.1) -> Call:
    return Call(at, "CRITICAL", code, "", latency, 0.001)


def test_what_dropping_took_follows_from_what_one_took() -> None:
    before = Reading(10.0, 1.0, 0.5, 0.25, 20, 100, 0.25)
    rates = Reading(12.0, 2.0, 0.5, 0.75, 30, 110, 0.5).rates(before)
    assert rates == Rates(0.5, 0.0, 0.25, refused=5.0, unanswered=5.0, dropping=2.5)


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


@pytest.mark.slow
@pytest.mark.parametrize("name", MECHANISMS)
def test_what_a_mechanism_replaces_is_there(name: str) -> None:
    words = (
        f"from benchmarks.overload.without import MECHANISMS; MECHANISMS[{name!r}]()"
    )
    subprocess.run([sys.executable, "-c", words], check=True)


def test_a_name_that_is_gone_is_no_mechanism() -> None:
    with pytest.raises(AttributeError, match="SLICE"):
        put(run_queue, "SLICE", 1.0)


def test_what_waits_when_the_load_ends_is_not_answered_while_it_lasted() -> None:
    """The first two of these seconds warm up, and the last six come after the load."""
    by_second = [50.0, 90.0, 100.0, 90.0, 80.0, 100.0, 50.0, 50.0, 50.0, 50.0, 50.0]
    assert replace(figures(95.0, 0.3, 50.0), by_second=by_second).answered == 90.0


def figures(goodput: float, p99: float, critical_plus: float) -> Figures:
    offered = {"CRITICAL_PLUS": 50.0, "CRITICAL": 450.0, "SHEDDABLE": 500.0}
    served = {"CRITICAL_PLUS": critical_plus, "CRITICAL": 50.0, "SHEDDABLE": 0.0}
    fits = {"CRITICAL_PLUS": 50.0, "CRITICAL": 50.0, "SHEDDABLE": 0.0}
    return Figures(
        cell=Cell("10", "quiet", "lbclient", "frames", 10.0, 0.5), capacity=100.0,
        allowed=100.0, goodput=goodput, p50=p99, p99=p99, offered=offered,
        served=served, fits=fits, ends={}, lateness=0.0, normal_after=0.0, memory=0.0,
        ran=1.0, available=1.0, refused=0.0, by_second=[],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("run", "misses"),
    [
        (figures(95.0, 0.3, 50.0), []),
        (figures(89.0, 0.3, 50.0), ["goodput, of what is allowed"]),
        (figures(95.0, 0.6, 50.0), ["p99"]),
        (figures(95.0, 0.3, 49.0), ["CRITICAL_PLUS, of what would fit"]),
    ],
)
def test_a_figure_beyond_its_target_is_told_in_both_ways(
    run: Figures, misses: list[str]
) -> None:
    told = [one.name for one in measured_of([run]) if one.misses]
    assert told == [f"10 ms, quiet, 10 x: {what}" for what in misses]
    assert len(missed([run]) or []) == len(misses)
