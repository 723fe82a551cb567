"""Requests are drawn as the scenario says, once for all pickers."""

from dataclasses import replace
from math import e, log, sqrt
from statistics import fmean

import pytest

from lbclient.sim.scenario import COSTS, Scenario
from lbclient.sim.traffic import (
    LEAST_DEAR,
    MEAN_ABOVE_ZERO,
    MEAN_DEAR,
    MOST_DEAR,
    RARE,
    draw,
    hot_clients,
)

BASE = Scenario(warm_up=10.0, window=20.0)


def test_the_same_seed_draws_the_same_requests() -> None:
    assert draw(BASE, 0.5, seed=3) == draw(BASE, 0.5, seed=3)
    assert draw(BASE, 0.5, seed=3) != draw(BASE, 0.5, seed=4)


def test_the_load_is_a_share_of_all_processors() -> None:
    """To 5 standard deviations of a Poisson count."""
    speeds = replace(BASE, speeds=(1.0, 2.5))
    seconds = speeds.warm_up + speeds.window
    processors = speeds.cores * speeds.backends * fmean(speeds.speeds)
    expected = 0.5 * processors / speeds.cost * seconds
    times = draw(speeds, 0.5, seed=1).times
    assert len(times) == pytest.approx(expected, abs=5 * sqrt(expected))
    assert list(times) == sorted(times)
    assert times[-1] < seconds


def test_a_batch_comes_at_once_from_one_client() -> None:
    batches = replace(BASE, batch=20)
    drawn = draw(batches, 0.5, seed=1)
    groups: dict[float, set[int]] = {}
    for at, client in zip(drawn.times, drawn.clients, strict=True):
        groups.setdefault(at, set()).add(client)
    assert len(drawn.times) == 20 * len(groups)
    assert all(len(clients) == 1 for clients in groups.values())
    expected = batches.rate(0.5) * (batches.warm_up + batches.window)
    deviation = 20 * sqrt(expected / 20)
    assert len(drawn.times) == pytest.approx(expected, abs=5 * deviation)


@pytest.mark.parametrize("costs", COSTS)
def test_costs_have_their_mean(costs: str) -> None:
    """To 5 standard errors. The square of a lognormal of sigma 1 is e on average. A
    normal number of mean and deviation 1 that is above 0 and has the mean m there has
    the variance 1 - (m - 1) m."""
    drawn = draw(replace(BASE, costs=costs), 0.5, seed=1).costs
    dear = (MOST_DEAR**2 - LEAST_DEAR**2) / 2 / log(MOST_DEAR / LEAST_DEAR)
    square = (1.0 - RARE) * e + RARE * dear
    heavy = square / (1.0 - RARE + RARE * MEAN_DEAR) ** 2 - 1.0
    above_zero = (1.0 - (MEAN_ABOVE_ZERO - 1.0) * MEAN_ABOVE_ZERO) / MEAN_ABOVE_ZERO**2
    variance = {
        "lognormal": e - 1,
        "exponential": 1.0,
        "normal": above_zero,
        "heavy": heavy,
        "equal": 0.0,
    }
    error = sqrt(variance[costs] / len(drawn))
    assert fmean(drawn) / BASE.cost == pytest.approx(1.0, abs=5 * error + 1e-9)


def test_hot_clients_send_their_share() -> None:
    """4 of 40 clients send half, to 5 standard deviations of a fair coin."""
    scenario = replace(BASE, hot_share=0.1, hot_traffic=0.5)
    clients = draw(scenario, 0.5, seed=1).clients
    hot = set(hot_clients(scenario, seed=1))
    sent = sum(client in hot for client in clients)
    assert len(hot) == 4
    assert sent / len(clients) == pytest.approx(0.5, abs=2.5 / sqrt(len(clients)))


def test_waits_are_drawn_where_requests_wait() -> None:
    waits = draw(replace(BASE, wait=0.1), 0.5, seed=1).waits
    assert fmean(waits) == pytest.approx(0.1, abs=5 * 0.1 / sqrt(len(waits)))
    assert len(draw(BASE, 0.5, seed=1).waits) == 0


def test_a_higher_load_has_the_same_costs_sooner() -> None:
    low, high = draw(BASE, 0.4, seed=1), draw(BASE, 0.8, seed=1)
    assert low.costs == high.costs[: len(low.costs)]


def test_a_load_that_swings_has_its_parts_one_after_the_other() -> None:
    """To 5 standard deviations of a Poisson count, also where nothing is sent."""
    swings = replace(BASE, swings=(1.5, 0.0, 0.5), swing_lasts=4.0)
    times = draw(swings, 0.5, seed=1).times
    for number in range(7):
        begin = 4.0 * number
        count = sum(begin <= at < begin + 4.0 for at in times)
        expected = 4.0 * swings.rate(0.5) * swings.swings[number % 3]
        assert count == pytest.approx(expected, abs=5 * sqrt(expected))


def test_two_methods_cost_what_one_would_together() -> None:
    equal = replace(BASE, costs="equal", second_share=0.1, second_cost=100.0)
    traffic = draw(equal, 0.5, seed=1)
    first, second = (
        [c for c, m in zip(traffic.costs, traffic.methods, strict=True) if m == method]
        for method in (0, 1)
    )
    assert second[0] == pytest.approx(100.0 * first[0])
    assert len(second) / len(traffic.costs) == pytest.approx(0.1, abs=0.005)
    assert fmean(traffic.costs) == pytest.approx(BASE.cost, rel=0.05)


def test_a_share_of_the_requests_waits() -> None:
    waits = draw(replace(BASE, wait=8.0, waiting_share=0.02), 0.5, seed=1).waits
    waiting = [wait for wait in waits if wait]
    assert len(waiting) / len(waits) == pytest.approx(0.02, abs=0.003)
    assert fmean(waiting) == pytest.approx(8.0, rel=0.1)
