"""Locality with real pickers on a simulated fleet: three zones of ten backends."""

from dataclasses import replace
from functools import cache
from itertools import pairwise
from statistics import fmean

import pytest

from lbclient.core.locality import LEVEL
from lbclient.pickers import PICKERS
from lbclient.sim import SCENARIOS
from lbclient.sim.result import Result
from lbclient.sim.simulation import Simulation
from lbclient.sim.traffic import draw

pickers = pytest.mark.parametrize("picker", ["weighted_least_loaded", "round_robin"])


@cache
def play(
    name: str, picker: str = "weighted_least_loaded", lost: float | None = None
) -> tuple[Result, float]:
    """What came of it, and the share of the calls that stayed in their zone."""
    scenario = replace(
        SCENARIOS[name],
        clients=30, backends=30, subset_size=12, cost=0.05, warm_up=10.0, window=30.0,
    )  # fmt: skip
    if lost is not None:
        scenario = replace(scenario, zone_lost=lost)
    load = scenario.loads[0]
    fleet = Simulation(scenario, PICKERS[picker], draw(scenario, load, 1), 1)
    result = fleet.run()
    sent = [
        (node.endpoint.zone == client.zone, node.load.started)
        for client in fleet.clients
        for node in client.pool.nodes.values()
    ]
    stayed = sum(count for is_near, count in sent if is_near)
    return result, stayed / sum(count for _, count in sent)


def of_first_zone(result: Result, left: int = 10) -> list[float]:
    """The mean utilization of its backends that are left, second by second."""
    places = [place for place in range(0, 30, 3) if is_left(place // 3, left)]
    return [fmean(row[place] for place in places) for row in result.seconds]


def is_left(place: int, left: int) -> bool:
    """As `Client.lose` has it."""
    share = 1.0 - left / 10
    return int((place + 1) * share) == int(place * share)


@pickers
def test_when_calm_calls_stay_in_their_zone(picker: str) -> None:
    result, stayed = play("zones", picker)
    assert stayed >= 0.95
    assert result.errors == 0.0


@pickers
def test_a_zone_that_loses_half_its_backends_spills_what_is_too_much(
    picker: str,
) -> None:
    """All of it would be 1.0 there; elsewhere it is half of that."""
    result, stayed = play("zone_lost", picker)
    used = of_first_zone(result, left=5)
    assert fmean(used[15:]) == pytest.approx(LEVEL, abs=0.05)
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
    assert fmean(used[5:]) == pytest.approx(LEVEL, abs=0.1)
    assert sum(second > 0.95 for second in used) <= 4  # by chance, with one backend
    assert max(used[:5]) < 0.95
    assert result.errors == 0.0
    assert result.p99 < 0.6
    assert 0.7 < stayed < 0.9


@pickers
def test_a_zone_with_twice_the_load_spills_what_is_too_much(picker: str) -> None:
    """All of it would be 0.9 there; elsewhere it is half of that."""
    result, stayed = play("zone_hot", picker)
    assert fmean(of_first_zone(result)) == pytest.approx(LEVEL, abs=0.05)
    assert max(of_first_zone(result)) < 0.9
    assert result.errors == 0.0
    assert 0.8 < stayed < 0.95


def test_the_spill_is_smooth() -> None:
    """No second differs by more than arrivals by chance and one step of control do."""
    used = of_first_zone(play("zone_lost")[0], left=5)
    assert max(abs(one - other) for one, other in pairwise(used)) < 0.25
