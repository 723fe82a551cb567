"""A server that wants another connection says GOAWAY, and ends its calls in peace."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import grpc
import pytest

import lbclient
from lbclient import wire
from tests.hosts import add_methods, unary_stream
from tests.wire.delay import Delay

# grpcio adds a tenth of jitter to the age. The grace outlives the test.
AGED = [
    ("grpc.max_connection_age_ms", 300),
    ("grpc.max_connection_age_grace_ms", 60_000),
]


def aged() -> Any:
    return lbclient.server(options=AGED)


def changes(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log tells of states, without the addresses."""
    lines = [record.getMessage() for record in caplog.records]
    return [line.partition(" is ")[2] for line in lines if " (was " in line]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, "lbclient.balancer")
    return lambda: changes(caplog)


async def test_goaway_makes_a_lame_duck_that_is_back_by_a_new_connection(
    start: Any, search: Any, eventually: Any, told: Callable[[], list[str]]
) -> None:
    """Nobody calls, so nobody but the connection itself can have found it out."""
    task = await start(aged)
    async with lbclient.insecure_channel(task.address) as channel:
        await channel.channel_ready()
        await eventually(lambda: len(told()) >= 3)
        lost, back = "lame duck (was ready): it sent GOAWAY", "it says serving"
        assert told()[:3] == [
            f"ready (was connecting): {back}",
            lost,
            f"ready (was lame duck): {back}",
        ]
        assert (await search.SearchStub(channel).Search(search.Query())).text


async def test_goaway_costs_no_call_of_those_that_run_nor_of_those_that_come(
    start: Any, search: Any, eventually: Any, told: Callable[[], list[str]]
) -> None:
    task = await start(aged)
    async with lbclient.insecure_channel(task.address) as channel:
        stub = search.SearchStub(channel)
        running = [stub.Search(search.Query(text="sleep 1"), timeout=10)]
        short = 0
        while not running[0].done():
            await stub.Search(search.Query(), timeout=10)
            short += 1
            await asyncio.sleep(0.005)
        await running[0]
        assert sum("(was ready)" in change for change in told()) >= 2
        assert channel.statistics().calls == {"OK": short + 1}


async def test_who_is_back_at_once_is_not_replaced(
    start: Any, search: Any, eventually: Any, told: Callable[[], list[str]]
) -> None:
    """Else every connection that comes of age would cost two.

    Who comes and goes for as long as `replace_after` is replaced, and should be.
    """
    tasks = [await start(aged), await start(aged)]
    target = "ipv4:" + ",".join(task.address for task in tasks)
    config = lbclient.ChannelConfig(subset_size=1, client_id="one", replace_after=60)
    async with lbclient.insecure_channel(target, config=config) as channel:
        await channel.channel_ready()
        await eventually(lambda: sum("GOAWAY" in change for change in told()) >= 3)
        assert len(channel.statistics().backends) == 1


async def test_a_connection_that_breaks_is_no_goaway(
    start: Any, search: Any, eventually: Any, told: Callable[[], list[str]]
) -> None:
    """Not by stopping the server, which may find the time to say so."""
    task = await start(lbclient.server)
    async with Delay(int(task.address.rpartition(":")[2]), 0.0) as between:
        channel = lbclient.insecure_channel(between.address)
        await search.SearchStub(channel).Search(search.Query())
    async with channel:
        await eventually(lambda: any("refusing" in change for change in told()))
        assert not any("GOAWAY" in change for change in told())


async def test_a_server_of_others_that_stops_in_peace_sends_goaway(
    start: Any, search: Any, eventually: Any, told: Callable[[], list[str]]
) -> None:
    """A plain grpc.aio server with grpc.health.v1, which does not say that it goes."""

    async def watch(request: bytes, context: Any) -> None:
        await context.write(b"\x08\x01")  # SERVING
        await asyncio.sleep(60)

    methods = {wire.SERVING_WATCH_METHOD: unary_stream(watch)}
    task = await start(lambda: add_methods(grpc.aio.server(), methods))
    async with lbclient.insecure_channel(task.address) as channel:
        stub = search.SearchStub(channel)
        await stub.Search(search.Query())
        await eventually(lambda: len(told()) == 1)
        running = stub.Search(search.Query(text="sleep 0.2"), timeout=10)
        await eventually(lambda: task.servicer.served == 2)
        stopping = asyncio.create_task(task.server.stop(1))
        assert (await running).text
        await eventually(lambda: any("refusing" in change for change in told()))
        await stopping
    assert any("it sent GOAWAY" in change for change in told())
