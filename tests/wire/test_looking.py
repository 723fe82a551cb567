"""What can be seen of real channels and servers while they work."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

import lbclient
from lbclient.core.statistics.recent import LOOK
from lbclient.core.statistics.registry import CHANNELS, SERVERS
from tests.hosts import hosting

Eventually = Callable[..., Awaitable[None]]


def numbers(census: Any, one: object) -> list[int]:
    return [number for number, known in census.present() if known is one]


async def test_open_channels_and_servers_are_known_by_themselves(
    start: Any, search: Any
) -> None:
    task = await start(lbclient.server)
    async with lbclient.insecure_channel(task.address) as channel:
        await search.SearchStub(channel).Search(search.Query(), timeout=5)
        assert len(numbers(CHANNELS, channel)) == 1
        assert len(numbers(SERVERS, task.server)) == 1
    assert numbers(CHANNELS, channel) == []
    await task.server.stop(None)
    assert numbers(SERVERS, task.server) == []


async def test_to_be_known_keeps_no_channel_alive() -> None:
    before = len(CHANNELS.present())
    lbclient.insecure_channel("127.0.0.1:1")
    gc.collect()
    assert len(CHANNELS.present()) <= before


async def test_the_last_error_of_a_backend_is_told_by_connection_and_by_call(
    start: Any, search: Any, eventually: Eventually
) -> None:
    well, ill = await start(lbclient.server), await start(lbclient.server)
    target = f"ipv4:{well.address},{ill.address}"
    config = lbclient.ChannelConfig(picker="round_robin")
    async with lbclient.insecure_channel(target, config=config) as channel:
        stub = search.SearchStub(channel)

        def seen(task: Any) -> lbclient.BackendStatistics:
            backends = channel.statistics().backends
            return next(b for b in backends if b.address == task.address)

        await channel.channel_ready()
        await eventually(lambda: len(channel.balancer().pool.ready) == 2)
        assert seen(well).last_error == ""
        assert seen(well).last_error_age is None
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.Search(search.Query(text="fail"), timeout=5)
        told = {seen(well).last_error, seen(ill).last_error}
        assert "a call ended with INTERNAL" in told
        await ill.server.stop(None)
        await eventually(lambda: "refused" in seen(ill).last_error)
        age = seen(ill).last_error_age
        assert age is not None
        assert age < 10


async def test_why_a_backend_is_in_the_subset_is_told(
    start: Any, eventually: Eventually
) -> None:
    tasks = [await start(lbclient.server) for _ in range(3)]
    target = "ipv4:" + ",".join(task.address for task in tasks)
    config = lbclient.ChannelConfig(subset_size=2, replace_after=0.1)
    async with lbclient.insecure_channel(target, config=config) as channel:
        await channel.channel_ready()
        await eventually(lambda: len(channel.balancer().pool.ready) == 2)
        first, second = channel.statistics().backends
        assert (first.why, second.why) == ("choice 1 of 3", "choice 2 of 3")
        gone = next(task for task in tasks if task.address == first.address)
        await gone.server.stop(None)
        await eventually(lambda: len(channel.statistics().backends) == 3)
        third = channel.statistics().backends[-1]
        assert third.why == "stands in for another: choice 3 of 3"


async def test_picks_and_latencies_are_kept_only_while_somebody_looks(
    start: Any, search: Any
) -> None:
    now = 0.0
    tasks = [await start(lbclient.server) for _ in range(2)]
    target = "ipv4:" + ",".join(task.address for task in tasks)
    async with lbclient.insecure_channel(target) as channel:
        stub, balancer = search.SearchStub(channel), channel.balancer()
        await stub.Search(search.Query(), timeout=5)
        assert balancer.picks.recent is None
        balancer.picks.keep()
        tasks[0].server._keep_recent()
        tasks[1].server._keep_recent()
        for _ in range(4):
            call = stub.Search(search.Query(), timeout=5)
            await call
            await asyncio.sleep(0.02)
        recent = balancer.picks.keep()
        assert recent.picks[-1].backend == lbclient.info(call).backend
        assert "in flight" in recent.picks[-1].because or "ready" in str(recent.picks)
        now = balancer.clock()
        assert recent.of(recent.picks[-1].backend).quantiles(now, 0.5) != [None]
        kept = [task.server._reporter._tally.recent for task in tasks]
        assert any(r.latencies.quantiles(now, 0.5) != [None] for r in kept)
        recent._until = now - LOOK  # nobody has looked for long
        await stub.Search(search.Query(), timeout=5)
        assert balancer.picks.recent is None


async def test_a_server_tells_where_it_listens_and_what_its_signals_say() -> None:
    hosted = hosting(signals={"disk": lambda: 0.5}, max_cpu=0.9)
    async with hosted as (server, address, _):
        seen = server.statistics()
    assert seen.ports == (address,)
    assert "grpc.health.v1.Health" in seen.services
    signals = {signal.name: signal for signal in seen.signals}
    assert signals["disk"].value == 0.5
    assert signals["CPU utilization"].target == 0.9
    assert set(seen.admitted.values()) == {1.0}
