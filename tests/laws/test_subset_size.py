"""Few clients that send most of the traffic, and their neighbours."""

from collections import Counter
from random import Random

import pytest

from lbclient.core.backends.subset_size import SHARE, SHRINK_PAUSE, SubsetSize
from lbclient.subsets import subset

LOOK = 10.0  # seconds


class Fleet:
    """Each client sends as much to each backend of its subset."""

    def __init__(
        self, rates: list[float], backends: int, least: int, *, numbered: bool = False
    ) -> None:
        """Subsets are by chance, or by rocksteadier if clients are `numbered`."""
        rng = Random(7)
        self.now = 0.0
        self.rates = rates
        self.backends = backends
        self.orders = [
            subset("rocksteadier", client, backends, backends)
            if numbered
            else rng.sample(range(backends), backends)
            for client in range(len(rates))
        ]
        self.sizes = [SubsetSize(least, 100) for _ in rates]

    def subset(self, client: int) -> list[int]:
        return self.orders[client][: self.sizes[client].size]

    def served(self) -> list[float]:
        """Requests a second of each backend."""
        served = [0.0] * self.backends
        for client, rate in enumerate(self.rates):
            subset = self.subset(client)
            for backend in subset:
                served[backend] += rate / len(subset)
        return served

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / LOOK)):
            self.now += LOOK
            served = self.served()
            for client, (rate, size) in enumerate(
                zip(self.rates, self.sizes, strict=True)
            ):
                theirs = sum(served[backend] for backend in self.subset(client))
                size.follow(rate, theirs, self.backends, self.now)

    def busiest(self) -> float:
        served = self.served()
        return max(served) * len(served) / sum(served)

    def connections(self) -> Counter[int]:
        """Of each backend."""
        return Counter(
            backend
            for client in range(len(self.rates))
            for backend in self.subset(client)
        )


def busiest(connections: Counter[int], backends: int) -> float:
    """Its connections, over the mean."""
    return max(connections.values()) / (connections.total() / backends)


# A twentieth of 200 clients, which sends 80 % of all requests.
FEW_SEND_MOST = [80.0 / 10] * 10 + [20.0 / 190] * 190


def test_of_few_that_send_most_the_load_becomes_even() -> None:
    """Subsets of 10 of 40 backends."""
    fleet = Fleet(FEW_SEND_MOST, backends=40, least=10)
    assert fleet.busiest() > 1.5
    connections = fleet.connections()
    fleet.run(120.0)
    assert fleet.busiest() < 1.25
    assert {size.size for size in fleet.sizes[10:]} == {10}
    assert fleet.connections().total() < 1.2 * connections.total()


# By chance, and by number; over the mean, before and after they have grown.
CONNECTIONS = [
    (40, 10, False, 1.180, 1.189),
    (40, 10, True, 1.000, 1.009),
    (305, 20, False, 1.830, 1.652),
    (305, 20, True, 1.068, 1.080),
]


@pytest.mark.parametrize(
    ("backends", "least", "numbered", "before", "after"), CONNECTIONS
)
def test_connections_stay_as_even_as_they_were_when_subsets_grow(
    backends: int, least: int, numbered: bool, before: float, after: float
) -> None:
    """docs/subsetting.md has these figures."""
    fleet = Fleet(FEW_SEND_MOST, backends, least, numbered=numbered)
    at_first = busiest(fleet.connections(), backends)
    fleet.run(120.0)
    grown = busiest(fleet.connections(), backends)
    assert (at_first, grown) == pytest.approx((before, after), abs=0.001)


def test_equal_clients_that_are_many_keep_their_subsets() -> None:
    fleet = Fleet([1.0] * 200, backends=305, least=20)
    fleet.run(600.0)
    assert {size.size for size in fleet.sizes} == {20}


@pytest.mark.parametrize("backends", [40, 400])
def test_a_client_alone_takes_all_or_as_many_as_it_may(backends: int) -> None:
    fleet = Fleet([1.0], backends, least=20)
    fleet.run(120.0)
    assert fleet.sizes[0].size == min(100, backends)


def test_it_shrinks_slowly_when_others_send_more() -> None:
    size = SubsetSize(20, 100)
    now = 0.0
    while size.size < 100:
        now += LOOK
        size.follow(10.0, 10.0, 1000, now)
    grown_at = now
    sizes = []
    while size.size > 20:
        now += LOOK
        sizes.append(size.follow(10.0, 10_000.0, 1000, now))
        assert now < grown_at + 20 * SHRINK_PAUSE
    looks = int(SHRINK_PAUSE / LOOK) - 1
    assert sizes[:looks] == [100] * looks


def test_near_the_share_it_neither_grows_nor_shrinks() -> None:
    size = SubsetSize(20, 100)
    for now in (0.0, LOOK):
        size.follow(30.0, 200.0, 1000, now)
    grown = size.size
    assert grown > 20
    for share in (0.6 * SHARE, SHARE):
        size.follow(share * 1000.0, 1000.0, 1000, 10 * SHRINK_PAUSE)
        assert size.size == grown


def test_who_knows_of_no_traffic_changes_nothing() -> None:
    size = SubsetSize(20, 100)
    assert {size.follow(30.0, 0.0, 1000, now) for now in (0.0, LOOK, 2 * LOOK)} == {20}


def test_a_large_share_that_is_seen_once_is_chance() -> None:
    """As while the traffic falls: reports tell it sooner than a mean of 10 s."""
    size = SubsetSize(20, 100)
    for now in range(100):
        share = 0.12 if now % 2 else 0.06
        assert size.follow(share * 1000.0, 1000.0, 1000, now * LOOK) == 20


def test_it_grows_no_further_than_there_are_backends() -> None:
    size = SubsetSize(20, 100)
    for now in range(100):
        size.follow(10.0, 10.0, 6, now * LOOK)
    assert size.size == 20
