"""Clients that each choose by chance, and leave crowds, are even before long."""

from collections import Counter
from random import Random

import pytest

from lbclient.core.crowding import FEW, PAUSE, SLACK, Crowding
from lbclient.core.model import Endpoint, State
from lbclient.core.pool import Change, Limits, Pool
from lbclient.subsets import Rendezvous
from lbclient.testing import FakeNode

STEP = 1.0  # seconds, in which reports come
MINUTE = 60.0


class Client:
    def __init__(self, pool: Pool[FakeNode], rng: Random) -> None:
        self.pool = pool
        self.crowding = Crowding(rng)
        self.due = self.crowding.pause()


class Fleet:
    """`opened` counts the connections that clients ever opened."""

    def __init__(self, clients: int, backends: int, size: int, seed: int) -> None:
        self.now = 0.0
        self.opened = 0
        self.backends = backends
        rng = Random(seed)
        limits = Limits(size, 100, 1.0, 10.0, size)
        self.clients = [
            Client(Pool(FakeNode, Rendezvous(f"{seed}/{number}"), limits), rng)
            for number in range(clients)
        ]
        self.resize(backends)

    def resize(self, backends: int) -> None:
        self.backends = backends
        endpoints = tuple(Endpoint(f"b{number}:1") for number in range(backends))
        for client in self.clients:
            change = client.pool.reconcile(endpoints, self.now)
            client.crowding.connected(len(change.opened))
            client.due = self.now + client.crowding.pause()
            self.connect(client, change)

    def connect(self, client: Client, change: Change[FakeNode]) -> None:
        self.opened += len(change.opened)
        for node in change.opened:
            client.pool.observe(node, State.READY, self.now)
        client.pool.review(self.now)

    def counts(self) -> Counter[str]:
        return Counter(a for client in self.clients for a in client.pool.nodes)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP)):
            self.now += STEP
            counts = self.counts()  # all know the same, as reports take a while
            for client in self.clients:
                if self.now >= client.due:
                    self.look(client, counts)

    def look(self, client: Client, counts: Counter[str]) -> None:
        pool = client.pool
        told = {address: counts[address] for address in pool.nodes}
        if leaving := client.crowding.to_leave(told):
            self.connect(client, pool.avoid(leaving, self.now))
        client.due = self.now + client.crowding.pause()

    def busiest(self) -> float:
        """Its clients, over the mean."""
        counts = self.counts()
        return max(counts.values()) / (counts.total() / self.backends)


@pytest.mark.parametrize("seed", range(3))
def test_in_a_minute_the_busiest_has_little_more_than_the_mean(seed: int) -> None:
    fleet = Fleet(clients=200, backends=305, size=20, seed=seed)
    opened = fleet.opened
    assert fleet.busiest() > 1.5
    fleet.run(MINUTE)
    assert fleet.busiest() <= 1.25
    assert fleet.opened - opened <= 0.15 * opened
    assert {len(client.pool.nodes) for client in fleet.clients} == {20}


@pytest.mark.parametrize("backends", [306, 320, 290, 350])
def test_a_resize_opens_little_more_than_it_must(backends: int) -> None:
    plain, even = (Fleet(200, 305, 20, seed=1) for _ in range(2))
    even.run(5 * MINUTE)
    before = even.opened, plain.opened
    for fleet in (even, plain):
        fleet.resize(backends)
    even.run(2 * MINUTE)
    opened, must = even.opened - before[0], plain.opened - before[1]
    assert must <= opened <= 1.5 * must
    assert even.busiest() <= 1.25


def test_it_comes_to_rest() -> None:
    fleet = Fleet(clients=60, backends=40, size=20, seed=1)
    fleet.run(10 * MINUTE)
    opened = fleet.opened
    fleet.run(10 * MINUTE)
    assert fleet.opened - opened <= 2
    assert fleet.busiest() <= SLACK


def test_few_clients_are_no_crowd() -> None:
    crowding = Crowding(Random(1))
    crowding.connected(20)
    told = {"a:1": 1, "b:1": 1, "c:1": 1 + int(FEW)}
    assert not any(crowding.to_leave(told) for _ in range(100))
    assert crowding.pause() > PAUSE


def test_all_of_a_crowd_do_not_leave_at_once() -> None:
    told = {"a:1": 10, "b:1": 10, "c:1": 10, "d:1": 20}
    clients = [Crowding(Random(seed)) for seed in range(1000)]
    for client in clients:
        client.connected(4)
    left = [client.to_leave(told) for client in clients]
    excess = (20 - SLACK * 4 / (3 / 10 + 1 / 20)) / 20
    assert left.count(["d:1"]) / len(left) == pytest.approx(excess, abs=0.05)
    assert left.count([]) + left.count(["d:1"]) == len(left)
