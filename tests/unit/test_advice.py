"""Advice on the size of a subset, against loads that are added up call by call."""

from collections.abc import Collection, Iterator
from itertools import combinations
from random import Random

import pytest

from lbclient.core.errors import ConfigError
from lbclient.subsets.advice import DRAWS, PERCENTILE, Adviser, Bursts
from lbclient.subsets.properties import Subsets, choose


def in_turn(client: int, backends: int, size: int) -> Iterator[int]:
    for place in range(backends):
        yield (client * size + place) % backends


def at_random(client: int, backends: int, size: int) -> Iterator[int]:
    rng = Random(client)
    yield from sorted(range(backends), key=lambda _: rng.random())


def excess(
    subsets: Subsets, backends: int, hot: Collection[int], traffic: float
) -> float:
    """The busiest backend over the mean, where all calls together are 1.0."""
    loads = [0.0] * backends
    for client, chosen in enumerate(subsets):
        if client in hot:
            sent = traffic / len(hot)
        else:
            sent = (1.0 - traffic) / (len(subsets) - len(hot))
        for backend in chosen:
            loads[backend] += sent / len(chosen)
    return max(loads) * backends


def adviser(
    clients: int, backends: int, bursts: Bursts | None = None, seed: int = 1
) -> Adviser:
    return Adviser(at_random, clients, backends, rng=Random(seed), bursts=bursts)


def test_the_excess_of_clients_that_send_alike_is_that_of_connections() -> None:
    # 12 connections on 10 backends: two have 2, where 1.2 is the mean.
    found = Adviser(in_turn, 3, 10, rng=Random(1)).at(4)
    assert found.even == pytest.approx(2 / 1.2)
    assert found.bursty == found.even
    assert found.worst == pytest.approx(found.even)
    assert found.unused == 0


def test_without_bursts_nobody_is_hot() -> None:
    found = adviser(7, 9).at(3)
    subsets = choose(at_random, 7, 9, 3)
    assert found.even == pytest.approx(excess(subsets, 9, range(7), 1.0))
    assert found.bursty == found.worst == pytest.approx(found.even)


@pytest.mark.parametrize("size", [1, 3, 9])
def test_the_worst_is_that_of_the_worst_clients_to_be_hot(size: int) -> None:
    bursts = Bursts(share=0.3, traffic=0.8)
    subsets = choose(at_random, 10, 9, size)
    expected = max(excess(subsets, 9, hot, 0.8) for hot in combinations(range(10), 3))
    assert adviser(10, 9, bursts).at(size).worst == pytest.approx(expected)


def test_most_bursts_are_no_worse_than_what_is_reported() -> None:
    # At most 5 % of all bursts are worse, give or take five standard errors of the
    # 100 draws; fewer where many are equal.
    error = (PERCENTILE * (1 - PERCENTILE) / DRAWS) ** 0.5
    bursts = Bursts(share=0.1, traffic=0.5)
    found = adviser(40, 30, bursts).at(8)
    subsets = choose(at_random, 40, 30, 8)
    rng = Random(2)
    drawn = [excess(subsets, 30, rng.sample(range(40), 4), 0.5) for _ in range(1000)]
    worse = sum(value > found.bursty for value in drawn) / len(drawn)
    assert 0 < worse <= 1 - PERCENTILE + 5 * error
    assert found.even < found.bursty < found.worst


def test_few_clients_need_a_size_that_reaches_every_backend() -> None:
    few = Adviser(in_turn, 10, 100, rng=Random(1))
    assert few.at(9).unused == 10
    found = few.even(2.0)
    assert found.size == 10
    assert found.unused == 0


def test_one_backend_less_would_break_the_limit() -> None:
    even = adviser(30, 60).even(1.25)
    assert even.even <= 1.25 < adviser(30, 60).at(even.size - 1).even


def test_bursts_need_a_larger_subset() -> None:
    bursts = Bursts(share=0.1, traffic=0.5)
    bursty = adviser(30, 60, bursts).bursty(1.25)
    assert bursty.size > adviser(30, 60, bursts).even(1.25).size
    assert bursty.bursty <= 1.25
    assert adviser(30, 60, bursts).at(bursty.size - 1).bursty > 1.25


def test_no_advice_is_below_the_least_size_that_was_asked_for() -> None:
    even = Adviser(in_turn, 50, 50, rng=Random(1))
    assert even.even(1.25).size == 1
    assert even.even(1.25, least=20).size == 20
    assert even.even(1.25, least=99).size == 50


def test_all_backends_keep_any_limit() -> None:
    bursts = Bursts(share=0.1, traffic=1.0)
    found = adviser(11, 13, bursts).bursty(1.0)
    assert found.size == 13
    assert found.bursty == pytest.approx(1.0)


def test_one_seed_gives_one_advice() -> None:
    def bursty(seed: int) -> float:
        return adviser(20, 30, Bursts(share=0.2, traffic=0.6), seed).at(5).bursty

    assert bursty(1) == bursty(1)
    assert len({bursty(seed) for seed in range(10)}) > 1


def test_the_hot_clients_are_whole_ones_and_at_least_one() -> None:
    assert Bursts(0.1, 0.5).hot(40) == 4
    assert Bursts(0.1, 0.5).hot(3) == 1
    assert Bursts(1.0, 1.0).hot(3) == 3


def test_what_clients_send_is_one_each_on_average() -> None:
    hot, other = Bursts(0.1, 0.5).rates(40)
    assert hot / other == pytest.approx((0.5 / 4) / (0.5 / 36))
    assert (4 * hot + 36 * other) / 40 == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("share", "traffic", "complaint"),
    [
        (0.0, 0.5, "hot_share = 0.0: want a number above 0, at most 1"),
        (1.1, 0.5, "hot_share = 1.1: want a number above 0, at most 1"),
        (float("nan"), 0.5, "hot_share = nan: want a number above 0, at most 1"),
        (0.1, 1.5, "hot_traffic = 1.5: want a number above 0, at most 1"),
        (0.4, 0.3, "hot_traffic = 0.3: want at least 0.4: 4 of 10 clients are hot"),
        (0.01, 0.05, "hot_traffic = 0.05: want at least 0.1: 1 of 10 clients are hot"),
    ],
)
def test_bursts_that_cannot_be_are_refused(
    share: float, traffic: float, complaint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        adviser(10, 10, Bursts(share, traffic))
    assert str(caught.value) == complaint
