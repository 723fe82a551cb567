"""SRV records, asked of a real name server on loopback."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from random import Random
from typing import Any

import pytest

import lbclient
from lbclient.core.errors import ResolveError
from lbclient.core.model import Endpoints
from lbclient.resolvers import Srv
from lbclient.resolvers.name_servers import NameServers
from lbclient.subsets.numbered import number
from tests.wire.name_server import NameServer, name_server

NAME = "_grpc._tcp.search.test"


@pytest.fixture
async def server() -> AsyncIterator[NameServer]:
    async with name_server() as server:
        yield server


def resolver(server: NameServer) -> Srv:
    asked = NameServers(server.resolver, Path("/dev/null"))
    return Srv(NAME, 10.0, Random(7), asked.services)


async def once(server: NameServer, *records: str) -> Endpoints:
    server.records[NAME, "SRV"] = list(records)
    async with aclosing(resolver(server).watch()) as watch:
        return await anext(watch)


async def test_a_record_is_a_host_and_a_port(server: NameServer) -> None:
    endpoints = await once(server, "0 5 7001 b.test.", "0 5 7000 a.test.")
    assert endpoints == (
        lbclient.Endpoint("a.test.:7000"),
        lbclient.Endpoint("b.test.:7001"),
    )


async def test_pods_of_a_stateful_set_are_known_by_number(server: NameServer) -> None:
    order = list(range(12))
    random.Random(7).shuffle(order)
    host = "search-{}.search.prod.svc.cluster.local."
    records = [f"0 8 50051 {host.format(task)}" for task in order]
    numbering = number(await once(server, *records))
    assert str(numbering) == "12 numbered backends"
    for task, backend in enumerate(numbering.backends):
        assert backend is not None
        assert backend.address == f"{host.format(task)}:50051"


async def test_priorities_are_told_in_their_order(server: NameServer) -> None:
    endpoints = await once(server, "20 1 1 far.test.", "10 1 1 near.test.")
    told = [(endpoint.address, endpoint.priority) for endpoint in endpoints]
    assert told == [("far.test.:1", 1), ("near.test.:1", 0)]


async def test_weights_are_relative_and_none_is_nothing(server: NameServer) -> None:
    records = ["0 0 1 a.test.", "0 30 1 b.test.", "0 60 1 c.test."]
    endpoints = await once(server, *records)
    assert [endpoint.weight for endpoint in endpoints] == [0.01, 1.0, 2.0]
    endpoints = await once(server, *records[:1])
    assert [endpoint.weight for endpoint in endpoints] == [1.0]


@pytest.mark.parametrize(
    "record",
    ["0 0 0 .", "0 0 0 a.test.", r"0 0 1 unix:\/run\/a.test.", r"0 0 1 a\032b.test."],
)
async def test_what_cannot_be_dialled_is_left_out(
    server: NameServer, record: str
) -> None:
    assert await once(server, record) == ()
    endpoints = await once(server, record, "5 0 1 good.test.")
    assert [endpoint.address for endpoint in endpoints] == ["good.test.:1"]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("SERVFAIL", "SERVFAIL"),
        ("NXDOMAIN", "does not exist"),
        ("silence", "timed out"),
    ],
)
async def test_an_error_says_who_and_how(
    server: NameServer, how: str, words: str
) -> None:
    server.fails = {"SRV": how}
    server.patience = 0.3 if how == "silence" else server.patience
    with pytest.raises(ResolveError, match=f"DNS lookup of '{NAME}' failed: .*{words}"):
        await once(server)


async def test_no_record_is_an_empty_answer(server: NameServer) -> None:
    assert await once(server) == ()


async def test_a_channel_calls_the_hosts_by_their_names(
    server: NameServer,
    start: Callable[..., Awaitable[Any]],
    search: Any,
    eventually: Callable[..., Awaitable[None]],
) -> None:
    tasks = [await start(lbclient.server) for _ in range(3)]
    ports = [task.address.rpartition(":")[2] for task in tasks]
    # Whatever ends in localhost is this machine (RFC 6761).
    records = [f"0 1 {port} b-{task}.localhost." for task, port in enumerate(ports)]
    server.records[NAME, "SRV"] = records[:2]
    config = lbclient.ChannelConfig(task_index=0, slow_start=0.0)
    async with lbclient.insecure_channel(resolver(server), config=config) as channel:
        stub = search.SearchStub(channel)

        async def call_until_served(count: int) -> None:
            for _ in range(500):
                await stub.Search(search.Query(), timeout=5)
                if sum(task.servicer.served > 0 for task in tasks) == count:
                    return
            pytest.fail(f"{[task.servicer.served for task in tasks]}")

        await call_until_served(2)
        assert "2 numbered backends" in channel.statistics().subset
        server.records[NAME, "SRV"] = records
        await eventually(lambda: len(channel.statistics().backends) == 3)
        await call_until_served(3)
