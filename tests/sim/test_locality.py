"""Locality with real pickers on a simulated fleet: three zones of ten backends."""

from dataclasses import replace
from functools import cache
from itertools import pairwise
from statistics import fmean

import pytest

from lbclient.core.routing.spill_control import SPILL_ABOVE
from lbclient.pickers import PICKERS
from lbclient.sim import SCENARIOS
from lbclient.sim.result import Result, of_zones
from lbclient.sim.simulation import Simulation
from lbclient.sim.traffic import draw

pickers = pytest.mark.parametrize("picker", ["weighted_least_loaded", "round_robin"])


@cache
def play(
    name: str,
    picker: str = "weighted_least_loaded",
    lost: float | None = None,
    load: float | None = None,
) -> tuple[Result, float]:
    """What came of it, and the share of the calls that stayed in their zone."""
    scenario = replace(
        SCENARIOS[name],
        clients=30, backends=30, subset_size=12, cost=0.05, warm_up=10.0, window=30.0,
    )  # fmt: skip
    if lost is not None:
        scenario = replace(scenario, zone_lost=lost)
    load = scenario.loads[0] if load is None else load
    fleet = Simulation(scenario, PICKERS[picker], draw(scenario, load, 1), 1)
    result = fleet.run()
    return result, 1.0 - result.away


def of_first_zone(result: Result, left: int = 10) -> list[float]:
    """The mean utilization of its backends that are left, second by second."""
    places = [place for place in range(0, 30, 3) if is_left(place // 3, left)]
    return [fmean(row[place] for place in places) for row in result.seconds]


def is_left(place: int, left: int) -> bool:
    """As `Client.lose` has it."""
    share = 1.0 - left / 10
    return int((place + 1) * share) == int(place * share)


@pytest.mark.slow
@pickers
def test_when_calm_calls_stay_in_their_zone(picker: str) -> None:
    result, stayed = play("zones", picker)
    assert stayed >= 0.95
    assert result.errors == 0.0


@pytest.mark.slow
@pickers
def test_a_zone_that_loses_half_its_backends_spills_what_is_too_much(
    picker: str,
) -> None:
    """All of it would be 1.0 there; elsewhere it is half of that."""
    result, stayed = play("zone_lost", picker)
    used = of_first_zone(result, left=5)
    assert fmean(used[15:]) == pytest.approx(SPILL_ABOVE, abs=0.05)
    assert result.errors == 0.0
    assert 0.8 < stayed < 0.99  # it kept what it can do
    assert fmean(result.utilization) == pytest.approx(0.5, abs=0.05)


@pytest.mark.slow
@pickers
@pytest.mark.parametrize("left", [2, 1])
def test_a_zone_that_loses_nearly_all_its_backends_costs_no_call(
    picker: str, left: int
) -> None:
    """All of it would be 2.5 or 5.0 there; elsewhere it is 0.5. While control alone
    took calls away, it was full for 13 to 20 s, and 2 to 4 % of all calls timed out."""
    result, stayed = play("zone_lost", picker, 1.0 - left / 10)
    used = of_first_zone(result, left)
    assert fmean(used[5:]) == pytest.approx(SPILL_ABOVE, abs=0.1)
    assert sum(second > 0.95 for second in used) <= 4  # by chance, with one backend
    assert max(used[:5]) < 0.95
    assert result.errors == 0.0
    assert result.p99 < 0.6
    assert 0.7 < stayed < 0.9


@pytest.mark.slow
@pickers
def test_a_zone_with_twice_the_load_spills_what_is_too_much(picker: str) -> None:
    """All of it would be 0.9 there; elsewhere it is half of that."""
    result, stayed = play("zone_hot", picker)
    assert fmean(of_first_zone(result)) == pytest.approx(SPILL_ABOVE, abs=0.05)
    assert max(of_first_zone(result)) < 0.9
    assert result.errors == 0.0
    assert 0.8 < stayed < 0.95


@pytest.mark.slow
def test_the_spill_is_smooth() -> None:
    """No second differs by more than arrivals by chance and one step of control do."""
    used = of_first_zone(play("zone_lost")[0], left=5)
    assert max(abs(one - other) for one, other in pairwise(used)) < 0.25


@pytest.mark.slow
def test_a_zone_that_is_asked_for_more_than_it_can_do_spills_without_errors() -> None:
    """Of three zones one is asked for 130 % of what it can do, the others for 45 %."""
    ours, stayed = play("zone_full")
    nowhere, _ = play("zone_full_off")
    strict, _ = play("zone_full_strict")
    assert (ours.errors, nowhere.errors) == (0.0, 0.0)
    assert strict.errors > 0.05
    assert max(of_zones(SCENARIOS["zone_full"], ours.utilization)) < 0.8
    assert ours.p99 < 1.15 * nowhere.p99
    assert stayed > 0.6 > 0.4 > 1.0 - nowhere.away  # a third stays by chance


@pytest.mark.slow
@pickers
def test_each_zone_has_a_limit_of_its_own(picker: str) -> None:
    """One at 140 %, whose limit is 0.8. Another has hardly any clients of its own, who
    could leave it, and is not filled beyond its 0.3; the third has room up to 0.7."""
    result, _ = play("zone_limits", picker)
    used = of_zones(SCENARIOS["zone_limits"], result.utilization)
    assert used[0] == pytest.approx(0.8, abs=0.05)
    assert used[1] < 0.3
    assert used[2] < 0.7
    assert used[1] / 0.3 == pytest.approx(used[2] / 0.7, abs=0.1)
    assert result.errors < 0.001


@pytest.mark.slow
def test_a_whole_zone_keeps_its_limit_though_clients_know_a_part_of_it() -> None:
    """Each of 15 clients begins with 6 of 15 backends of its zone; subsets grow."""
    scenario = replace(
        SCENARIOS["zone_part"],
        clients=15, backends=45, warm_up=30.0, window=15.0, cost=0.2,
    )  # fmt: skip
    traffic = draw(scenario, scenario.loads[0], 1)
    fleet = Simulation(scenario, PICKERS["weighted_least_loaded"], traffic, 1)
    result = fleet.run()
    assert of_zones(scenario, result.utilization)[0] == pytest.approx(0.7, abs=0.03)
    assert result.errors == 0.0
    assert 0.0 < result.zone_error < 0.05


@pytest.mark.slow
def test_what_leaves_goes_where_there_is_room() -> None:
    """0.3 is too much in the first; the second has 0.1 to spare, the third 0.6."""
    result, stayed = play("zone_unequal")
    used = of_zones(SCENARIOS["zone_unequal"], result.utilization)
    assert used[0] == pytest.approx(SPILL_ABOVE, abs=0.05)
    assert used[1] == pytest.approx(0.6, abs=0.05)
    assert result.errors == 0.0
    assert stayed > 0.75


@pytest.mark.slow
def test_the_calls_of_a_zone_that_is_gone_go_to_the_others() -> None:
    result, _ = play("zone_gone")
    used = of_zones(SCENARIOS["zone_gone"], result.utilization)
    assert result.errors == 0.0
    assert used[0] < 0.05
    assert used[1:] == pytest.approx([0.6, 0.6], abs=0.05)


@pytest.mark.slow
def test_who_stands_by_gets_calls_only_while_the_first_are_full() -> None:
    scenario = SCENARIOS["priorities"]
    calm, _ = play("priorities", load=0.3)
    assert of_zones(scenario, calm.utilization) == pytest.approx([0.6, 0.0], abs=0.03)
    full, _ = play("priorities", load=0.5)
    assert of_zones(scenario, full.utilization) == pytest.approx([0.7, 0.3], abs=0.05)
    gone, _ = play("priority_gone")
    assert of_zones(scenario, gone.utilization) == pytest.approx([0.0, 0.6], abs=0.05)
    assert calm.errors == full.errors == gone.errors == 0.0
