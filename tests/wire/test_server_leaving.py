"""How a server stops: it tells, it waits, it goes; on real signals."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from functools import partial
from time import monotonic, sleep
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc import ChannelConnectivity, StatusCode

import lbclient
from lbclient import wire
from lbclient.config import ServerConfig
from lbclient.core.model import TaskState
from lbclient.server import Server, serve
from lbclient.server.lame_duck import Drain
from lbclient.server.os_signals import ECHO
from lbclient.server.stopping import FOREVER
from tests import needs
from tests.hosts import (
    PATH,
    Passing,
    add_methods,
    stream_stream,
    stream_unary,
    unary_stream,
    unary_unary,
)
from tests.waiting import eventually, let_pass

ANY_SIZE = [("grpc.max_receive_message_length", -1)]
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"


class TimedServer:
    """A server whose requests last as many seconds as they say."""

    def __init__(self, make: Callable[..., Any] = Server, **config: Any) -> None:
        self.server = make(config=ServerConfig(**config))
        add_methods(self.server, {PATH: unary_unary(self.respond)})
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.port}")
        self.method: Any = self.channel.unary_unary(PATH)

    @staticmethod
    async def respond(request: bytes, context: Any) -> bytes:
        await asyncio.sleep(float(request))
        return b"served"

    def add(self, service: str, handler: Any) -> None:
        """A handler for the service's method "Method"."""
        add_methods(self.server, {f"/{service}/Method": handler})


@pytest.fixture
async def timed_server() -> AsyncIterator[Callable[..., TimedServer]]:
    async with AsyncExitStack() as stack:

        def timed_server(*args: Any, **config: Any) -> TimedServer:
            hosted = TimedServer(*args, **config)
            stack.push_async_callback(hosted.server.stop, None)
            stack.push_async_callback(hosted.channel.close)
            return hosted

        yield timed_server


MakeServer = Callable[..., TimedServer]


async def test_a_lame_duck_says_so_in_every_answer(timed_server: MakeServer) -> None:
    hosted = timed_server()
    await hosted.server.start()
    hosted.server.lame_duck()
    hosted.server.lame_duck()
    call = hosted.method(b"0")
    assert await call == b"served"
    report = wire.find_report(await call.trailing_metadata())
    assert report is not None
    assert report.state is TaskState.LAME_DUCK
    assert hosted.server.state is TaskState.LAME_DUCK


async def test_drain_serves_what_is_in_flight_and_what_comes_late(
    timed_server: MakeServer,
) -> None:
    hosted = timed_server(lame_duck_quiet=0.2)
    await hosted.server.start()
    early = hosted.method(b"0.3")
    await hosted.channel.channel_ready()
    draining = asyncio.create_task(hosted.server.drain())
    await eventually(lambda: hosted.server.state is TaskState.LAME_DUCK)
    late = hosted.method(b"0.3")
    assert await early == b"served"
    assert await late == b"served"
    await asyncio.wait_for(draining, 10)
    assert not await hosted.server.wait_for_termination(1)


class Leaving:
    """A `Drain` under a clock of the test's. Requests come on named connections."""

    def __init__(self, *watching: str, quiet: float = 1.0, period: float = 30.0):
        self.now = 0.0
        watchers = dict.fromkeys(watching, 1)
        self.drain = Drain(
            watchers, quiet, period, lambda: self.now, lambda: None, "request"
        )

    def goes_on(self, seconds: float, *peers: str) -> bool:
        """Whether GOAWAY is not due so long after a request of each of these."""
        for peer in peers:
            self.drain.request_began(peer)
            assert not self.drain.is_goaway_due()
        self.now += seconds
        return not self.drain.is_goaway_due()


def test_quiet_is_a_while_without_any_request() -> None:
    """One that fits between two looks starts the wait again, too."""
    leaving = Leaving("a")
    assert all(leaving.goes_on(0.9, "a") for _ in range(5))
    assert not leaving.goes_on(0.2)


def test_clients_that_watch_no_health_do_not_keep_a_lame_duck() -> None:
    leaving = Leaving("watches")
    assert leaving.goes_on(0.5, "deaf")
    assert leaving.goes_on(0.4, "deaf")
    assert not leaving.goes_on(0.2, "deaf")


def test_a_client_that_watches_and_has_nobody_else_keeps_a_lame_duck() -> None:
    leaving = Leaving("watches")
    assert all(leaving.goes_on(0.9, "deaf", "watches") for _ in range(10))


def test_a_third_of_the_period_is_kept_for_what_is_in_flight() -> None:
    leaving = Leaving("watches", period=9.0)
    assert all(leaving.goes_on(0.5, "watches") for _ in range(11))
    assert not leaving.goes_on(0.5, "watches")
    assert leaving.now == 6.0


async def test_goaway_waits_for_a_moment_without_unseen_requests() -> None:
    """The core cancels those when it is sent."""
    counts = [3, 5, 4, 6, 3, 9] * 4
    seen: list[int] = []

    def count() -> int:
        seen.append(counts[len(seen)])
        return seen[-1]

    drain = Drain({}, 0.0, 30.0, lambda: 0.0, count, "request")
    assert await drain.wait_for_goaway() == 30.0
    assert len(seen) > 10
    assert seen[-1] == min(counts)


async def test_drain_gives_up_after_the_lame_duck_period(
    timed_server: MakeServer,
) -> None:
    hosted = timed_server(lame_duck_quiet=0.1, lame_duck_period=0.3)
    await hosted.server.start()
    call = hosted.method(b"30")
    await hosted.channel.channel_ready()
    started = monotonic()
    await asyncio.wait_for(hosted.server.drain(), 10)
    assert monotonic() - started >= 0.3 * 0.9
    assert await call.code() is not StatusCode.OK


async def test_a_call_in_flight_at_goaway_is_served(timed_server: MakeServer) -> None:
    """Its client knows of no health; another's call comes all the while."""
    hosted = timed_server(lame_duck_quiet=0.1)
    await hosted.server.start()
    await hosted.channel.channel_ready()
    draining = asyncio.create_task(hosted.server.drain())
    calls = []
    while not draining.done():
        calls.append(hosted.method(b"0.5"))
        await asyncio.sleep(0.02)
    is_ok = [await call.code() is StatusCode.OK for call in calls]
    assert is_ok == sorted(is_ok, reverse=True)  # until GOAWAY all, and then none
    assert is_ok.count(True) > 3
    await draining


def respond_to_one(request: bytes, context: Any) -> bytes:
    sleep(float(request))
    return b"served"


def respond_to_many(requests: Any, context: Any) -> bytes:
    for request in requests:
        sleep(float(request))
    return b"served"


def respond_by_many(request: bytes, context: Any) -> Iterator[bytes]:
    yield b"first"
    sleep(float(request))


async def send_unary(channel: grpc.aio.Channel) -> StatusCode:
    method: Any = channel.unary_unary("/test.Sync/Method")
    call = method(b"0.05")
    return StatusCode(await call.code())


async def send_stream(channel: grpc.aio.Channel) -> StatusCode:
    method: Any = channel.stream_unary("/test.Sync/Method")
    call = method(iter([b"0.05"]))
    return StatusCode(await call.code())


async def receive_stream(channel: grpc.aio.Channel) -> StatusCode:
    method: Any = channel.unary_stream("/test.Sync/Method")
    call = method(b"0.05")
    with suppress(grpc.aio.AioRpcError):
        async for _ in call:
            pass
    return StatusCode(await call.code())


@pytest.mark.parametrize(
    ("handler", "send"),
    [
        (unary_unary(respond_to_one), send_unary),
        (stream_unary(respond_to_many), send_stream),
        (unary_stream(respond_by_many), receive_stream),
    ],
    ids=["unary", "stream_unary", "unary_stream"],
)
async def test_a_drain_serves_handlers_in_threads(
    timed_server: MakeServer, handler: Any, send: Any
) -> None:
    """Every unary one failed during a drain, which then took its whole period."""
    hosted = timed_server(lame_duck_quiet=0.3, lame_duck_period=60.0)
    hosted.add("test.Sync", handler)
    await hosted.server.start()
    assert await send(hosted.channel) is StatusCode.OK
    draining = asyncio.create_task(hosted.server.drain())
    codes = []
    while not draining.done():
        codes.append(await send(hosted.channel))
    is_ok = [code is StatusCode.OK for code in codes]
    assert is_ok == sorted(is_ok, reverse=True), codes  # until GOAWAY
    assert any(is_ok), codes
    assert hosted.server.statistics().active == 0
    await draining


class SlowLink:
    """A TCP proxy that passes some bytes, and the rest once it is released."""

    def __init__(self, port: int, up: int = 10**9, down: int = 10**9) -> None:
        self._port = port
        self._limits = up, down  # bytes, to the server and from it
        self._released = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "SlowLink":
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def release(self) -> None:
        self._released.set()

    def _accept(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._tasks.append(asyncio.create_task(self._carry(reader, writer)))

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        up, down = self._limits
        try:
            await asyncio.gather(
                self._pump(reader, back, up), self._pump(there, writer, down)
            )
        finally:
            for each in (writer, back):
                each.close()
                with suppress(OSError):
                    await each.wait_closed()

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, limit: int
    ) -> None:
        with suppress(OSError):
            while data := await source.read(4096):
                limit -= len(data)
                if limit < 0:
                    await self._released.wait()
                sink.write(data)
            sink.close()


@pytest.mark.parametrize(
    ("limits", "request_size", "response_size"),
    [({"up": 20_000}, 200_000, 10), ({"down": 20_000}, 10, 6_000_000)],
    ids=["request", "response"],
)
@pytest.mark.parametrize("interceptors", [(), (Passing(),)], ids=["", "interceptor"])
async def test_a_drain_waits_for_a_slow_message(
    timed_server: MakeServer,
    eventually: Any,
    limits: dict[str, int],
    request_size: int,
    response_size: int,
    interceptors: Any,
) -> None:
    """Its handler has not begun yet, or has ended already: the request is not active.

    The drain cut it, which `server.stop(10)` does not.
    """
    hosted = timed_server(
        partial(Server, interceptors=interceptors), lame_duck_quiet=0.1
    )
    looked_up, responded = asyncio.Event(), asyncio.Event()

    async def respond(request: bytes, context: Any) -> bytes:
        responded.set()
        return b"x" * response_size

    class Lookup(grpc.GenericRpcHandler):
        def service(self, handler_call_details: Any) -> Any:
            if handler_call_details.method != "/test.Slow/Method":
                return None
            looked_up.set()
            return unary_unary(respond)

    hosted.server.add_generic_rpc_handlers([Lookup()])
    await hosted.server.start()
    async with (
        SlowLink(hosted.port, **limits) as link,
        grpc.aio.insecure_channel(
            f"127.0.0.1:{link.port}", options=ANY_SIZE
        ) as channel,
    ):
        method: Any = channel.unary_unary("/test.Slow/Method")
        call = method(b"x" * request_size)
        await (looked_up if "up" in limits else responded).wait()
        await eventually(lambda: hosted.server.statistics().active == 0)
        draining = asyncio.create_task(hosted.server.drain())
        await asyncio.wait([draining], timeout=1.0)
        assert not draining.done()
        link.release()
        assert await call.code() is StatusCode.OK
        await asyncio.wait_for(draining, 10)


async def test_a_call_in_flight_does_not_delay_goaway(
    timed_server: MakeServer, eventually: Any
) -> None:
    """GOAWAY came late when it waited for calls, and little was left of the period for
    the calls that began shortly before GOAWAY.
    """
    hosted = timed_server(lame_duck_quiet=0.1, lame_duck_period=600.0)
    ended = asyncio.Event()

    async def respond(request: bytes, context: Any) -> bytes:
        await ended.wait()
        return b"served"

    hosted.add("test.Long", unary_unary(respond))
    await hosted.server.start()
    method: Any = hosted.channel.unary_unary("/test.Long/Method")
    call = method(b"")
    await eventually(lambda: hosted.server.statistics().active == 1)
    draining = asyncio.create_task(hosted.server.drain())
    await eventually(lambda: hosted.channel.get_state() is ChannelConnectivity.IDLE)
    assert await hosted.method(b"0").code() is StatusCode.UNAVAILABLE
    ended.set()
    assert await call.code() is StatusCode.OK
    await asyncio.wait_for(draining, 10)


async def test_a_client_that_watches_loses_no_call_in_flight_at_goaway(
    timed_server: MakeServer, eventually: Any
) -> None:
    ended = asyncio.Event()

    async def respond(request: bytes, context: Any) -> bytes:
        await ended.wait()
        return b"served"

    fleet = [
        timed_server(lame_duck_quiet=0.1, lame_duck_period=600.0) for _ in range(2)
    ]
    for hosted in fleet:
        hosted.add("test.Long", unary_unary(respond))
        await hosted.server.start()
    leaving, staying = fleet
    target = "ipv4:" + ",".join(f"127.0.0.1:{hosted.port}" for hosted in fleet)
    async with lbclient.insecure_channel(target) as channel:
        await channel.channel_ready()
        await eventually(
            lambda: {b.state for b in channel.statistics().backends} == {"ready"}
        )
        method: Any = channel.unary_unary("/test.Long/Method")
        calls = [method(b"") for _ in range(10)]
        await eventually(lambda: sum(h.server.statistics().active for h in fleet) == 10)
        assert leaving.server.statistics().active
        draining = asyncio.create_task(leaving.server.drain())
        await eventually(lambda: leaving.server._reporter.stopping)  # GOAWAY
        calls += [method(b"") for _ in range(10)]
        await eventually(lambda: sum(h.server.statistics().active for h in fleet) == 20)
        assert staying.server.statistics().active >= 10
        ended.set()
        assert {await call.code() for call in calls} == {StatusCode.OK}
        await asyncio.wait_for(draining, 10)


async def test_a_stream_that_is_no_request_does_not_hold_a_drain(
    timed_server: MakeServer,
) -> None:
    """A service of the user's own that lasts as long as its connection."""
    hosted = timed_server(lame_duck_quiet=0.1)

    async def watch(requests: Any, context: Any) -> AsyncIterator[bytes]:
        yield b"first"
        await asyncio.Event().wait()

    add_methods(hosted.server, {REFLECTION: stream_stream(watch)})
    await hosted.server.start()
    stream: Any = hosted.channel.stream_stream(REFLECTION)()
    assert await stream.read() == b"first"
    await asyncio.wait_for(hosted.server.drain(), 10)
    assert await stream.code() is not StatusCode.OK


async def test_a_stopped_server_has_no_timer_and_no_task(
    timed_server: MakeServer,
) -> None:
    """The tasks are looked for after every test."""
    hosted = timed_server()
    await hosted.server.start()
    await hosted.server.stop(None)
    await hosted.server.stop(1.0)
    timer = hosted.server._parts.sampler._timer
    assert timer is not None
    assert timer.cancelled()


async def test_a_server_that_never_started_can_be_stopped_and_then_started(
    timed_server: MakeServer,
) -> None:
    hosted = timed_server()
    await hosted.server.stop(None)
    await hosted.server.start()
    assert hosted.server.state is TaskState.SERVING
    assert await hosted.method(b"0") == b"served"


async def test_start_may_be_repeated(timed_server: MakeServer) -> None:
    hosted = timed_server()
    await hosted.server.start()
    await hosted.server.start()
    assert await hosted.method(b"0") == b"served"


async def test_a_dropped_server_ends_its_samples() -> None:
    needs.grpcio("1.84", "a dropped server ends at a garbage collection")
    hosted = TimedServer()
    await hosted.server.start()
    sampler = hosted.server._parts.sampler
    await hosted.channel.close()
    del hosted
    assert sampler._timer is not None
    assert sampler._timer.cancelled()


async def test_a_cancelled_wait_for_termination_does_no_harm(
    timed_server: MakeServer,
) -> None:
    """With grpc.aio's own every later `stop` raises CancelledError."""
    hosted = timed_server()
    await hosted.server.start()
    waiting = asyncio.create_task(hosted.server.wait_for_termination())
    await asyncio.sleep(0)  # it begins
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    await hosted.server.stop(None)
    assert not await hosted.server.wait_for_termination()


# serve()


@pytest.fixture
def signals_unchanged() -> Any:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    yield
    after = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    assert after == before


async def serve_a_call(
    hosted: Any, request: bytes, eventually: Any
) -> tuple["asyncio.Task[None]", Any]:
    """Runs `serve`, and a call that is in flight there."""
    serving = asyncio.create_task(serve(hosted.server))
    await hosted.channel.channel_ready()
    call = hosted.method(request)
    await eventually(lambda: hosted.server.statistics().active == 1)
    return serving, call


@pytest.mark.usefixtures("signals_unchanged")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_serve_drains_at_the_first_signal(
    timed_server: MakeServer, eventually: Any, number: signal.Signals
) -> None:
    hosted = timed_server(lame_duck_quiet=0.1)
    serving, call = await serve_a_call(hosted, b"0.2", eventually)
    os.kill(os.getpid(), number)
    await eventually(lambda: hosted.server.state is TaskState.LAME_DUCK)
    assert await call == b"served"
    await asyncio.wait_for(serving, 10)


@pytest.mark.usefixtures("signals_unchanged")
async def test_serve_stops_at_the_second_signal(
    timed_server: MakeServer, eventually: Any
) -> None:
    hosted = timed_server()
    serving, call = await serve_a_call(hosted, b"30", eventually)
    os.kill(os.getpid(), signal.SIGTERM)
    await eventually(lambda: hosted.server.state is TaskState.LAME_DUCK)
    await let_pass(ECHO)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(serving, 10)
    assert await call.code() is not StatusCode.OK


@pytest.mark.usefixtures("signals_unchanged")
async def test_serve_takes_two_signals_at_once_for_one(
    timed_server: MakeServer, eventually: Any
) -> None:
    """A wrapper that passes on what its group got as well cost the calls in flight."""
    hosted = timed_server(lame_duck_quiet=0.1)
    serving, call = await serve_a_call(hosted, b"0.2", eventually)
    os.kill(os.getpid(), signal.SIGTERM)
    await eventually(lambda: hosted.server.state is TaskState.LAME_DUCK)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await call == b"served"
    await asyncio.wait_for(serving, 10)


@pytest.mark.usefixtures("signals_unchanged")
async def test_serve_that_is_cancelled_stops_the_server(
    timed_server: MakeServer,
) -> None:
    hosted = timed_server()
    serving = asyncio.create_task(serve(hosted.server))
    await hosted.channel.channel_ready()
    serving.cancel()
    with suppress(asyncio.CancelledError):
        await serving
    assert not await hosted.server.wait_for_termination(5)


@pytest.mark.usefixtures("signals_unchanged")
async def test_serve_returns_when_somebody_else_stops_the_server(
    timed_server: MakeServer,
) -> None:
    hosted = timed_server()
    await hosted.server.start()
    serving = asyncio.create_task(serve(hosted.server))
    await hosted.channel.channel_ready()
    await hosted.server.stop(None)
    await asyncio.wait_for(serving, 10)


def told(server: Any, how: str) -> "asyncio.Task[None]":
    """A task that stops the server, or drains it: "stop 10", "stop now", "drain"."""
    word, _, grace = how.partition(" ")
    if word == "drain":
        return asyncio.create_task(server.drain())
    return asyncio.create_task(server.stop(None if grace == "now" else float(grace)))


@pytest.mark.parametrize("second", ["stop now", "stop 0.1"])
@pytest.mark.parametrize("first", ["stop 60", "stop now", "drain"])
async def test_of_two_who_stop_a_server_the_less_patient_decides(
    timed_server: MakeServer, eventually: Any, first: str, second: str
) -> None:
    """`drain` went on waiting for a quiet moment of a server that had stopped."""
    hosted = timed_server(lame_duck_quiet=60.0, lame_duck_period=200.0)
    await hosted.server.start()
    call = hosted.method(b"60")
    await eventually(lambda: hosted.server.statistics().active == 1)
    tasks = [told(hosted.server, first)]
    await eventually(lambda: hosted.server.state is TaskState.LAME_DUCK)
    tasks.append(told(hosted.server, second))
    async with asyncio.timeout(20):
        await asyncio.gather(*tasks)
    assert await call.code() is StatusCode.UNAVAILABLE


@pytest.mark.parametrize("first", ["stop 60", "drain"])
async def test_who_gives_up_stopping_a_server_leaves_that_to_others(
    timed_server: MakeServer, eventually: Any, first: str
) -> None:
    hosted = timed_server(lame_duck_quiet=60.0, lame_duck_period=200.0)
    await hosted.server.start()
    call = hosted.method(b"0.5")
    await eventually(lambda: hosted.server.statistics().active == 1)
    task = told(hosted.server, first)
    other = told(hosted.server, "stop 60")
    await eventually(lambda: hosted.server.state is TaskState.LAME_DUCK)
    task.cancel()
    async with asyncio.timeout(20):
        await other
    with suppress(asyncio.CancelledError):
        await task
    assert await call == b"served"


@pytest.mark.parametrize("how", ["stop now", "stop 0.1"])
async def test_a_stop_goes_on_when_its_caller_is_cancelled(
    timed_server: MakeServer, eventually: Any, how: str
) -> None:
    """Cancelling grpc.aio's own spoils every later `stop`, or leaves calls running."""
    hosted = timed_server()
    await hosted.server.start()
    call = hosted.method(b"60")
    await eventually(lambda: hosted.server.statistics().active == 1)
    task = told(hosted.server, how)
    await asyncio.sleep(0)
    assert hosted.server.state is TaskState.LAME_DUCK
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert not await hosted.server.wait_for_termination(20)
    assert await call.code() is StatusCode.UNAVAILABLE


async def test_at_most_two_of_grpcs_own_stops_overlap(timed_server: MakeServer) -> None:
    """A third one can crash the process."""
    hosted = timed_server()
    running: list[float | None] = []
    overlaps: list[tuple[float | None, ...]] = []
    stop = hosted.server._inner.stop

    async def watched(grace: float | None) -> None:
        running.append(grace)
        overlaps.append(tuple(running))
        await stop(grace)
        running.remove(grace)

    hosted.server._inner.stop = watched
    await hosted.server.start()
    tasks = [told(hosted.server, how) for how in ("stop 5", "stop 0", "stop now") * 3]
    await hosted.server.wait_for_termination()
    tasks += [told(hosted.server, "stop now"), told(hosted.server, "drain")]
    async with asyncio.timeout(20):
        await asyncio.gather(*tasks)
    # Grace must not end while another stop runs.
    assert set(overlaps) <= {(FOREVER,), (FOREVER, None)}


@pytest.mark.parametrize("how", ["stop 60", "stop now", "drain"])
async def test_a_server_that_has_stopped_stops_at_once(
    timed_server: MakeServer, how: str
) -> None:
    hosted = timed_server(lame_duck_quiet=60.0, lame_duck_period=200.0)
    await hosted.server.start()
    await hosted.server.stop(None)
    async with asyncio.timeout(20):
        await told(hosted.server, how)


async def test_serve_works_where_signals_cannot_be_handled() -> None:
    """In a thread with a loop of its own."""

    async def live() -> TaskState:
        hosted = TimedServer(lame_duck_quiet=0.0)
        serving = asyncio.create_task(serve(hosted.server))
        assert await hosted.method(b"0") == b"served"
        await hosted.server.drain()
        await asyncio.wait_for(serving, 10)
        await hosted.channel.close()
        return TaskState(hosted.server.state)

    assert await asyncio.to_thread(asyncio.run, live()) is TaskState.LAME_DUCK


# Processes

PROGRAM = """
import asyncio, sys
import grpc, lbclient

async def respond(request, context):
    await asyncio.sleep(float(request))
    return b"served"

async def main():
    server = lbclient.server()
    handler = grpc.unary_unary_rpc_method_handler(respond)
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("test.Service", {"Method": handler})]
    )
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await lbclient.serve(server)
    print("stopped", flush=True)

asyncio.run(main())
"""


TWO_SERVERS = """
import asyncio, signal, sys
import lbclient

async def main():
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    if sys.argv[1] == "own handler":
        loop.add_signal_handler(signal.SIGTERM, told.set)
    before = signal.getsignal(signal.SIGTERM)
    servers = [lbclient.server(), lbclient.server()]
    serving = []
    for server in servers:
        server.add_insecure_port("127.0.0.1:0")
        serving.append(asyncio.create_task(lbclient.serve(server)))
        while server.state.name != "SERVING":
            await asyncio.sleep(0.01)
    if sys.argv[1] == "one stopped":
        await servers[1].stop(None)
        await serving[1]
    print("serving", flush=True)
    await asyncio.gather(*serving)
    assert signal.getsignal(signal.SIGTERM) == before
    print(f"stopped, {told.is_set()}", flush=True)
    if sys.argv[1] == "own handler":
        await told.wait()
        print("told", flush=True)

if sys.argv[2] == "uvloop":
    import uvloop
    uvloop.run(main())
else:
    asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("case", "loop"),
    [
        ("two", "asyncio"),
        ("two", "uvloop"),
        ("one stopped", "asyncio"),
        ("own handler", "asyncio"),
    ],
)
async def test_a_signal_stops_all_servers_of_a_loop(case: str, loop: str) -> None:
    """The last one alone was told; SIGTERM then did nothing more. A program's own
    handler, which `serve` replaces, was lost for good."""
    if loop == "uvloop":
        needs.module("uvloop")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", TWO_SERVERS, case, loop),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"LBCLIENT_LAME_DUCK_QUIET": "0.1"},
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            assert await process.stdout.readline() == b"serving\n"
            process.terminate()
            assert await process.stdout.readline() == b"stopped, False\n"
            if case == "own handler":
                process.terminate()
                assert await process.stdout.readline() == b"told\n"
            assert await process.wait() == 0
    finally:
        _kill(process)


MANY_WHO_STOP = """
import asyncio, lbclient

async def live():
    server = lbclient.server()
    server.add_insecure_port("127.0.0.1:0")
    await server.start()

    async def stop_late():
        await server.wait_for_termination(60)
        await server.stop(None)

    tasks = [asyncio.create_task(stop_late())]
    await asyncio.sleep(0)
    tasks += [asyncio.create_task(server.stop(grace)) for grace in (5, None, 5, None)]
    await asyncio.gather(*tasks)

async def main():
    for _ in range(100):
        await live()

asyncio.run(main())
"""


async def test_a_server_that_many_stop_at_once_does_not_crash() -> None:
    """grpc.aio's own does, in about one of thirty times."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", MANY_WHO_STOP)
    try:
        assert await asyncio.wait_for(process.wait(), 60) == 0
    finally:
        _kill(process)


class Child:
    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        self.method: Any = self.channel.unary_unary(PATH)

    async def ended(self) -> tuple[int, bytes]:
        assert self.process.stdout is not None
        output = await asyncio.wait_for(self.process.stdout.read(), 20)
        return await asyncio.wait_for(self.process.wait(), 20), output


@pytest.fixture
async def child() -> AsyncIterator[Any]:
    async with AsyncExitStack() as stack:

        async def child(**environ: str) -> Child:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", PROGRAM),
                stdout=asyncio.subprocess.PIPE,
                env=os.environ | environ,
            )
            stack.callback(_kill, process)
            assert process.stdout is not None
            child = Child(process, int(await process.stdout.readline()))
            await stack.enter_async_context(child.channel)
            await asyncio.wait_for(child.channel.channel_ready(), 20)
            return child

        yield child


def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()


async def test_a_process_that_is_told_to_stop_loses_no_call(child: Any) -> None:
    task = await child(LBCLIENT_LAME_DUCK_QUIET="0.3")
    watch = task.channel.unary_stream(wire.WATCH_METHOD)(b"")
    early = task.method(b"0.5")
    await task.method(b"0")
    task.process.terminate()
    await _until_lame(watch)
    late = task.method(b"0.1")
    for call in (early, late):
        assert await call == b"served"
        report = wire.find_report(await call.trailing_metadata())
        assert report is not None
        assert report.state is TaskState.LAME_DUCK
    while await watch.read() is not grpc.aio.EOF:
        pass
    assert await task.ended() == (0, b"stopped\n")


async def _until_lame(watch: Any) -> None:
    state = None
    while state is not TaskState.LAME_DUCK:
        parsed = wire.parse_health(await watch.read())
        assert parsed is not None
        state = parsed[0]


async def test_a_process_that_is_told_twice_stops_now(child: Any) -> None:
    task = await child()
    watch = task.channel.unary_stream(wire.WATCH_METHOD)(b"")
    call = task.method(b"30")
    task.process.terminate()
    await _until_lame(watch)
    await let_pass(ECHO)
    task.process.terminate()
    assert await task.ended() == (0, b"stopped\n")
    assert await call.code() is not StatusCode.OK
    with suppress(grpc.aio.AioRpcError):
        while await watch.read() is not grpc.aio.EOF:
            pass


async def test_the_kill_switch_hands_out_grpcs_own_server(child: Any) -> None:
    """`serve` stops it with the lame duck period for a grace."""
    task = await child(LBCLIENT_DISABLE="1")
    call = task.method(b"0.5")
    await task.method(b"0")
    task.process.terminate()
    assert await call == b"served"
    assert wire.find_report(await call.trailing_metadata()) is None
    assert await task.ended() == (0, b"stopped\n")


async def test_the_front_door_makes_a_server_of_ours() -> None:
    server = lbclient.server()
    assert isinstance(server, Server)
    assert isinstance(server, grpc.aio.Server)
    assert repr(server) == (
        "<starting, <0 active, 0.0 qps, 0.0 eps, utilization 0.00>>"
    )


async def test_serve_refuses_what_is_no_server() -> None:
    with pytest.raises(TypeError, match=r"^no server of grpc\.aio or lbclient: 5$"):
        await serve(5)  # type: ignore[arg-type]
    with ThreadPoolExecutor(1) as pool:
        synchronous: Any = lbclient.sync_server(pool)
        with pytest.raises(TypeError, match=r"call lbclient\.serve_sync"):
            await serve(synchronous)
        synchronous.stop(None)
