"""Calls that cannot be sent at once: whose turn it is, and what they are told."""

import asyncio
import socket
from typing import Any

import grpc
import pytest

import lbclient
from lbclient.config import ChannelConfig
from lbclient.grpc_seam import BackendsFull, DeadlineWhileWaiting, NoBackend


def closed_port() -> str:
    """An address at which nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{sock.getsockname()[1]}"


async def test_at_most_the_active_limit_is_in_flight_and_the_rest_wait_their_turn(
    start: Any, search: Any
) -> None:
    task = await start()
    config = ChannelConfig(active_limit=2)
    async with lbclient.insecure_channel(task.address, config=config) as channel:
        await channel.channel_ready()
        stub = search.SearchStub(channel)
        order: list[int] = []
        calls = []
        for number in range(7):
            call = stub.Search(search.Query(text="sleep 0.03"), timeout=5)
            call.add_done_callback(lambda _, number=number: order.append(number))
            calls.append(call)
        seen = channel.statistics()
        assert (seen.in_flight, seen.waiting) == (2, 5)
        await asyncio.gather(*calls)
        assert {n // 2 for n in order[:2]} == {0}
        assert order.index(6) == 6, "first come, first served"
        after = channel.statistics()
        assert (after.in_flight, after.waiting, after.waited) == (0, 0, 5)
        assert after.waited_seconds > 0
        assert lbclient.info(calls[6]).waited > lbclient.info(calls[2]).waited > 0


async def test_a_late_call_does_not_overtake_those_that_wait(
    start: Any, search: Any
) -> None:
    task = await start()
    config = ChannelConfig(active_limit=1)
    async with lbclient.insecure_channel(task.address, config=config) as channel:
        await channel.channel_ready()
        stub = search.SearchStub(channel)
        order: list[str] = []
        first = stub.Search(search.Query(text="sleep 0.05"))
        waiting = stub.Search(search.Query(text="x"))
        waiting.add_done_callback(lambda _: order.append("waiting"))
        late: list[Any] = []

        def call_late(_: Any) -> None:
            late.append(stub.Search(search.Query(text="x")))
            late[0].add_done_callback(lambda _: order.append("late"))

        first.add_done_callback(call_late)
        await first
        await late[0]
        await waiting
        assert order == ["waiting", "late"]


async def test_when_full_is_fail_a_call_fails_at_once_and_says_how_many_were_full(
    start: Any, search: Any
) -> None:
    tasks = [await start() for _ in range(2)]
    config = ChannelConfig(active_limit=1, when_full="fail")
    target = "ipv4:" + ",".join(task.address for task in tasks)
    async with lbclient.insecure_channel(target, config=config) as channel:
        stub = search.SearchStub(channel)
        await asyncio.gather(*(stub.Search(search.Query()) for _ in range(1)))
        while len(channel.balancer().pool.ready) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        running = [stub.Search(search.Query(text="sleep 0.2")) for _ in range(2)]
        with pytest.raises(BackendsFull, match="2 full with 1 calls each") as caught:
            await stub.Search(search.Query())
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert isinstance(caught.value, grpc.aio.AioRpcError)
        await asyncio.gather(*running)


async def test_only_so_many_calls_may_wait(start: Any, search: Any) -> None:
    task = await start()
    config = ChannelConfig(active_limit=1, max_waiting=2)
    async with lbclient.insecure_channel(task.address, config=config) as channel:
        await channel.channel_ready()
        stub = search.SearchStub(channel)
        calls = [stub.Search(search.Query(text="sleep 0.05")) for _ in range(3)]
        with pytest.raises(BackendsFull, match="2 calls wait already"):
            await stub.Search(search.Query())
        await asyncio.gather(*calls)


async def test_a_deadline_ends_the_wait_and_frees_the_place(
    start: Any, search: Any
) -> None:
    task = await start()
    config = ChannelConfig(active_limit=1)
    async with lbclient.insecure_channel(task.address, config=config) as channel:
        await channel.channel_ready()
        stub = search.SearchStub(channel)
        running = stub.Search(search.Query(text="sleep 0.3"))
        waiting = stub.Search(search.Query(), timeout=0.05)
        with pytest.raises(DeadlineWhileWaiting, match="1 full") as caught:
            await waiting
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert channel.statistics().waiting == 0
        assert lbclient.info(waiting).backend is None
        await running


async def test_a_call_cancelled_while_it_waits_is_never_sent(
    start: Any, search: Any
) -> None:
    task = await start()
    config = ChannelConfig(active_limit=1)
    async with lbclient.insecure_channel(task.address, config=config) as channel:
        await channel.channel_ready()
        stub = search.SearchStub(channel)
        running = stub.Search(search.Query(text="sleep 0.1"))
        waiting = stub.Search(search.Query())
        told: list[object] = []
        waiting.add_done_callback(told.append)
        assert waiting.cancel()
        assert told == [waiting]
        assert waiting.cancelled()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await running
        assert task.servicer.served == 1


async def test_cancelling_who_only_watches_leaves_the_call_alone(
    start: Any, search: Any
) -> None:
    task = await start()
    config = ChannelConfig(active_limit=1)
    async with lbclient.insecure_channel(task.address, config=config) as channel:
        await channel.channel_ready()
        stub = search.SearchStub(channel)
        running = stub.Search(search.Query(text="sleep 0.1"))
        waiting = stub.Search(search.Query())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(waiting.code(), 0.02)
        assert (await waiting).text
        await running


async def test_nobody_there_fails_fast_and_says_who_was_tried(search: Any) -> None:
    address = closed_port()
    async with lbclient.insecure_channel(address) as channel:
        stub = search.SearchStub(channel)
        with pytest.raises(NoBackend, match="1 refusing") as caught:
            await stub.Search(search.Query(), timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert address in str(caught.value.details())
        call = stub.Pages(search.Query())
        with pytest.raises(NoBackend):
            await call.read()
        assert call.done()


async def test_wait_for_ready_waits_until_somebody_is_there(
    start: Any, search: Any
) -> None:
    address = closed_port()
    async with lbclient.insecure_channel(address) as channel:
        stub = search.SearchStub(channel)
        with pytest.raises(NoBackend):
            await stub.Search(search.Query())
        call = stub.Search(search.Query(), wait_for_ready=True, timeout=10)
        await asyncio.sleep(0.05)
        assert not call.done()
        await start(port=int(address.rpartition(":")[2]))
        assert (await call).text


async def test_wait_for_ready_ends_at_the_deadline(search: Any) -> None:
    async with lbclient.insecure_channel(closed_port()) as channel:
        stub = search.SearchStub(channel)
        with pytest.raises(DeadlineWhileWaiting, match="1 refusing"):
            await stub.Search(search.Query(), wait_for_ready=True, timeout=0.2)


@pytest.mark.parametrize("timeout", [0, -1])
async def test_no_time_at_all_is_a_deadline_exceeded(
    start: Any, search: Any, timeout: float
) -> None:
    task = await start()
    async with lbclient.insecure_channel(task.address) as channel:
        with pytest.raises(DeadlineWhileWaiting):
            await search.SearchStub(channel).Search(search.Query(), timeout=timeout)
