"""Streams that go on and on are load for what they do, not for being there."""

import asyncio
import multiprocessing
import time
from collections.abc import AsyncIterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from itertools import repeat
from threading import Thread
from typing import Any

import grpc
import grpc.aio
import pytest

import lbclient
from lbclient.server import Server
from tests.hosts import Hosted, hosting, method_handler, unary_unary

CALLS = 40
STREAMS = 4
COST = 0.005  # seconds for each message, and for each request


def burn(cost: float = COST) -> None:
    until = time.thread_time() + cost
    while time.thread_time() < until:
        pass


class Endless:
    """Handlers of streams without end, and of requests that come meanwhile."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def work(self, what: str) -> None:
        burn()
        self.done.append(what)

    async def ask(self, _request: bytes, _context: Any) -> bytes:
        self.work("request")
        return b""

    async def generate(self, _request: bytes, _context: Any) -> AsyncIterator[bytes]:
        while True:
            self.work("message")
            yield b""

    async def write(self, _request: bytes, context: Any) -> None:
        while True:
            self.work("message")
            await context.write(b"")

    async def iterate(self, requests: AsyncIterator[bytes], _context: Any) -> bytes:
        async for _ in requests:
            self.work("message")
        return b""

    async def read(self, _requests: object, context: Any) -> bytes:
        while await context.read() is not grpc.aio.EOF:
            self.work("message")
        return b""

    async def echo(
        self, requests: AsyncIterator[bytes], _context: Any
    ) -> AsyncIterator[bytes]:
        async for request in requests:
            self.work("message")
            yield request


KINDS = {
    "generate": "unary_stream",
    "write": "unary_stream",
    "iterate": "stream_unary",
    "read": "stream_unary",
    "echo": "stream_stream",
}


def take_all(call: Any) -> None:
    with suppress(grpc.RpcError):
        for _ in call:
            pass


def crowd(port: int, arity: str) -> list[grpc.StatusCode]:
    """Requests, all at once, while streams send and take what the server lets them."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        streams = []
        for _ in range(STREAMS):
            sent = repeat(b"") if arity.startswith("stream") else b""
            method: Any = getattr(channel, arity)("/a.B/Stream")
            if arity.endswith("stream"):
                streams.append(method(sent))
                Thread(target=take_all, args=streams[-1:], daemon=True).start()
            else:
                streams.append(method.future(sent))
        ready: Any = channel.unary_unary("/a.B/Ready")
        ready(b"", timeout=120)
        ask: Any = channel.unary_unary("/a.B/Ask")
        begun = [ask.future(b"", timeout=120) for _ in range(CALLS)]
        codes = [call.code() for call in begun]
        for stream in streams:
            stream.cancel()
        return codes


def serving(**handlers: Any) -> AbstractAsyncContextManager[Hosted]:
    methods = {f"/a.B/{name}": handler for name, handler in handlers.items()}
    return hosting(methods, max_load=1000.0)


async def endless(channel: Any, arity: str, **options: Any) -> None:
    """Sends, or takes, as much as the server lets it."""

    async def requests() -> AsyncIterator[bytes]:
        while True:
            yield b""
            await asyncio.sleep(0)

    sent = requests() if arity.startswith("stream") else b""
    call = getattr(channel, arity)("/a.B/Stream")(sent, **options)
    if arity.endswith("stream"):
        async for _ in call:
            pass
    else:
        await call


@asynccontextmanager
async def streaming(channel: Any, arity: str, streams: int) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(endless(channel, arity)) for _ in range(streams)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_crowd_gets_half_of_a_loop_that_streams_want_all_of(
    kind: str, eventually: Any
) -> None:
    """Each message came in one turn of the loop, and each request took several."""
    endless, arity = Endless(), KINDS[kind]

    async def ready(_request: bytes, _context: Any) -> bytes:
        await eventually(lambda: len(endless.done) > 10 * STREAMS)
        return b""

    handlers = {
        "Ask": unary_unary(endless.ask),
        "Ready": unary_unary(ready),
        "Stream": method_handler(arity, getattr(endless, kind)),
    }
    async with serving(**handlers) as hosted:
        loop = asyncio.get_running_loop()
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            codes = await loop.run_in_executor(process, crowd, hosted.port, arity)
    assert set(codes) == {grpc.StatusCode.OK}
    first = endless.done.index("request")
    last = len(endless.done) - endless.done[::-1].index("request")
    assert endless.done[first:last].count("message") < 1.6 * CALLS


async def test_streams_that_do_nothing_refuse_nobody(eventually: Any) -> None:
    """A handler that had the loop for long counted as all streams that were open."""
    seen: list[float] = []
    server: Server

    async def idle(_request: bytes, _context: Any) -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async def ask(request: bytes, _context: Any) -> bytes:
        seen.append(server._gate.load(time.monotonic()))
        burn(0.3)
        return b""

    handlers = {"Ask": unary_unary(ask), "Stream": method_handler("unary_stream", idle)}
    async with (
        serving(**handlers) as (server, _, channel),
        streaming(channel, "unary_stream", 50),
    ):
        await eventually(lambda: server.statistics().active == 50)
        method: Any = channel.unary_unary("/a.B/Ask")
        for _ in range(4):
            await method(b"", timeout=60)
    assert max(seen) < 3.0


async def begin_until_refused(channel: Any) -> None:
    while True:
        await channel.unary_stream("/a.B/Stream")(b"").read()


async def test_new_streams_are_refused_for_what_the_others_do_the_least_critical_first(
    eventually: Any,
) -> None:
    stream = method_handler("unary_stream", Endless().generate)
    async with serving(Stream=stream) as (server, _, channel):
        gate = server._gate
        async with streaming(channel, "unary_stream", 6):
            await eventually(lambda: gate.queue.of_streams() > 2.0)
            gate.pressure._most = 1.0
            load = gate.queue.of_streams()
            with lbclient.criticality("SHEDDABLE"):
                answer = gate.refuses_stream()
            gate.pressure._most = load / 2
            with lbclient.criticality("CRITICAL_PLUS"):
                other = gate.refuses_stream()
            gate.pressure._most = 0.0  # whatever waits is too much
            with pytest.raises(grpc.aio.AioRpcError, match="streams want to go on"):
                await begin_until_refused(channel)
    assert answer is not None
    assert "streams want to go on" in answer.details
    assert other is None
