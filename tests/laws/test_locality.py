"""What locality promises: monotone, without a cliff, and nobody is ever left out."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice, pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbclient.core.load import Load
from lbclient.core.model import Endpoint, Identity, LoadReport, snapshot
from lbclient.core.protocols import PickerFactory
from lbclient.core.routing.locality import PreferNear, prefer_near
from lbclient.core.routing.spill_control import (
    GAIN,
    MIN_SHARE,
    RAMP,
    SETTLE,
    SPILL_ABOVE,
    LevelState,
    next_share,
)
from lbclient.core.routing.spillover import Spillover
from lbclient.pickers import PICKERS, RoundRobin
from lbclient.subsets.numbered import Choice
from lbclient.testing import FakeNode
from tests.examples import examples

shares = st.floats(MIN_SHARE, 1.0)
full = st.floats(0.0, 3.0)  # of the limit
seconds = st.floats(0.0, 1.0)

every_picker = pytest.mark.parametrize("name", PICKERS)


def nodes_in(*zones: str) -> tuple[FakeNode, ...]:
    nodes = [
        FakeNode(Endpoint(f"{zone}{n}:1", zone=zone)) for n, zone in enumerate(zones)
    ]
    for node in nodes:
        node.load.enter_ready(0.0)
    return tuple(nodes)


def near(factory: PickerFactory = RoundRobin) -> Spillover:
    return Spillover(partial(factory), "a", Random(7))


def report(nodes: Sequence[FakeNode], utilization: float, now: float) -> None:
    for node in nodes:
        node.load.observe(LoadReport(utilization, 100.0), now)


@given(shares, full, full, full, seconds)
def test_more_load_in_the_zone_never_keeps_more_calls_there(
    share: float, one: float, other: float, far: float, lasted: float
) -> None:
    less, more = sorted((one, other))
    assert next_share(share, more, far, lasted) <= next_share(share, less, far, lasted)


@given(shares, full, full, full, seconds)
def test_more_load_elsewhere_never_sends_more_calls_there(
    share: float, near: float, one: float, other: float, lasted: float
) -> None:
    less, more = sorted((one, other))
    assert next_share(share, near, more, lasted) >= next_share(
        share, near, less, lasted
    )


@given(shares, full, full, full, full, seconds)
def test_a_small_change_of_load_is_a_small_change_of_the_share(
    share: float, near: float, far: float, near2: float, far2: float, lasted: float
) -> None:
    """By at most GAIN / RAMP times as much a second: there is no cliff."""
    steepest = GAIN / RAMP * lasted
    change = next_share(share, near, far, lasted) - next_share(
        share, near2, far2, lasted
    )
    # e^x is at most 1.17 times as steep as x, for as long as a step counts.
    assert abs(change) <= 1.17 * steepest * (abs(near - near2) + abs(far - far2)) + 1e-9


@given(shares, full, full, seconds)
def test_a_step_is_short_whatever_is_reported(
    share: float, near: float, far: float, lasted: float
) -> None:
    after = next_share(share, near, far, lasted)
    assert MIN_SHARE <= after <= 1.0
    assert abs(after - share) <= 1.17 * GAIN * lasted + 1e-9


@given(full, full, st.floats(0.1, 3.0))
def test_it_settles_where_the_zone_is_no_busier_than_it_may_be(
    capacity: float, elsewhere: float, demand: float
) -> None:
    """At its limit, or as full as elsewhere; or all stay, or the least share does."""
    capacity, elsewhere = max(0.3, capacity), min(1.5, elsewhere)
    share = 1.0
    for _ in range(400):
        share = next_share(share, demand * share / capacity, elsewhere, 0.25)
    at = demand * share / capacity
    level = max(1.0, elsewhere)
    assert (
        at == pytest.approx(level, abs=0.02)
        or (share == 1.0 and at <= level)
        or share <= 0.012
    )


@given(shares, full, full, st.integers(1, 20), st.integers(1, 20))
def test_who_is_left_gets_no_more_than_there_is_room_for(
    share: float, near: float, far: float, one: int, other: int
) -> None:
    left, count = sorted((one, other))
    bound = LevelState(share, count, near, far).max_share(left)
    demand = near * count / share
    assert bound * demand / left <= max(1.0, far) + 1e-9 or bound == MIN_SHARE
    assert bound == 1.0 or demand > max(1.0, far) * left
    assert bound <= LevelState(share, count, near, far).max_share(count)


def called(
    picker: Spillover, ready: tuple[FakeNode, ...], near: float,
    begin: float, end: float,
) -> None:  # fmt: skip
    """Ten times a second, with reports that say so."""
    for tenth in range(round(10 * begin), round(10 * end)):
        for node in ready:
            is_near = node.endpoint.zone == "a"
            report([node], near if is_near else 0.3, tenth / 10)
        picker.pick(ready, tenth / 10)


def test_calls_leave_a_zone_that_loses_backends_at_once() -> None:
    """While it took control to find out, what was too much timed out for 16 s."""
    ready = nodes_in(*"aaaaaaaabb")
    picker = near()
    called(picker, ready, 0.5, 0.0, 5.0)
    assert picker.share == 1.0
    left = ready[6:]
    picker.pick(left, 5.0)
    assert picker.share == pytest.approx(SPILL_ABOVE / 0.5 / 4)
    called(picker, left, 0.5, 5.0, 5.0 + SETTLE)  # reports lag behind
    assert picker.share == pytest.approx(SPILL_ABOVE / 0.5 / 4)
    called(picker, left, 0.5, 5.0 + SETTLE, 7.0 + SETTLE)  # there is room indeed
    assert picker.share > 1.1 * SPILL_ABOVE / 0.5 / 4


def test_it_is_the_same_whether_they_are_lost_at_once_or_one_by_one() -> None:
    ready = nodes_in(*"aaaaaaaabb")
    picker = near()
    called(picker, ready, 0.5, 0.0, 5.0)
    for lost in range(1, 7):
        left = ready[lost:]
        called(picker, left, 0.5, 5.0 + lost / 2, 5.5 + lost / 2)
    assert picker.share == pytest.approx(SPILL_ABOVE / 0.5 / 4)


def test_a_backend_that_is_not_missed_moves_no_call() -> None:
    ready = nodes_in(*"aaaaaaaabb")
    picker = near()
    called(picker, ready, 0.5, 0.0, 5.0)
    called(picker, ready[1:], 0.57, 5.0, 10.0)
    assert picker.share == 1.0


def test_the_first_one_that_is_back_of_a_zone_does_not_get_all_its_calls() -> None:
    ready = nodes_in(*"aaaaaaaabb")
    picker = near()
    called(picker, ready, 0.5, 0.0, 5.0)
    called(picker, ready[8:], 0.3, 5.0, 60.0)
    back = ready[7:]
    picker.pick(back, 60.0)
    assert picker.share == pytest.approx(SPILL_ABOVE / 0.5 / 8)


def test_a_zone_that_loses_backends_while_there_was_nobody_elsewhere() -> None:
    ready = nodes_in(*"aaaabb")
    picker = near()
    called(picker, ready[:4], 0.5, 0.0, 5.0)
    picker.pick(ready[3:4], 5.0)
    picker.pick(ready[3:], 5.0)
    assert picker.share == pytest.approx(SPILL_ABOVE / 0.5 / 4)


@every_picker
def test_while_there_is_room_all_calls_stay(name: str) -> None:
    ready = nodes_in("a", "b", "a", "c")
    picker = near(PICKERS[name])
    for n in range(400):
        report(ready, 0.6, n / 20)
        assert picker.pick(ready, n / 20).endpoint.zone == "a"


@every_picker
def test_calls_leave_a_full_zone_bit_by_bit_and_come_back(name: str) -> None:
    ready = nodes_in("a", "b", "a", "c")
    picker = near(PICKERS[name])

    def stayed(begin: int, utilization: float) -> int:
        """Of a hundred calls in five seconds."""
        count = 0
        for n in range(100):
            now = begin + n / 20
            for node in ready:
                is_near = node.endpoint.zone == "a"
                report([node], utilization if is_near else 0.2, now)
            count += picker.pick(ready, now).endpoint.zone == "a"
        return count

    leaving = [stayed(5 * n, 1.0) for n in range(6)]
    assert all(60 * one > 20 * other > 0 for one, other in pairwise(leaving))
    assert leaving == sorted(leaving, reverse=True)
    assert leaving[0] > 60 > 10 > leaving[-1]
    returning = [stayed(30 + 5 * n, 0.4) for n in range(8)]
    assert returning == sorted(returning)
    assert returning[-1] == 100


@every_picker
@examples(20)
@given(st.lists(st.sets(st.integers(0, 5), min_size=1), min_size=1, max_size=20))
def test_a_pick_is_always_one_of_those_that_are_ready(
    name: str, members: list[set[int]]
) -> None:
    nodes = nodes_in("a", "a", "b", "b", "c", "")
    picker = near(PICKERS[name])
    for now, some in enumerate(members):
        ready = tuple(nodes[n] for n in sorted(some))
        chosen = picker.pick(ready, float(now))
        assert chosen in ready
        assert (chosen.endpoint.zone == "a") is any(n < 2 for n in some)
        assert sum(picker.weights(ready, float(now))) == pytest.approx(len(ready))


def test_weights_tell_who_gets_how_much() -> None:
    ready = nodes_in("a", "a", "b", "b")
    picker = near()
    called(picker, ready, 1.0, 0.0, 5.0)
    near_by, away = 2.0 * picker.share, 2.0 * (1.0 - picker.share)
    assert 0.0 < away < 2.0
    weights = picker.weights(ready, 5.0)
    assert weights == pytest.approx([near_by, near_by, away, away])


def test_without_reports_our_own_calls_tell_how_full_a_zone_is() -> None:
    ready = nodes_in("a", "a", "b", "b")
    picker = near()
    for now in range(10):
        picker.pick(ready, float(now))
    assert picker.share == 1.0
    for node in ready[:2]:
        for _ in range(20):
            node.load.begin()
    for now in range(10, 20):
        picker.pick(ready, float(now))
    assert picker.share < 0.9


def test_a_node_that_moves_to_another_zone_is_noticed() -> None:
    ready = nodes_in("a", "b")
    picker = near()
    assert picker.pick(ready, 0.0) is ready[0]
    ready[0].endpoint, ready[1].endpoint = (
        Endpoint("a0:1", zone="b"),
        Endpoint("b1:1", zone="a"),
    )
    assert picker.pick(ready, 1.0) is ready[1]


def test_a_picker_that_probes_is_asked_through_it() -> None:
    ready = nodes_in("a", "a", "b")
    picker = near(PICKERS["prequal"])
    probes = picker.probes
    for now in range(20):
        picker.pick(ready, float(now))
    assert probes
    assert picker.probes is probes
    for node in probes:
        picker.probed(node, LoadReport(0.5, 1.0, active=1), 20.0)


@given(st.lists(st.sampled_from("abc"), max_size=40))
def test_the_order_is_the_same_but_for_the_zone(zones: list[str]) -> None:
    """Three near, one far, each in the order that it had, and none is lost."""
    given_order = [Endpoint(f"{zone}{n}:1", zone=zone) for n, zone in enumerate(zones)]
    order = list(prefer_near(given_order, "a"))
    for is_near in (True, False):
        some = [each for each in order if (each.zone == "a") is is_near]
        assert some == [e for e in given_order if (e.zone == "a") is is_near]
    near = Counter(zones)["a"]
    for length in range(len(order)):
        chosen = sum(each.zone == "a" for each in order[:length])
        if chosen < near and length - chosen < len(order) - near:  # there are both
            assert length - chosen == length // 4


def in_turn(task: int) -> str:
    return "abc"[task % 3]


def in_blocks(task: int) -> str:
    return "abc"[task // 100]


@pytest.mark.parametrize(
    ("zone_of", "fewest", "most"), [(in_blocks, 19, 21), (in_turn, 12, 28)]
)
def test_subsets_are_even_where_the_tens_of_task_numbers_are_in_one_zone(
    zone_of: Callable[[int], str], fewest: int, most: int
) -> None:
    """As docs/discovery.md says: ten clients share out ten backends, if they look at
    the same ones. 300 of both, with 20 connections each."""
    tasks = range(300)
    endpoints = snapshot([Endpoint(f"b{n}:1", 1.0, zone_of(n), n) for n in tasks])
    connections: Counter[str] = Counter()
    for task in tasks:
        choice = Choice("rocksteadier", 20, Identity(task), "", "")
        chosen = islice(PreferNear(choice, zone_of(task))(endpoints), 20)
        connections.update(endpoint.address for endpoint in chosen)
    assert (min(connections.values()), max(connections.values())) == (fewest, most)


def test_load_is_not_written_by_reading_it() -> None:
    load = Load()
    node = FakeNode(Endpoint("a:1", zone="a"), load=load)
    picker = near()
    picker.weights((node,), 0.0)
    assert (load.in_flight, load.report) == (0, None)
