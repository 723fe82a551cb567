"""A simulated overload goes as the pages on it say: figures there, to 0.03."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from lbclient.sim import SCENARIOS, Result, Scenario, simulate
from lbclient.sim.book.overload import FLEET

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("overload.md", "throttling-and-retries.md", "admission.md")
TEXT = "".join((DOCS / page).read_text() for page in PAGES)
AT_ONCE = replace(FLEET, warm_up=10.0, window=15.0)  # no throttle that must remember


def play(scenario: Scenario, load: float, picker: str = "least_loaded") -> Result:
    return simulate(scenario, picker, load=load, seed=1)


def goodput(scenario: Scenario, load: float) -> float:
    """In capacities."""
    return load * (1.0 - play(scenario, load).errors)


def told(row: str) -> list[float]:
    """A row of the page's tables."""
    (cells,) = re.findall(rf"^\| {re.escape(row)} \|(.*)\|$", TEXT, re.MULTILINE)[:1]
    return [float(cell) for cell in cells.split("|")]


@pytest.mark.slow
def test_refusals_that_cost_something_eat_the_capacity() -> None:
    *_, fivefold, tenfold = told("refusals at 0.05, clients that do not throttle")
    assert goodput(AT_ONCE, 5.0) == pytest.approx(fivefold, abs=0.03)
    assert goodput(AT_ONCE, 10.0) == pytest.approx(tenfold, abs=0.03)


@pytest.mark.slow
def test_clients_that_throttle_leave_the_fleet_its_capacity() -> None:
    *_, tenfold = told("goodput, refusals at 0.05, clients that throttle (K = 2)")
    throttling = replace(FLEET, throttle=2.0, window=15.0)
    result = play(throttling, 10.0)
    assert 10.0 * (1.0 - result.errors) == pytest.approx(tenfold, abs=0.03)
    assert 10.0 * result.attempts == pytest.approx(2.0, abs=0.15)
    assert result.throttled == pytest.approx(1.0 - result.attempts, abs=0.01)


@pytest.mark.parametrize("load", [2.0, 10.0])
def test_a_task_serves_what_it_can_where_refusals_are_free(load: float) -> None:
    free = replace(AT_ONCE, refusal_cost=0.0)
    assert goodput(free, load) == pytest.approx(1.0, abs=0.03)
    drowned = replace(free, admission=False)
    assert goodput(drowned, load) < 0.1


@pytest.mark.parametrize("load", [1.5, 4.0])
@pytest.mark.slow
def test_what_waits_unseen_is_refused_by_the_queue_delay(load: float) -> None:
    """docs/simulator.md has these figures."""
    fleet = replace(SCENARIOS["queue_delay"], window=10.0)
    refused = goodput(fleet, load)
    all_refused = (1.0 - load * fleet.refusal_cost) / (1.0 - fleet.refusal_cost)
    assert refused == pytest.approx(all_refused, abs=0.05)
    assert goodput(replace(fleet, admission=False), load) < 0.01


def test_a_burst_is_let_in() -> None:
    """Of a load of 0.8 nothing is refused, though chance makes it more at times."""
    assert play(AT_ONCE, 0.8).errors == 0.0


def test_a_task_that_refuses_all_costs_a_fleet_nothing() -> None:
    """It is asked, refuses, and another one is asked at once, within the budget."""
    fleet = Scenario(
        clients=8, backends=8, subset_size=8, attempts=3, refusing=1,
        warm_up=5.0, window=10.0,
    )  # fmt: skip
    result = play(fleet, 0.5)
    assert result.errors < 0.001
    assert 1.0 < result.attempts < 1.1
    once = play(replace(fleet, attempts=1), 0.5)
    assert once.errors > result.errors


@pytest.mark.slow
def test_all_refusing_retries_stay_below_a_tenth_and_less_if_told() -> None:
    """SRE book, ch. 21: 1.1 times, not three times.

    Retries go elsewhere, so a task does not see those of what it refuses itself: one
    of twelve sees none, and goes on to ask for them.
    """
    fleet = Scenario(
        clients=12, backends=12, subset_size=12, attempts=3, refusing=12,
        warm_up=60.0, window=20.0,
    )  # fmt: skip
    grown, told, boundless = (
        play(each, 0.3, "random").attempts
        for each in (
            fleet,
            replace(fleet, admission=True),
            replace(fleet, retry_ratio=2.0),
        )
    )
    assert 1.09 < grown < 1.11
    assert told == pytest.approx(1.0 + 1 / 12, abs=0.01)
    assert boundless == pytest.approx(3.0)
