"""What is kept of picks and latencies while somebody looks."""

import pytest

from lbclient.core.model import Endpoint, LoadReport, Outcome, State, Verdict
from lbclient.core.statistics.recent import (
    BACKENDS,
    CALLS,
    LOOK,
    PICKS,
    PICKS_A_SECOND,
    Recent,
    reason,
)
from lbclient.testing import FakeNode


def node(address: str, in_flight: int = 0) -> FakeNode:
    made = FakeNode(Endpoint(address))
    made.state = State.READY
    for _ in range(in_flight):
        made.load.begin()
    return made


def test_a_look_lasts_a_minute_and_another_one_prolongs_it() -> None:
    first = Recent.keep(None, now=10.0)
    assert not first.is_over(10.0 + LOOK / 2)
    assert Recent.keep(first, now=10.0 + LOOK / 2) is first
    assert not first.is_over(10.0 + LOOK)
    assert first.is_over(10.0 + 1.5 * LOOK)
    assert Recent.keep(first, now=10.0 + 2 * LOOK) is not first


def test_the_reason_of_a_pick_is_what_was_known_of_all() -> None:
    chosen, other = node("a:1", in_flight=1), node("b:1", in_flight=4)
    chosen.load.observe(LoadReport(utilization=0.5, active=7), now=9.0)
    told = reason(chosen, [chosen, other], now=10.0)
    assert told == (
        "1 in flight (1 to 4 on the 2 ready), utilization 0.50, 7 active, "
        "as it said 1.0 s ago"
    )
    other.load.observe(LoadReport(utilization=0.5, active=2), now=9.0)
    assert "7 active (2 to 7)," in reason(chosen, [chosen, other], now=10.0)
    chosen.load.begin()
    chosen.load.finish(Outcome(Verdict.FAILED, 1.0), now=10.0)
    assert "100% of its late calls failed" in reason(chosen, [chosen, other], now=10.0)


def test_the_reason_of_a_pick_has_its_weight_where_weights_differ() -> None:
    ready = [node("a:1", in_flight=4), node("b:1", in_flight=2)]
    told = reason(ready[0], ready, 10.0, weights=[1.5, 0.5])
    assert told == "4 in flight (2 to 4 on the 2 ready), weight 1.50 (0.50 to 1.50)"
    assert "weight" not in reason(ready[0], ready, 10.0, weights=[1.0, 1.001])


def test_the_reason_of_a_pick_says_against_whom_most_errors_are_held() -> None:
    chosen, some, most = node("a:1"), node("b:1"), node("c:1")
    ready = [chosen, some, most]
    for one, seconds in ((some, 5.0), (most, 21.4)):
        one.load.owe(seconds, now=10.0)
    told = reason(chosen, ready, now=10.0)
    held = "2.1 recent errors held against it"
    assert told == f"0 in flight (0 to 0 on the 3 ready); c:1 has {held}"
    assert reason(most, ready, now=10.0).endswith(f"; it has {held}")
    assert "recent errors" not in reason(chosen, ready, now=100.0)


def test_the_reason_of_a_pick_names_who_is_in_slow_start() -> None:
    ready = [node("a:1"), node("b:1"), node("c:1")]
    old, new, newest = ready
    for one, at in ((old, 50.0), (new, 96.0), (newest, 97.0)):
        one.load.ready_at = at
    told = reason(old, ready, now=99.5)
    assert (
        told == "0 in flight (0 to 0 on the 3 ready); c:1 has been ready for 2.5 s only"
    )
    assert reason(newest, ready, now=99.5).endswith(
        "; it has been ready for 2.5 s only"
    )
    assert "ready for" not in reason(old, ready, now=107.5)
    assert "ready for" not in reason(new, [new, node("d:1")], now=107.5)
    new.load.ready_at = 96.5
    assert "ready for" not in reason(new, [new, newest], now=99.5)


def test_a_pick_without_a_choice_says_so() -> None:
    one = node("a:1")
    assert reason(one, [one], now=0.0).startswith("the only one")
    one.state = State.LAME_DUCK
    assert reason(one, [one, node("b:1")], now=0.0).startswith("a lame duck")


def test_only_the_last_picks_are_kept_and_not_all_of_a_busy_time() -> None:
    recent, one = Recent.keep(None, now=0.0), node("a:1")
    for pick in range(10_000):
        recent.picked(one, [one], now=1.0 + pick / 1000)
    *_, before, last = (pick.at for pick in recent.picks)
    assert len(recent.picks) == PICKS
    assert last - before == pytest.approx(1.0 / PICKS_A_SECOND)
    assert last > 10.9


def test_calls_that_follow_quick_ones_are_kept_as_well() -> None:
    """Of a slow backend and a quick one by turns."""
    recent, slow, quick = Recent.keep(None, now=0.0), node("a:1"), node("b:1")
    now = 1.0
    for _ in range(PICKS):
        recent.picked(slow, [slow, quick], now)
        recent.picked(quick, [slow, quick], now + 0.1)
        now += 0.105
    assert [pick.backend for pick in recent.picks] == ["a:1", "b:1"] * (PICKS // 2)


def test_latencies_are_those_of_the_last_calls_by_backend() -> None:
    recent = Recent.keep(None, now=0.0)
    for call in range(2 * CALLS):
        recent.finished("a:1", call / 1000, now=1.0)
    recent.finished("b:1", 9.0, now=1.0)
    assert recent.of("a:1").quantiles(1.0, 0.0, 0.5) == [
        CALLS / 1000,
        (1.5 * CALLS - 1) / 1000,
    ]
    assert recent.of("b:1").quantiles(1.0, 0.99) == [9.0]
    assert recent.of("c:1").quantiles(1.0, 0.99) == [None]
    assert recent.of("b:1").quantiles(1.0 + LOOK, 0.99) == [None]
    assert recent.latencies.quantiles(1.0, 1.0) == [9.0]


def test_backends_without_end_take_no_memory_without_end() -> None:
    recent = Recent.keep(None, now=0.0)
    for number in range(BACKENDS + 10):
        recent.finished(f"b:{number}", 1.0, now=0.0)
    assert recent.of(f"b:{BACKENDS - 1}").quantiles(0.0, 0.5) == [1.0]
    assert recent.of(f"b:{BACKENDS}").quantiles(0.0, 0.5) == [None]
