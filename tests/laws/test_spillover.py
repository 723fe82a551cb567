"""What spill-over promises beyond one zone: priorities, many zones, many clients."""

from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lbclient.core.model import Endpoint, LoadReport
from lbclient.core.protocols import PickerFactory
from lbclient.core.routing.locality import PreferNear
from lbclient.core.routing.spill_control import SPILL_ABOVE, SpillLimits
from lbclient.core.routing.spillover import Spillover
from lbclient.pickers import RoundRobin, WeightedLeastLoaded
from lbclient.testing import FakeNode
from tests.examples import examples

STEP = 0.25  # seconds between two looks of a client


def backends(*names: str, priority: int = 0) -> tuple[FakeNode, ...]:
    """Of zones named by a letter: a0 and a1 are in zone a."""
    nodes = [
        FakeNode(Endpoint(f"{name}:1", zone=name[0], priority=priority))
        for name in names
    ]
    for node in nodes:
        node.load.enter_ready(0.0)
    return tuple(nodes)


def tell(nodes: Sequence[FakeNode], utilization: float, now: float) -> None:
    for node in nodes:
        node.load.observe(LoadReport(utilization, 100.0), now)


class Play:
    """Picks every quarter of a second, of backends that report what they are told."""

    def __init__(self, zone: str = "", limits: SpillLimits = SPILL_ABOVE) -> None:
        self.picker = Spillover(RoundRobin, zone, Random(7), limits)
        self.now = 0.0

    def picks(
        self, seconds: float, used: dict[tuple[FakeNode, ...], float]
    ) -> list[FakeNode]:
        ready = tuple(node for nodes in used for node in nodes)
        picked = []
        for _ in range(round(seconds / STEP)):
            for nodes, utilization in used.items():
                tell(nodes, utilization, self.now)
            picked += [self.picker.pick(ready, self.now) for _ in range(4)]
            self.now += STEP
        return picked


def test_the_next_priority_gets_nothing_while_the_first_has_room() -> None:
    first, second = backends("a0", "a1"), backends("b0", "b1", priority=1)
    play = Play()
    assert set(play.picks(20.0, {first: 0.69, second: 0.0})) == set(first)
    assert play.picker.spilled == 0


def test_the_next_priority_gets_what_is_too_much_bit_by_bit_and_gives_it_back() -> None:
    first, second = backends("a0", "a1"), backends("b0", "b1", priority=1)
    play = Play()
    shares = []
    for used in (1.0, 1.0, 1.0, 0.3, 0.3, 0.3, 0.3):
        picked = play.picks(5.0, {first: used, second: 0.1})
        shares.append(sum(node in second for node in picked) / len(picked))
    assert shares[:3] == sorted(shares[:3])
    assert 0.2 < shares[0] < 0.6 < shares[2]
    assert shares[3:] == sorted(shares[3:], reverse=True)
    assert shares[-1] == 0.0


def test_the_next_priority_gets_all_at_once_when_the_first_is_gone() -> None:
    first, second, third = (
        backends(name, priority=priority) for priority, name in enumerate("abc")
    )
    play = Play()
    play.picks(5.0, {first: 0.5, second: 0.0, third: 0.0})
    assert set(play.picks(2.0, {second: 0.0, third: 0.0})) == set(second)
    assert play.picker.spilled == 32
    assert play.picker.why_spilled(second[0]) == (
        "spilled, as nobody of priority 0 is ready"
    )
    assert play.picker.rivals(second[0], [*second, *third]) == [*second]


def test_where_all_are_full_each_is_used() -> None:
    """As without priorities: nobody is spared while others drown."""
    first, second = backends("a0"), backends("b0", priority=1)
    play = Play()
    for _ in range(30):  # as busy as what it gets
        share = play.picker.share
        play.picks(1.0, {first: 1.8 * share, second: 1.8 * (1.0 - share)})
    assert play.picker.share == pytest.approx(0.5, abs=0.05)


def test_a_zone_goes_before_the_next_priority() -> None:
    home, away = backends("a0"), backends("b0")
    spare = backends("a1", priority=1)
    play = Play("a")
    picked = play.picks(10.0, {home: 1.0, away: 0.2, spare: 0.0})
    assert set(picked) == {*home, *away}
    picked = play.picks(10.0, {home: 1.0, away: 1.0, spare: 0.0})
    assert set(picked) == {*home, *away, *spare}


def test_the_limit_is_a_setting() -> None:
    first, second = backends("a0"), backends("b0", priority=1)
    assert set(Play(limits=0.9).picks(10.0, {first: 0.8, second: 0.0})) == set(first)
    picked = Play(limits=0.5).picks(10.0, {first: 0.8, second: 0.0})
    assert set(picked) == {*first, *second}


def test_zones_have_limits_of_their_own_and_others_the_default() -> None:
    home, away = backends("a0"), backends("b0", "c0")
    limits = {"a": 0.9, "b": 0.5}
    assert set(Play("a", limits).picks(10.0, {home: 0.8, away: 0.0})) == set(home)
    home, away = backends("c0"), backends("a0", "b0")
    picked = Play("c", limits).picks(10.0, {home: 0.8, away: 0.0})
    assert set(picked) == {*home, *away}


@pytest.mark.parametrize("picker", [RoundRobin, WeightedLeastLoaded])
def test_what_leaves_is_divided_so_that_other_zones_are_equally_full(
    picker: PickerFactory,
) -> None:
    """Calls take 1.6 of a backend: 0.8 stay, of 0.3 and 0.7 there is half too much."""
    zones = {name: backends(f"{name}0") for name in "abc"}
    ready = tuple(node for nodes in zones.values() for node in nodes)
    spillover = Spillover(picker, "a", Random(7), {"a": 0.8, "b": 0.3})
    used = dict.fromkeys("abc", 0.0)
    for step in range(round(120.0 / STEP)):
        now = step * STEP
        for zone, nodes in zones.items():
            tell(nodes, used[zone], now)
        spillover.pick(ready, now)
        weights = spillover.weights(ready, now)
        for node, weight in zip(ready, weights, strict=True):
            now_used = used[node.endpoint.zone]
            change = STEP / 2.0 * (1.6 * weight / 3.0 - now_used)
            used[node.endpoint.zone] = now_used + change
    assert used["a"] == pytest.approx(0.8, abs=0.02)
    assert used["b"] / 0.3 == pytest.approx(used["c"] / 0.7, abs=0.05)


def test_picks_are_divided_as_weights_say() -> None:
    home, away = backends("a0"), backends("b0", "c0", "c1")
    play = Play("a", {"b": 0.3})
    used = {home: 1.5, away[:1]: 0.25, away[1:]: 0.3}
    play.picks(30.0, used)
    ready = (*home, *away)
    weights = play.picker.weights(ready, play.now)
    assert sum(weights) == pytest.approx(4.0)
    picked = play.picks(5.0, used)
    assert 0 < weights[1] < weights[2]
    shares = [picked.count(node) / len(picked) for node in ready]
    assert shares == pytest.approx([weight / 4.0 for weight in weights], abs=0.1)


def test_a_pick_says_why_it_left_its_zone() -> None:
    home, away = backends("a0"), backends("b0")
    play = Play("a")
    play.picks(10.0, {home: 0.95, away: 0.2})
    assert play.picker.why_spilled(home[0]) == ""
    words = play.picker.why_spilled(away[0])
    says = "priority 0 in zone 'a' is 0.95 utilized, 136% of the limit"
    assert words.startswith(f"spilled: {says}, and ")


def test_weights_tell_of_levels_and_zones() -> None:
    home, away = backends("a0", "a1"), backends("b0", "c0")
    play = Play("a")
    play.picks(10.0, {home: 1.0, away: 0.2})
    weights = play.picker.weights((*home, *away), play.now)
    assert sum(weights) == pytest.approx(4.0)
    assert sum(weights[:2]) == pytest.approx(4.0 * play.picker.share)


@given(st.lists(st.integers(0, 3), max_size=30))
def test_without_zones_and_priorities_a_subset_is_as_it_was(numbers: list[int]) -> None:
    endpoints = tuple(Endpoint(f"h{n}:1", zone="x") for n in numbers)
    inner = list(reversed(endpoints))
    subset = PreferNear(lambda _: inner, "")
    assert subset(endpoints) is inner
    assert not subset.has_priorities


@given(st.floats(0.2, 1.4), st.floats(0.0, 0.9), st.floats(0.0, 0.9), st.integers(0, 4))
@example(1.3, 0.45, 0.45, 4)
@examples(10)
@pytest.mark.slow
def test_many_clients_that_see_the_same_reports_do_not_swing(
    one: float, other: float, third: float, late: int
) -> None:
    """Eight clients in each of three zones of equal capacity, and reports that are
    smoothed over 2 s and up to 1 s late. Where the fleet has room no zone is full
    after a minute, and none swings by more than 0.1."""
    demand = dict(zip("abc", (one, other, third), strict=True))
    if sum(demand.values()) > 2.4:  # 0.8 of the fleet
        return
    zones = {zone: backends(f"{zone}0") for zone in "abc"}
    ready = tuple(node for nodes in zones.values() for node in nodes)
    clients = [
        (zone, Spillover(RoundRobin, zone, Random(n)))
        for zone in "abc"
        for n in range(8)
    ]
    used, reports = dict.fromkeys("abc", 0.0), [dict.fromkeys("abc", 0.0)] * (late + 1)
    last: list[dict[str, float]] = []
    for step in range(round(90.0 / STEP)):
        now = step * STEP
        for zone, nodes in zones.items():
            tell(nodes, min(1.0, reports[-1 - late][zone]), now)
        flow = dict.fromkeys("abc", 0.0)
        for zone, picker in clients:
            picker.pick(ready, now)
            weights = picker.weights(ready, now)
            for node, weight in zip(ready, weights, strict=True):
                flow[node.endpoint.zone] += demand[zone] * weight / 3.0 / 8.0
        used = {
            zone: used[zone] + STEP / 2.0 * (flow[zone] - used[zone]) for zone in used
        }
        reports = [*reports[-late - 1 :], used]
        if now > 60.0:
            last.append(flow)
    for zone in "abc":
        flows = [flow[zone] for flow in last]
        assert max(flows) < 0.95
        assert max(flows) - min(flows) < 0.1
        assert max(abs(after - before) for before, after in pairwise(flows)) < 0.02
