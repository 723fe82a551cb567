"""Our streams on connections with few slots: what is opened, ended, asked and told."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest

import lbclient
from lbclient import wire
from lbclient.client.health.watch import SWITCHED_OFF
from lbclient.config import ChannelConfig
from lbclient.v1 import compat_pb2, load_pb2
from tests.hosts import add_methods, unary_stream, unary_unary
from tests.waiting import let_pass

LIMIT = "grpc.max_concurrent_streams"


class Other:
    """A stock server that offers health and ORCA; `asked` are the methods called."""

    def __init__(self, slots: int = 100) -> None:
        self.asked: list[str] = []
        self.open = 0  # streams
        self._slots = slots
        self.blocks = asyncio.Event()

    async def _check(self, _request: bytes, _context: Any) -> bytes:
        self.asked.append(wire.SERVING_CHECK_METHOD)
        status = compat_pb2.ServingReply.SERVING
        return compat_pb2.ServingReply(status=status).SerializeToString()

    async def _report(self, _request: bytes, _context: Any) -> AsyncIterator[bytes]:
        self.asked.append(wire.ORCA_METHOD)
        self.open += 1
        try:
            while True:
                report = load_pb2.LoadReport(application_utilization=0.5)
                yield report.SerializeToString()
                await asyncio.sleep(0.05)
        finally:
            self.open -= 1

    def make(self) -> Any:
        methods = {
            wire.SERVING_CHECK_METHOD: unary_unary(self._check),
            wire.ORCA_METHOD: unary_stream(self._report),
        }
        server = grpc.aio.server(options=[(LIMIT, self._slots)])
        return add_methods(server, methods)


def backend_of(channel: lbclient.Channel) -> Any:
    (backend,) = channel.statistics().backends
    return backend


def is_allowed(channel: lbclient.Channel) -> bool:
    """Whether streams may be opened at its only backend."""
    (backend,) = channel.balancer().pool.nodes.values()
    return backend.permit.may_stream(asyncio.get_running_loop().time())


async def test_a_stream_that_takes_the_only_slot_is_ended_for_good(
    start: Any, search: Any, eventually: Callable[..., Any]
) -> None:
    other = Other(slots=1)
    task = await start(other.make)
    config = ChannelConfig(health_interval=0.4)
    async with lbclient.insecure_channel(task.address, config=config) as channel:
        stub = search.SearchStub(channel)
        await stub.Search(search.Query(), timeout=5)
        await eventually(lambda: not other.open)
        for _ in range(20):
            await stub.Search(search.Query(), timeout=5)
        # On a busy machine the proof may take more than one stream.
        await eventually(lambda: not is_allowed(channel))
        before = Counter(other.asked)
        await eventually(
            lambda: (Counter(other.asked) - before)[wire.SERVING_CHECK_METHOD] > 3
        )
        assert (Counter(other.asked) - before)[wire.ORCA_METHOD] == 0


async def test_a_stream_beside_which_there_is_room_stays(
    start: Any, search: Any, eventually: Callable[..., Any]
) -> None:
    other = Other()
    task = await start(other.make)
    config = ChannelConfig(health_interval=0.4)
    async with lbclient.insecure_channel(task.address, config=config) as channel:
        await search.SearchStub(channel).Search(search.Query(), timeout=5)
        await eventually(lambda: other.asked.count(wire.SERVING_CHECK_METHOD) > 3)
        assert other.open == 1
        assert backend_of(channel).utilization == 0.5


async def test_a_stream_is_ended_when_calls_fill_the_slots_and_errors_say_so(
    start: Any, search: Any, eventually: Callable[..., Any]
) -> None:
    other = Other(slots=2)
    task = await start(other.make)
    config = ChannelConfig(health_interval=0.4)
    async with lbclient.insecure_channel(task.address, config=config) as channel:
        await channel.channel_ready()
        assert other.open == 1
        stub = search.SearchStub(channel)
        long = [stub.Search(search.Query(text="sleep 60")) for _ in range(2)]
        await eventually(lambda: not other.open)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Search(search.Query(), timeout=0.2)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        (note,) = caught.value.__notes__
        assert "1 health or load stream of this channel and 2 calls" in note
        for call in long:
            call.cancel()
        await stub.Search(search.Query(), timeout=20)


async def test_our_server_with_few_slots_tells_without_a_stream(
    start: Any, search: Any, eventually: Callable[..., Any]
) -> None:
    task = await start(lambda: lbclient.server(options=[(LIMIT, 1)]))
    config = ChannelConfig(health_interval=0.2)
    async with lbclient.insecure_channel(task.address, config=config) as channel:
        await search.SearchStub(channel).Search(search.Query(), timeout=5)
        said = task.server.statistics()
        assert said.watchers == 0
        assert said.streams_refused["slots"] > 0
        task.server.lame_duck()
        await eventually(lambda: backend_of(channel).state == "lame duck")


async def test_the_call_that_needs_the_last_one_of_our_servers_streams_gets_it(
    start: Any, search: Any, eventually: Callable[..., Any]
) -> None:
    """The other nine are long, and one is our health stream."""
    task = await start(lambda: lbclient.server(options=[(LIMIT, 10)]))
    config = ChannelConfig(health_interval=0.4)
    async with lbclient.insecure_channel(task.address, config=config) as channel:
        await channel.channel_ready()
        assert task.server.statistics().watchers == 1
        stub = search.SearchStub(channel)
        long = [stub.Search(search.Query(text="sleep 600")) for _ in range(9)]
        async with asyncio.timeout(60):  # it has no deadline of its own
            await stub.Search(search.Query())
        await eventually(lambda: not is_allowed(channel))
        assert not any(call.done() for call in long)
        task.server.lame_duck()
        await eventually(lambda: backend_of(channel).state == "lame duck")
        for call in long:
            call.cancel()


@pytest.mark.parametrize("kind", ["other", "ours"])
async def test_switched_off_no_stream_is_opened(
    start: Any, search: Any, kind: str
) -> None:
    other = Other()
    task = await start(other.make if kind == "other" else lbclient.server)
    config = ChannelConfig(health="off", health_interval=0.2)
    async with lbclient.insecure_channel(task.address, config=config) as channel:
        for _ in range(10):
            await search.SearchStub(channel).Search(search.Query(), timeout=5)
            await let_pass(0.05)
        assert backend_of(channel).reason == SWITCHED_OFF
    if kind == "other":
        assert other.asked == []
    else:
        assert task.server.statistics().streams_refused.get("slots", 0) == 0
        assert task.server.statistics().watchers == 0
