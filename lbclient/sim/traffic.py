"""The requests: when each comes, from which client, and what it costs.

Drawn once for a seed and then given to every picker, so that pickers differ by what
they did and not by luck. Flat arrays: a minute has a million.
"""

from array import array
from bisect import bisect
from itertools import accumulate
from math import exp, log
from random import Random
from statistics import NormalDist
from typing import NamedTuple

from lbclient.sim.scenario import Scenario

RARE, LEAST_DEAR, MOST_DEAR = 0.01, 100.0, 1000.0  # of "heavy" costs
# Of a log-uniform number its mean: (b - a) / ln(b / a), here 391.
MEAN_DEAR = (MOST_DEAR - LEAST_DEAR) / log(MOST_DEAR / LEAST_DEAR)
# Of a normal number of mean 1 and deviation 1, where it is above 0, the mean.
MEAN_ABOVE_ZERO = 1.0 + NormalDist().pdf(1.0) / NormalDist().cdf(1.0)


class Traffic(NamedTuple):
    """Parallel arrays, by the number of a request; `waits` is empty if none waits,
    `keys` if requests have none, and `methods` if there is one alone."""

    times: "array[float]"
    clients: "array[int]"
    costs: "array[float]"
    waits: "array[float]"
    keys: "array[int]" = array("L")  # from 0; empty if there are none
    methods: "array[int]" = array("B")  # 0 and 1


def draw(scenario: Scenario, load: float, seed: int) -> Traffic:
    """A Poisson process for as long as the scenario lasts; with swings of the load its
    rate swings.

    Costs have draws of their own: they stay the same when the load changes.
    """
    times = array("d")
    rate = scenario.rate(load) / scenario.batch
    rng = Random(f"{seed}/times")
    end = scenario.warm_up + scenario.window
    now, (swing, until) = 0.0, scenario.swing_at(0.0)
    while True:
        due = -log(1.0 - rng.random()) / rate
        while (left := (until - now) * swing) < due and until < end:
            due -= left
            now, (swing, until) = until, scenario.swing_at(until)
        now = now + due / swing if swing else end
        if now >= end:
            break
        times.extend([now] * scenario.batch)
    count = len(times)
    methods = _methods(scenario, count, Random(f"{seed}/methods"))
    costs = _costs(scenario, count, Random(f"{seed}/costs"))
    return Traffic(
        times,
        _batched(_clients(scenario, count, seed), scenario.batch),
        _by_method(scenario, costs, methods),
        _waits(scenario, count, Random(f"{seed}/waits")),
        _keys(scenario, count, Random(f"{seed}/keys")),
        methods,
    )


def hot_clients(scenario: Scenario, seed: int) -> list[int]:
    number = round(scenario.hot_share * scenario.clients)
    return Random(f"{seed}/hot").sample(range(scenario.clients), number)


def _clients(scenario: Scenario, count: int, seed: int) -> "array[int]":
    hot = hot_clients(scenario, seed)
    random = Random(f"{seed}/clients").random
    number = scenario.clients
    if scenario.has_zone_traffic:
        *upto, total = accumulate(scenario.sends(client) for client in range(number))
        return array("H", (bisect(upto, random() * total) for _ in range(count)))
    if not 0 < len(hot) < number:
        return array("H", (int(random() * number) for _ in range(count)))
    shares = [(1.0 - scenario.hot_traffic) / (number - len(hot))] * number
    for client in hot:
        shares[client] = scenario.hot_traffic / len(hot)
    *upto, _ = accumulate(shares)
    return array("H", (bisect(upto, random()) for _ in range(count)))


def _batched(clients: "array[int]", batch: int) -> "array[int]":
    """All of a batch are the first one's."""
    if batch == 1:
        return clients
    return array("H", (clients[i - i % batch] for i in range(len(clients))))


def _costs(scenario: Scenario, count: int, rng: Random) -> "array[float]":
    mean = scenario.cost
    match scenario.costs:
        case "equal":
            return array("d", [mean]) * count
        case "exponential":
            return array("d", (-mean * log(1.0 - rng.random()) for _ in range(count)))
        case "normal":
            scale = mean / MEAN_ABOVE_ZERO
            return array("d", (scale * _above_zero(rng) for _ in range(count)))
        case "heavy":
            usual = mean / (1.0 - RARE + RARE * MEAN_DEAR)
            return array("d", (usual * _heavy(rng) for _ in range(count)))
        case _:
            return array("d", (mean * _lognormal(rng) for _ in range(count)))


def _lognormal(rng: Random) -> float:
    """Sigma 1, mean 1."""
    return exp(rng.gauss(-0.5, 1.0))


def _above_zero(rng: Random) -> float:
    """Normal, mean and deviation 1, drawn again where it is not above 0."""
    while (drawn := rng.gauss(1.0, 1.0)) <= 0.0:
        pass
    return drawn


def _heavy(rng: Random) -> float:
    if rng.random() >= RARE:
        return _lognormal(rng)
    span = MOST_DEAR / LEAST_DEAR
    return float(LEAST_DEAR * span ** rng.random())


def _waits(scenario: Scenario, count: int, rng: Random) -> "array[float]":
    if not scenario.wait:
        return array("d")
    mean, share = scenario.wait, scenario.waiting_share
    if share == 1.0:
        return array("d", (-mean * log(1.0 - rng.random()) for _ in range(count)))
    waits = array("d", [0.0]) * count
    for number in range(count):
        if rng.random() < share:
            waits[number] = -mean * log(1.0 - rng.random())
    return waits


def _methods(scenario: Scenario, count: int, rng: Random) -> "array[int]":
    share = scenario.second_share
    if not share:
        return array("B")
    return array("B", (rng.random() < share for _ in range(count)))


def _by_method(
    scenario: Scenario, costs: "array[float]", methods: "array[int]"
) -> "array[float]":
    """Each method's, with the mean of all as it was."""
    if not methods:
        return costs
    share, times = scenario.second_share, scenario.second_cost
    first = 1.0 / (1.0 - share + share * times)
    by = first, first * times
    both = zip(costs, methods, strict=True)
    return array("d", (cost * by[method] for cost, method in both))


def key_shares(scenario: Scenario) -> list[float]:
    """The share of all requests that each key has: Zipf's law."""
    sizes = [place**-scenario.key_skew for place in range(1, scenario.keys + 1)]
    total = sum(sizes)
    return [size / total for size in sizes]


def key_name(seed: int, number: int) -> str:
    """Other keys for each seed, so that other backends are hot."""
    return f"key-{seed}-{number}"


def _keys(scenario: Scenario, count: int, rng: Random) -> "array[int]":
    if not scenario.keys:
        return array("L")
    *upto, _ = accumulate(key_shares(scenario))
    return array("L", (bisect(upto, rng.random()) for _ in range(count)))
