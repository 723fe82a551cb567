"""Picks where one backend answers late, or all do: in virtual time, seeded."""

from random import Random

import pytest

from lbclient.pickers import PICKERS
from tests.laws.outlier_fleet import LATENCY, Answer, Behaviour, Fleet, from_then_on

every_picker = pytest.mark.parametrize(
    "picker",
    [
        pytest.param(
            name, marks=() if name == "weighted_least_loaded" else pytest.mark.slow
        )
        for name in PICKERS
    ],
)

BEGINS = 30.0  # seconds
SOON = 5.0  # seconds, likewise


def late(factors: list[float]) -> Behaviour:
    """Each backend takes so many times as long."""

    def behave(backend: int, _: float, rng: Random) -> Answer:
        return Answer(latency=factors[backend] * LATENCY * rng.lognormvariate(0.0, 0.5))

    return behave


WELL = [1.0] * 10


def fleet_of(picker: str, before: list[float], after: list[float]) -> Fleet:
    """Ten backends, each of which gets 20 calls a second."""
    behaviour = from_then_on(BEGINS, late(before), late(after))
    fleet = Fleet(behaviour, picker, backends=10, rate=200.0, utilization=0.3)
    return fleet.run(BEGINS)


@every_picker
@pytest.mark.slow
def test_one_that_answers_late_gets_next_to_no_calls_within_5_s(picker: str) -> None:
    """Where pickers send it few calls in any case, they tell little of it."""
    fleet = fleet_of(picker, WELL, [10.0, *WELL[1:]]).run(SOON)
    fleet.run(40.0)
    assert fleet.got[0] < 0.02 * sum(fleet.got.values())
    fleet.behaviour = late(WELL)
    fleet.run(120.0)  # until the next trial call, and its errors are forgotten
    assert fleet.ejected() == []
    assert fleet.run(40.0).shares()[0] >= 0.8


@pytest.mark.slow
@every_picker
def test_none_is_singled_out_where_all_are_late(picker: str) -> None:
    fleet = fleet_of(picker, WELL, [10.0] * 10)
    for _ in range(60):
        fleet.run(1.0)
        assert not fleet.outliers.total
    assert min(fleet.run(40.0).shares()) >= 0.7


@pytest.mark.slow
@every_picker
def test_machines_that_are_slow_by_nature_are_not_ejected(picker: str) -> None:
    slow = [4.0] * 3 + [1.0] * 7
    fleet = fleet_of(picker, slow, slow)
    assert not fleet.run(120.0).outliers.total
