"""Forty channels on sixty servers: the connections are those that the numbers promise.

Counted where the servers are, in the kernel's table of connections.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

import lbclient
from lbclient.config import ChannelConfig
from lbclient.core.model import Endpoint, Endpoints
from lbclient.subsets import ALGORITHMS
from lbclient.subsets.properties import Subsets, balance, choose, churn
from tests.waiting import let_pass

CLIENTS, BACKENDS, SIZE = 40, 60, 10

Connections = set[tuple[int, int]]
"""Pairs of the server's port and the client's."""


def counts(of: Connections, ports: list[int]) -> list[int]:
    """How many connections each server has."""
    return [sum(port == server for server, _ in of) for port in ports]


class Fleet:
    """All channels get the same answers; `news` wakes their resolvers."""

    def __init__(self, connections: Callable[..., Connections]) -> None:
        self._connections = connections
        self.tasks: list[Any] = []
        self.channels: list[lbclient.Channel] = []
        self.endpoints: Endpoints = ()
        self.news = asyncio.Event()

    @property
    def ports(self) -> list[int]:
        return [int(task.address.rpartition(":")[2]) for task in self.tasks]

    def publish(self) -> None:
        self.endpoints = tuple(
            Endpoint(task.address, task=number)
            for number, task in enumerate(self.tasks)
        )
        self.news.set()
        self.news = asyncio.Event()

    def __repr__(self) -> str:
        return f"<{len(self.tasks)} servers>"

    async def watch(self) -> AsyncIterator[Endpoints]:
        while True:
            news = self.news
            yield self.endpoints
            await news.wait()

    def connections(self) -> Connections:
        return self._connections(*self.ports)


def promised(backends: int) -> Subsets:
    return choose(ALGORITHMS["rocksteadier"], CLIENTS, backends, SIZE)


@pytest.fixture
async def fleet(
    start: Any, connections: Callable[..., Connections]
) -> AsyncIterator[Fleet]:
    fleet = Fleet(connections)
    fleet.tasks = [await start(lbclient.server) for _ in range(BACKENDS)]
    fleet.publish()
    async with AsyncExitStack() as stack:
        for client in range(CLIENTS):
            config = ChannelConfig(
                task_index=client,
                subset_size=SIZE,
                replace_after=1.5,
                settle_after=1.0,
                max_connect_backoff=0.2,
                health_interval=30.0,  # 400 connections say little in a short test
            )
            channel = lbclient.insecure_channel(fleet, config=config)
            stack.push_async_callback(channel.close)
            channel.get_state(try_to_connect=True)
            fleet.channels.append(channel)
        yield fleet


async def settled(fleet: Fleet, replacements: int, eventually: Any) -> Connections:
    """Waits until every client has a full subset of ready backends and so many more."""

    def has_settled() -> bool:
        states = [channel.statistics() for channel in fleet.channels]
        ready = [b.state for s in states for b in s.backends].count("ready")
        return sum(
            s.replacements for s in states
        ) == replacements and ready == CLIENTS * SIZE == len(fleet.connections())

    await eventually(has_settled, turns=3000)
    await let_pass(0.2)
    assert has_settled()
    return fleet.connections()


def as_promised(fleet: Fleet) -> list[int]:
    """How many connections each server is to have."""
    backends = len(fleet.tasks)
    return list(balance(promised(backends), backends).connections)


async def test_connections_are_as_the_algorithm_says(
    fleet: Fleet, start: Any, eventually: Any
) -> None:
    before = await settled(fleet, 0, eventually)
    assert counts(before, fleet.ports) == as_promised(fleet)

    fleet.tasks.append(await start(lbclient.server))
    fleet.publish()
    await eventually(lambda: counts(fleet.connections(), fleet.ports[-1:]) != [0])
    after = await settled(fleet, 0, eventually)
    assert counts(after, fleet.ports) == as_promised(fleet)
    moved = churn(promised(BACKENDS), promised(BACKENDS + 1))
    assert sum(moved.opened) > 0
    assert len(after - before) == sum(moved.opened)
    assert len(before - after) == sum(moved.dropped)


async def test_a_server_that_dies_is_replaced_until_it_is_back(
    fleet: Fleet, start: Any, eventually: Any
) -> None:
    before = await settled(fleet, 0, eventually)
    port = fleet.ports[7]
    survivors = {pair for pair in before if pair[0] != port}
    await fleet.tasks[7].server.stop(None)
    during = await settled(fleet, len(before - survivors), eventually)
    assert survivors < during  # nobody else moved
    assert counts(during, [port]) == [0]

    fleet.tasks[7] = await start(lbclient.server, port=port)
    after = await settled(fleet, 0, eventually)
    assert survivors < after
    assert counts(after, fleet.ports) == as_promised(fleet)
