"""Who is a newcomer, and how much of its share it has."""

from math import inf

import pytest

from lbclient.core.model import LoadReport, Outcome, Verdict
from lbclient.pickers.slow_start import FAILING, FLOOR, FULL, MOMENT, SlowStart
from lbclient.testing import FakeNode, fake_nodes

WINDOW = 10.0
NOW = 1000.0


def began(*ready_at: float) -> tuple[FakeNode, ...]:
    nodes = fake_nodes(len(ready_at))
    for node, at in zip(nodes, ready_at, strict=True):
        node.load.enter_ready(at)
    return nodes


def restart(node: FakeNode, after: float, now: float) -> None:
    """Away until `now`, as it was `after` seconds before."""
    node.load.leave_ready()
    node.load.enter_ready(now + after)


def shares(nodes: tuple[FakeNode, ...], now: float) -> list[float]:
    return SlowStart(WINDOW).shares(nodes, now)


@pytest.mark.parametrize("age", [0.0, 2.5, 5.0, 9.9])
def test_a_share_grows_in_a_line_from_the_floor(age: float) -> None:
    nodes = began(0.0, NOW)
    share = FLOOR + (1.0 - FLOOR) * age / WINDOW
    assert shares(nodes, NOW + age) == pytest.approx([1.0, share])


@pytest.mark.parametrize("age", [WINDOW, 2 * WINDOW, inf])
def test_after_the_window_a_share_is_full(age: float) -> None:
    assert shares(began(0.0, NOW), NOW + age) == [1.0, 1.0]


def test_no_window_is_no_ramp() -> None:
    nodes = began(0.0, NOW)
    for now in (NOW - 1.0, NOW, NOW + 1.0):
        assert SlowStart(0.0).shares(nodes, now) == [1.0, 1.0]


@pytest.mark.parametrize("age", [0.0, 0.3, 5.0, 100.0])
def test_when_all_are_new_nobody_is_slowed(age: float) -> None:
    nodes = began(NOW, NOW - 0.2, NOW - 0.9 * MOMENT)
    assert shares(nodes, NOW + age) == [1.0, 1.0, 1.0]


def test_of_a_fleet_that_comes_up_by_and_by_the_first_has_a_full_share() -> None:
    first, second, third = shares(began(NOW, NOW + 2.0, NOW + 4.0), NOW + 5.0)
    assert first == 1.0
    assert second == pytest.approx((FLOOR + 0.9 * 0.3) / (FLOOR + 0.9 * 0.5))
    assert third == pytest.approx((FLOOR + 0.9 * 0.1) / (FLOOR + 0.9 * 0.5))


def test_a_lame_duck_that_serves_is_no_newcomer() -> None:
    nodes = began(0.0, 0.0, NOW)
    nodes[0].load.leave_ready()  # as the pool does with lame ducks
    assert shares(nodes, NOW) == pytest.approx([1.0, 1.0, FLOOR])
    nodes[1].load.leave_ready()
    assert shares(nodes[:2], NOW) == [1.0, 1.0]


def test_a_restart_starts_the_ramp_again() -> None:
    nodes, slow_start = began(0.0, 0.0), SlowStart(WINDOW)
    slow_start.look(nodes, NOW)
    restart(nodes[1], 3.0, NOW)
    assert slow_start.shares(nodes, NOW + 3.0) == pytest.approx([1.0, FLOOR])
    slow_start.look(nodes, NOW + 3.0)
    assert slow_start.shares(nodes, NOW + 3.0) == pytest.approx([1.0, FLOOR])


def test_a_lost_connection_that_is_back_at_once_starts_no_ramp() -> None:
    nodes, slow_start = began(0.0, 0.0), SlowStart(WINDOW)
    for turn in range(5):
        now = NOW + turn
        slow_start.look(nodes, now)
        restart(nodes[1], 0.3, now)
        assert slow_start.shares(nodes, now + 0.3) == [1.0, 1.0]
        slow_start.look(nodes, now + 0.4)


def test_a_lost_connection_does_not_shorten_a_ramp() -> None:
    nodes, slow_start = began(0.0, NOW), SlowStart(WINDOW)
    slow_start.look(nodes, NOW + 5.0)
    restart(nodes[1], 0.3, NOW + 5.0)
    share = FLOOR + (1.0 - FLOOR) * 0.6
    slow_start.look(nodes, NOW + 6.0)
    assert slow_start.shares(nodes, NOW + 6.0) == pytest.approx([1.0, share])


def test_who_was_seen_to_leave_was_there_until_then() -> None:
    """Looks are rare when calls are: the last one may be long ago."""
    nodes, slow_start = began(0.0, 0.0), SlowStart(WINDOW)
    slow_start.look(nodes, NOW - 60.0)
    nodes[1].load.leave_ready()
    slow_start.look(nodes[:1], NOW)
    nodes[1].load.enter_ready(NOW + 0.5)
    slow_start.look(nodes, NOW + 0.5)
    assert slow_start.shares(nodes, NOW + 0.5) == [1.0, 1.0]


def test_one_that_is_full_for_long_is_no_newcomer_when_it_has_room() -> None:
    """It is not among the ready ones, and yet has never left."""
    nodes, slow_start = began(0.0, 0.0), SlowStart(WINDOW)
    slow_start.look(nodes, NOW)
    for second in range(60):
        slow_start.look(nodes[:1], NOW + second)
    slow_start.look(nodes, NOW + 60.0)
    assert slow_start.shares(nodes, NOW + 60.0) == [1.0, 1.0]


def test_who_left_for_good_is_forgotten() -> None:
    nodes, slow_start = began(0.0, 0.0, 0.0), SlowStart(WINDOW)
    slow_start.look(nodes, NOW)
    assert repr(slow_start) == "<slow start of 10 s over 3>"
    for second in range(3):
        slow_start.look(nodes[1:], NOW + second)
    assert repr(slow_start) == "<slow start of 10 s over 2>"


def tell(utilization: float, active: int, *nodes: FakeNode) -> None:
    for node in nodes:
        node.load.observe(LoadReport(utilization, 100.0, active=active), NOW)


def after_a_look(nodes: tuple[FakeNode, ...]) -> SlowStart:
    slow_start = SlowStart(WINDOW)
    slow_start.look(nodes, NOW)
    return slow_start


def test_a_ramp_yields_where_half_of_the_others_are_full_and_goes_on_yielding() -> None:
    nodes = began(0.0, 0.0, NOW)
    tell(FULL, 9, nodes[0])
    slow_start = after_a_look(nodes)
    assert slow_start.shares(nodes, NOW) == [1.0, 1.0, 1.0]
    tell(0.5, 9, *nodes)
    slow_start.look(nodes, NOW + 1.0)
    assert slow_start.shares(nodes, NOW + 1.0) == [1.0, 1.0, 1.0]


def test_a_newcomer_that_falls_behind_has_what_the_ramp_leaves_it() -> None:
    nodes = began(0.0, 0.0, NOW)
    tell(FULL, 9, *nodes[:2])
    slow_start = after_a_look(nodes)
    for active, share in ((10, FLOOR), (9, 1.0), (10, FLOOR)):
        tell(0.3, active, nodes[2])
        slow_start.look(nodes, NOW)
        assert slow_start.shares(nodes, NOW)[2] == pytest.approx(share)


def test_who_does_not_report_is_judged_by_the_clients_own_calls() -> None:
    nodes = began(0.0, NOW)
    for i in range(int(2.0 / FAILING)):
        verdict = Verdict.SERVED if i % int(1.0 / FAILING) else Verdict.REJECTED
        nodes[0].load.begin()
        nodes[0].load.finish(Outcome(verdict, 0.01, None), NOW)
    assert after_a_look(nodes).shares(nodes, NOW) == [1.0, 1.0]
    nodes[1].load.begin()
    tell(0.5, 9, nodes[0])  # a count of its own is no measure for who has none
    assert after_a_look(nodes).shares(nodes, NOW) == pytest.approx([1.0, FLOOR])


def test_a_ramp_goes_on_where_few_others_are_full_or_nothing_is_known() -> None:
    nodes = began(0.0, 0.0, 0.0, NOW)
    wanted = pytest.approx([1.0, 1.0, 1.0, FLOOR])
    assert after_a_look(nodes).shares(nodes, NOW) == wanted
    tell(1e6, 9, nodes[0])
    tell(0.9 * FULL, 9, *nodes[1:3])
    tell(1.0, 0, nodes[3])  # what a newcomer says of itself
    assert after_a_look(nodes).shares(nodes, NOW) == wanted


def test_a_ramp_that_yielded_begins_again_with_a_restart() -> None:
    nodes = began(0.0, NOW)
    tell(FULL, 9, nodes[0])
    slow_start = after_a_look(nodes)
    tell(0.5, 9, nodes[0])
    restart(nodes[1], 3.0, NOW)
    slow_start.look(nodes, NOW + 3.0)
    assert slow_start.shares(nodes, NOW + 3.0) == pytest.approx([1.0, FLOOR])


def test_before_it_yielded_the_ramp_was_what_it_was() -> None:
    """Reports lag: whoever judges them asks for the shares of some seconds ago."""
    nodes = began(0.0, NOW - 5.0)
    tell(FULL, 9, nodes[0])
    slow_start = after_a_look(nodes)
    assert slow_start.shares(nodes, NOW - 1.0)[1] < 1.0
