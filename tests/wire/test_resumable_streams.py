"""Resumable streams are spread, asked to move, and go on where they were."""

import asyncio
import gc
import threading
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest

import lbclient
from benchmarks.faults.fleet import Addressed
from benchmarks.faults.link import Link
from lbclient import ChannelConfig, ConfigError, Endpoint
from lbclient.client.calls import resumable_streams
from lbclient.core.backoff import Backoff
from lbclient.core.model import State, Verdict
from lbclient.core.routing.key_hash import first, hash64
from tests.hosts import (
    Hosted,
    hosting,
    stream_stream,
    stream_unary,
    unary_stream,
    unary_unary,
)
from tests.waiting import eventually

NUMBERS, CHAT = "/test.Streams/Numbers", "/test.Streams/Chat"
COUNT, OTHER = "/test.Streams/Count", "/test.Streams/Other"


async def numbers(request: bytes, _: Any) -> AsyncIterator[bytes]:
    """Those that follow the request's."""
    number = int(request)
    while True:
        number += 1
        yield b"%d" % number
        await asyncio.sleep(0.02)


async def chat(requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


METHODS = {NUMBERS: unary_stream(numbers), CHAT: stream_stream(chat)}


class Listed:
    """A resolver whose endpoints a test sets."""

    def __init__(self, addresses: list[str]) -> None:
        self.addresses = addresses
        self.changed = asyncio.Event()

    async def watch(self) -> AsyncIterator[tuple[Endpoint, ...]]:
        while True:
            self.changed.clear()
            yield tuple(map(Endpoint, sorted(self.addresses)))
            await self.changed.wait()


class Reader:
    """Reads a stream of numbers that moves, and notes what is missing."""

    def __init__(self, channel: Any) -> None:
        method = channel.unary_stream(NUMBERS)
        self.stream = lbclient.resumed(lambda last: method(last or b"0"))
        self.read = 0
        self.lost: list[tuple[int, int]] = []

    async def run(self) -> None:
        async for message in self.stream:
            number = int(message)
            if number != self.read + 1:
                self.lost.append((self.read, number))
            self.read = number

    def backend(self) -> str | None:
        return lbclient.info(self.stream.call).backend


async def hosts(stack: AsyncExitStack, count: int) -> list[Hosted]:
    return [
        await stack.enter_async_context(hosting(METHODS, utilization=lambda: 0.1))
        for _ in range(count)
    ]


async def channel_to(
    stack: AsyncExitStack,
    tasks: Sequence[Addressed],
    config: ChannelConfig | None = None,
) -> Any:
    """A channel that is connected to all of them."""
    target = "ipv4:" + ",".join(task.address for task in tasks)
    channel: Any = await stack.enter_async_context(
        lbclient.insecure_channel(target, config=config)
    )
    await channel.channel_ready()
    await eventually(lambda: len(channel.balancer().pool.ready) == len(tasks))
    return channel


def where(readers: list[Reader]) -> Counter[str | None]:
    return Counter(reader.backend() for reader in readers)


async def test_streams_move_to_new_backends_and_nothing_is_lost() -> None:
    async with AsyncExitStack() as stack:
        tasks = await hosts(stack, 4)
        listed = Listed([tasks[0].address, tasks[1].address])
        config = ChannelConfig(stream_move_rate=0.5, slow_start=0.0)
        channel = await stack.enter_async_context(
            lbclient.insecure_channel(listed, config=config)
        )
        await channel.channel_ready()
        await eventually(lambda: len(channel.balancer().pool.ready) == 2)
        readers = [Reader(channel) for _ in range(40)]
        running = [asyncio.create_task(reader.run()) for reader in readers]
        await eventually(lambda: all(reader.read for reader in readers))
        assert set(where(readers).values()) == {20}
        assert channel.statistics().resumable_streams == 40
        listed.addresses = [task.address for task in tasks]
        listed.changed.set()
        await eventually(
            lambda: sorted(where(readers).values()) == [10] * 4, turns=4000
        )
        assert channel.statistics().stream_moves == 20
        before = [reader.read for reader in readers]
        await eventually(
            lambda: all(
                reader.read > seen for reader, seen in zip(readers, before, strict=True)
            )
        )
        assert sum(reader.stream.moved for reader in readers) == 20
        assert not any(reader.lost for reader in readers)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await eventually(lambda: channel.statistics().resumable_streams == 0)


async def test_streams_leave_a_lame_duck() -> None:
    async with AsyncExitStack() as stack:
        tasks = await hosts(stack, 2)
        listed = Listed([task.address for task in tasks])
        channel = await stack.enter_async_context(
            lbclient.insecure_channel(
                listed, config=ChannelConfig(stream_move_rate=0.0)
            )
        )
        await channel.channel_ready()
        await eventually(lambda: len(channel.balancer().pool.ready) == 2)
        readers = [Reader(channel) for _ in range(10)]
        running = [asyncio.create_task(reader.run()) for reader in readers]
        await eventually(lambda: all(reader.read for reader in readers))
        tasks[0].server.lame_duck()
        await eventually(lambda: set(where(readers)) == {tasks[1].address}, turns=4000)
        assert not any(reader.lost for reader in readers)
        assert not any(task.done() for task in running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def test_streams_with_keys_follow_the_homes_of_their_keys() -> None:
    def home(key: str, addresses: list[str]) -> str:
        hashes = [hash64(address) for address in addresses]
        return addresses[first(hash64(key), hashes, [1.0] * len(hashes))]

    async with AsyncExitStack() as stack:
        tasks = await hosts(stack, 3)
        addresses = [task.address for task in tasks]
        listed = Listed(addresses[:2])
        config = ChannelConfig(
            picker="consistent_hashing", stream_move_rate=0.5, slow_start=0.0
        )
        channel = await stack.enter_async_context(
            lbclient.insecure_channel(listed, config=config)
        )
        await channel.channel_ready()
        await eventually(lambda: len(channel.balancer().pool.ready) == 2)
        readers = {f"session-{number}": Reader(channel) for number in range(20)}
        running = []
        for key, reader in readers.items():
            with lbclient.key(key):
                running.append(asyncio.create_task(reader.run()))
        await eventually(lambda: all(reader.read for reader in readers.values()))
        # Those of the new backend, and those that found their home full at first.
        strays = {
            key
            for key, reader in readers.items()
            if reader.backend() != home(key, addresses)
        }
        assert 0 < len(strays) < 20
        listed.addresses = addresses
        listed.changed.set()
        await eventually(
            lambda: all(
                reader.backend() == home(key, addresses)
                for key, reader in readers.items()
            ),
            turns=4000,
        )
        assert channel.statistics().stream_moves == len(strays)
        assert not any(reader.lost for reader in readers.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def test_streams_leave_a_connection_that_gets_goaway() -> None:
    """They are alive when their backend is no lame duck any more: it refuses to connect
    until the server has stopped, which ends them."""
    async with AsyncExitStack() as stack:
        settings: Any = {"lame_duck_quiet": 0.01, "lame_duck_period": 60.0}
        tasks = [
            await stack.enter_async_context(
                hosting(METHODS, utilization=lambda: 0.1, **settings)
            )
            for _ in range(2)
        ]
        channel = await channel_to(stack, tasks)
        readers = [Reader(channel) for _ in range(10)]
        running = [asyncio.create_task(reader.run()) for reader in readers]
        await eventually(lambda: all(reader.read for reader in readers))
        draining = asyncio.create_task(tasks[0].server.drain())
        await eventually(lambda: set(where(readers)) == {tasks[1].address}, turns=4000)
        await draining
        assert channel.statistics().stream_moves == 5
        assert not any(reader.lost for reader in readers)
        assert not any(task.done() for task in running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def test_streams_outlive_connections_that_a_backend_only_renews() -> None:
    """As a proxy does after so many requests: nothing happens to its streams."""
    async with AsyncExitStack() as stack:
        tasks = [
            await stack.enter_async_context(
                hosting(
                    METHODS,
                    options=[("grpc.max_connection_age_ms", 300)],
                    utilization=lambda: 0.1,
                )
            )
            for _ in range(2)
        ]
        channel = await channel_to(stack, tasks)
        pool = channel.balancer().pool
        readers = [Reader(channel) for _ in range(4)]
        running = [asyncio.create_task(reader.run()) for reader in readers]
        await eventually(lambda: all(reader.read for reader in readers))
        began = [node.ended_connections() for node in pool.nodes.values()]
        await eventually(
            lambda: all(
                node.ended_connections() >= before + 8
                for node, before in zip(pool.nodes.values(), began, strict=True)
            ),
            turns=4000,
        )
        assert channel.statistics().stream_moves == 0
        assert not any(task.done() for task in running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class Slow(Link):
    """Carries nothing on new connections unless `is_open`; `held` counts these."""

    def __init__(self, task: Hosted) -> None:
        super().__init__(task)
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.held = 0

    async def _carry(self, reader: Any, writer: Any) -> None:
        self.held += not self.is_open.is_set()
        await self.is_open.wait()
        await super()._carry(reader, writer)


async def test_streams_stay_while_their_connection_is_renewed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long it takes, unless it fails. A message comes every 0.02 s, and of
    streams whose backend leaves all are asked within 2 s."""
    monkeypatch.setattr(resumable_streams, "LOOKS", Backoff(0.05, 0.05))
    async with AsyncExitStack() as stack:
        old = await stack.enter_async_context(
            hosting(
                METHODS,
                options=[("grpc.max_connection_age_ms", 500)],
                utilization=lambda: 0.1,
            )
        )
        link = Slow(old)
        await link.start()
        stack.push_async_callback(link.close)
        (other,) = await hosts(stack, 1)
        channel = await channel_to(stack, [link, other])
        readers = [Reader(channel) for _ in range(4)]
        running = [asyncio.create_task(reader.run()) for reader in readers]
        await eventually(lambda: all(reader.read for reader in readers))
        await eventually(lambda: where(readers)[link.address] == 2, turns=4000)
        moves = channel.statistics().stream_moves
        link.is_open.clear()
        node = channel.balancer().pool.nodes[link.address]
        await eventually(
            lambda: link.held and node.state is State.LAME_DUCK, turns=4000
        )
        read = [reader.read for reader in readers]
        await eventually(
            lambda: all(
                reader.read > before + 120
                for reader, before in zip(readers, read, strict=True)
            ),
            turns=4000,
        )
        assert node.state is State.LAME_DUCK
        link.is_open.set()
        await eventually(lambda: node.state is State.READY, turns=4000)
        assert channel.statistics().stream_moves == moves
        assert where(readers)[link.address] == 2
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def test_who_is_asked_may_end_the_other_streams(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with AsyncExitStack() as stack:
        tasks = await hosts(stack, 2)
        channel = await channel_to(stack, tasks)
        calls: list[Any] = []

        def end_all() -> None:
            for call in calls:
                call.cancel()

        numbers_of: Any = channel.unary_stream(NUMBERS)
        with lbclient.resumable(end_all):
            calls += [numbers_of(b"0") for _ in range(8)]
        for call in calls:
            assert await call.read() == b"1"
        first = lbclient.info(calls[0]).backend
        next(task for task in tasks if task.address == first).server.lame_duck()
        await eventually(lambda: all(call.done() for call in calls), turns=4000)
        assert channel.statistics().stream_moves == 1
        assert not caplog.records


async def test_on_move_tells_a_stream_of_another_kind() -> None:
    async with AsyncExitStack() as stack:
        tasks = await hosts(stack, 2)
        channel = await channel_to(stack, tasks)
        moving = asyncio.Event()
        with lbclient.resumable(moving.set):
            call = channel.stream_stream(CHAT)()
        await call.write(b"a")
        assert await call.read() == b"a"
        first = lbclient.info(call).backend
        next(task for task in tasks if task.address == first).server.lame_duck()
        await asyncio.wait_for(moving.wait(), 30)
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK
        with lbclient.resumable(moving.set):
            call = channel.stream_stream(CHAT)()
        await call.write(b"b")
        assert await call.read() == b"b"
        assert lbclient.info(call).backend != first
        call.cancel()


async def test_a_stream_that_is_dropped_ends_though_it_is_resumable() -> None:
    async with AsyncExitStack() as stack:
        (task,) = await hosts(stack, 1)
        channel = await stack.enter_async_context(
            lbclient.insecure_channel(f"ipv4:{task.address}")
        )
        method: Any = channel.unary_stream(NUMBERS)
        stream = lbclient.resumed(lambda last: method(last or b"0"))
        async for message in stream:
            assert message == b"1"
            break
        assert channel.statistics().resumable_streams == 1
        del stream
        gc.collect()
        await eventually(lambda: channel.statistics().resumable_streams == 0)


async def test_cancelling_the_reader_is_no_move() -> None:
    async with AsyncExitStack() as stack:
        (task,) = await hosts(stack, 1)
        channel = await stack.enter_async_context(
            lbclient.insecure_channel(f"ipv4:{task.address}")
        )
        reader = Reader(channel)
        running = asyncio.create_task(reader.run())
        await eventually(lambda: reader.read > 0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert reader.stream.moved == 0


async def test_errors_end_it_as_they_end_a_call() -> None:
    async def fails(request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield b"1"
        await context.abort(grpc.StatusCode.NOT_FOUND, "no more")

    async with (
        hosting({NUMBERS: unary_stream(fails)}) as task,
        lbclient.insecure_channel(f"ipv4:{task.address}") as channel,
    ):
        method: Any = channel.unary_stream(NUMBERS)
        stream = lbclient.resumed(lambda last: method(last or b"0"))
        assert await anext(stream) == b"1"
        with pytest.raises(grpc.aio.AioRpcError, match="no more"):
            await anext(stream)


async def test_a_failing_on_move_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails() -> None:
        raise ValueError("not now")

    async with AsyncExitStack() as stack:
        tasks = await hosts(stack, 2)
        channel = await channel_to(stack, tasks)
        with lbclient.resumable(fails):
            calls: list[Any] = [channel.unary_stream(NUMBERS)(b"0") for _ in range(4)]
        for call in calls:
            assert await call.read() == b"1"
        tasks[0].server.lame_duck()
        await eventually(lambda: channel.statistics().stream_moves == 2, turns=4000)
        assert caplog.text.count("an on_move of `resumable` raised") == 1
        assert not any(call.done() for call in calls)
        for call in calls:
            call.cancel()


def test_what_cannot_be_called_is_refused() -> None:
    for make in (lbclient.resumable, lbclient.resumed):
        with pytest.raises(ConfigError, match="want a function"):
            make(None)  # type: ignore[arg-type]


async def test_a_stream_with_grpc_aio_itself_is_read_to_its_end() -> None:
    """As with LBCLIENT_DISABLE=1."""

    async def two(request: bytes, _: Any) -> AsyncIterator[bytes]:
        yield b"1"
        yield b"2"

    async with hosting({NUMBERS: unary_stream(two)}) as task:
        method: Any = task.channel.unary_stream(NUMBERS)
        stream = lbclient.resumed(lambda last: method(last or b"0"))
        assert [message async for message in stream] == [b"1", b"2"]


async def test_streams_move_to_who_is_ejected_for_another_method() -> None:
    async def served(_: bytes, context: Any) -> bytes:
        return b""

    async def failed(_: bytes, context: Any) -> Any:
        await context.abort(grpc.StatusCode.INTERNAL, "by this one only")

    async with AsyncExitStack() as stack:
        tasks = [
            await stack.enter_async_context(
                hosting(METHODS | {OTHER: unary_unary(each)}, utilization=lambda: 0.1)
            )
            for each in (served, failed)
        ]
        config = ChannelConfig(stream_move_rate=0.5, slow_start=0.0)
        channel = await channel_to(stack, tasks, config)

        method = channel.unary_unary(OTHER)

        async def call() -> None:
            calls: list[Any] = [method(b"") for _ in range(20)]
            await asyncio.gather(*calls, return_exceptions=True)

        await eventually(lambda: channel.statistics().ejected == 1, meanwhile=call)
        readers = [Reader(channel) for _ in range(20)]
        running = {reader: asyncio.create_task(reader.run()) for reader in readers}
        await eventually(lambda: all(reader.read for reader in readers))
        assert set(where(readers).values()) == {10}
        staying = [one for one in readers if one.backend() == tasks[0].address]
        for reader in {*readers} - {*staying}:
            running[reader].cancel()
        await eventually(lambda: {*where(staying).values()} == {5}, turns=4000)
        assert channel.statistics().ejected == 1
        for task in running.values():
            task.cancel()
        await asyncio.gather(*running.values(), return_exceptions=True)


async def test_a_stream_without_a_message_teaches_no_latency() -> None:
    async def count(requests: AsyncIterator[bytes], _: Any) -> bytes:
        return b"%d" % len([request async for request in requests])

    methods = {COUNT: stream_unary(count)}
    async with (
        hosting(methods) as task,
        lbclient.insecure_channel(f"ipv4:{task.address}") as channel,
    ):
        await channel.channel_ready()
        [backend] = channel.balancer().pool.ready
        for known in (0.0, 0.25):
            backend.load.latency = known
            with lbclient.resumable(print):
                call: Any = channel.stream_unary(COUNT)()
            await call.write(b"a")
            await call.done_writing()
            assert await call == b"1"
            assert backend.load.latency == known
            assert backend.load.counts[Verdict.SERVED] == 1 + (known > 0)


async def test_a_stream_that_another_thread_ends_is_counted_in_the_loop() -> None:
    """As a collection there does."""
    async with AsyncExitStack() as stack:
        (task,) = await hosts(stack, 1)
        channel = await stack.enter_async_context(
            lbclient.insecure_channel(f"ipv4:{task.address}")
        )
        await channel.channel_ready()
        with lbclient.resumable(print):
            call: Any = channel.unary_stream(NUMBERS)(b"0")
        assert await call.read() == b"1"
        other = threading.Thread(target=call._inner.cancel)
        other.start()
        other.join()  # meanwhile the loop does nothing
        assert channel.statistics().resumable_streams == 1
        await eventually(lambda: channel.statistics().resumable_streams == 0)
