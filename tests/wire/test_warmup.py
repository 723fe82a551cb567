"""What a task does before it is ready, and what its clients do meanwhile."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from time import monotonic
from typing import Any

import grpc
import grpc.aio
import pytest

import lbclient
from lbclient import ChannelConfig, ConfigError, ServerConfig, wire
from lbclient.client.channel import Channel
from lbclient.core.model import TaskState
from lbclient.pickers import PICKERS, WITHOUT_SLOW_START
from lbclient.pickers.slow_start import FLOOR
from lbclient.v1 import compat_pb2, health_pb2
from tests.hosts import PATH, add_methods, unary_unary
from tests.waiting import let_pass

SERVING = compat_pb2.ServingReply.SERVING
NOT_SERVING = compat_pb2.ServingReply.NOT_SERVING


class WarmingServer:
    """A server that warms up until `warm` is set, or is told to fail."""

    def __init__(self) -> None:
        # Not full, however busy the loop is that it shares with its clients: where the
        # other backends are full slow start yields.
        config = ServerConfig(
            lame_duck_quiet=0.0, utilization=lambda: 0.5, utilization_replaces=True
        )
        self.server = lbclient.server(config=config)
        self.served = 0
        add_methods(self.server, {PATH: unary_unary(self.respond)})
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.channel = grpc.aio.insecure_channel(self.address)
        self.method: Any = self.channel.unary_unary(PATH)
        self.check: Any = self.channel.unary_unary(wire.CHECK_METHOD)
        self.watch: Any = self.channel.unary_stream(wire.WATCH_METHOD)
        self.warm = asyncio.Event()
        self.is_cancelled = False

    async def respond(self, request: bytes, context: Any) -> bytes:
        self.served += 1
        return self.address.encode()

    async def warmup(self) -> None:
        try:
            await self.warm.wait()
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise

    async def serving_status(self) -> int:
        check: Any = self.channel.unary_unary(
            wire.SERVING_CHECK_METHOD,
            response_deserializer=compat_pb2.ServingReply.FromString,
        )
        return int((await check(b"")).status)


@pytest.fixture
async def warming_server() -> AsyncIterator[Callable[[], WarmingServer]]:
    async with AsyncExitStack() as stack:

        def warming_server() -> WarmingServer:
            hosted = WarmingServer()
            stack.push_async_callback(hosted.server.stop, None)
            stack.push_async_callback(hosted.channel.close)
            return hosted

        yield warming_server


@pytest.fixture
async def hosted(warming_server: Callable[[], WarmingServer]) -> WarmingServer:
    return warming_server()


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., asyncio.Task[None]]]:
    """Serves in a task, which is cancelled after the test."""
    tasks: list[asyncio.Task[None]] = []

    def serve(hosted: WarmingServer, warmup: Any) -> asyncio.Task[None]:
        tasks.append(asyncio.create_task(lbclient.serve(hosted.server, warmup=warmup)))
        return tasks[-1]

    yield serve
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


Serve = Callable[..., asyncio.Task[None]]


async def state_in_trailers(hosted: WarmingServer) -> TaskState | None:
    call = hosted.method(b"", wait_for_ready=True)
    await call
    report = wire.find_report(await call.trailing_metadata())
    assert report is not None
    return report.state


# --- the server ------------------------------------------------------------------


async def test_a_task_that_warms_up_says_so_and_serves_who_calls_nevertheless(
    hosted: WarmingServer, serve: Serve, eventually: Any
) -> None:
    serve(hosted, hosted.warmup)
    assert await state_in_trailers(hosted) is TaskState.STARTING
    assert await hosted.serving_status() == NOT_SERVING
    parsed = wire.parse_health(await hosted.check(b""))
    assert parsed is not None
    assert parsed[0] is TaskState.STARTING
    assert hosted.served == 1
    hosted.warm.set()
    await eventually(lambda: hosted.server.state is TaskState.SERVING)
    assert await state_in_trailers(hosted) is TaskState.SERVING
    assert await hosted.serving_status() == SERVING


async def test_ready_is_told_to_every_watcher_within_a_round_trip(
    hosted: WarmingServer, serve: Serve
) -> None:
    """Before the answers to requests that are sent right after it."""
    serve(hosted, hosted.warmup)
    await hosted.method(b"", wait_for_ready=True)
    request = health_pb2.HealthRequest(report_interval=3600).SerializeToString()
    watch_serving: Any = hosted.channel.unary_stream(
        wire.SERVING_WATCH_METHOD,
        response_deserializer=compat_pb2.ServingReply.FromString,
    )
    own, other = hosted.watch(request), watch_serving(b"")
    first = wire.parse_health(await own.read())
    assert first is not None
    assert first[0] is TaskState.STARTING
    assert (await other.read()).status == NOT_SERVING
    told = [asyncio.create_task(call.read()) for call in (own, other)]
    hosted.warm.set()
    for _ in range(4):  # the loop is shared by both sides, and the warmup's task
        await hosted.method(b"")
    assert all(task.done() for task in told)
    second = wire.parse_health(told[0].result())
    assert second is not None
    assert second[0] is TaskState.SERVING
    assert told[1].result().status == SERVING


async def test_a_plain_function_warms_up_in_a_thread(
    hosted: WarmingServer, serve: Serve, eventually: Any
) -> None:
    threads, go = [], threading.Event()

    def warmup() -> None:
        threads.append(threading.current_thread())
        assert go.wait(20)

    serve(hosted, warmup)
    assert await state_in_trailers(hosted) is TaskState.STARTING  # the loop is free
    assert threads[0] is not threading.main_thread()
    go.set()
    await eventually(lambda: hosted.server.state is TaskState.SERVING)


class Warm:
    """A callable object."""

    def __init__(self, hosted: WarmingServer) -> None:
        self.hosted = hosted

    async def __call__(self) -> None:
        asyncio.get_running_loop()
        await self.hosted.warmup()


@pytest.mark.parametrize(
    "make",
    [
        Warm,
        lambda hosted: lambda: hosted.warmup(),
        lambda hosted: partial(asyncio.wait_for, hosted.warmup(), None),
    ],
    ids=["an object", "a lambda", "a partial"],
)
async def test_whatever_gives_a_coroutine_is_awaited(
    hosted: WarmingServer,
    serve: Serve,
    eventually: Any,
    make: Callable[[WarmingServer], Any],
) -> None:
    serve(hosted, make(hosted))
    assert await state_in_trailers(hosted) is TaskState.STARTING
    hosted.warm.set()
    await eventually(lambda: hosted.server.state is TaskState.SERVING)


async def test_start_warms_up_too(hosted: WarmingServer) -> None:
    starting = asyncio.create_task(hosted.server.start(warmup=hosted.warmup))
    assert await state_in_trailers(hosted) is TaskState.STARTING
    hosted.warm.set()
    await starting
    assert hosted.server.state is TaskState.SERVING


async def test_a_stop_ends_a_warmup(hosted: WarmingServer) -> None:
    starting = asyncio.create_task(hosted.server.start(warmup=hosted.warmup))
    assert await state_in_trailers(hosted) is TaskState.STARTING
    await hosted.server.stop(None)
    await asyncio.wait_for(starting, 20)
    assert hosted.is_cancelled
    assert hosted.server.state is TaskState.LAME_DUCK


@pytest.mark.parametrize("way", ["stop", "drain"])
async def test_a_warmup_may_stop_its_own_server(
    hosted: WarmingServer, way: str
) -> None:
    async def warmup() -> None:
        await (hosted.server.stop(None) if way == "stop" else hosted.server.drain())

    await asyncio.wait_for(hosted.server.start(warmup), 20)
    assert hosted.server.state is TaskState.LAME_DUCK


async def test_a_start_that_is_cancelled_cancels_its_warmup(
    hosted: WarmingServer,
) -> None:
    starting = asyncio.create_task(hosted.server.start(warmup=hosted.warmup))
    assert await state_in_trailers(hosted) is TaskState.STARTING
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert hosted.is_cancelled


async def fails() -> None:
    raise LookupError("no model")


def fails_in_a_thread() -> None:
    raise LookupError("no model")


@pytest.mark.parametrize("warmup", [fails, fails_in_a_thread])
async def test_a_warmup_that_fails_stops_the_server_and_is_raised(
    hosted: WarmingServer, warmup: Any
) -> None:
    with pytest.raises(LookupError, match="no model"):
        await asyncio.wait_for(lbclient.serve(hosted.server, warmup=warmup), 20)
    assert not await hosted.server.wait_for_termination(5)
    assert hosted.server.state is TaskState.LAME_DUCK


async def test_sigterm_cancels_a_warmup_and_the_server_leaves_in_order(
    hosted: WarmingServer, serve: Serve
) -> None:
    serving = serve(hosted, hosted.warmup)
    await hosted.method(b"", wait_for_ready=True)
    watch = hosted.watch(b"")
    await watch.read()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(serving, 20)
    assert hosted.is_cancelled
    parsed = wire.parse_health(await watch.read())
    assert parsed is not None
    assert parsed[0] is TaskState.LAME_DUCK  # it was never told that it serves


async def test_sigterm_does_not_wait_for_a_thread(
    hosted: WarmingServer, serve: Serve
) -> None:
    go, over = threading.Event(), threading.Event()

    def warmup() -> None:
        go.wait(60)
        over.set()

    serving = serve(hosted, warmup)
    await hosted.method(b"", wait_for_ready=True)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(serving, 20)
    assert not over.is_set()
    go.set()
    assert await asyncio.to_thread(over.wait, 20)


async def test_serve_that_is_cancelled_cancels_the_warmup(
    hosted: WarmingServer, serve: Serve
) -> None:
    serving = serve(hosted, hosted.warmup)
    await hosted.method(b"", wait_for_ready=True)
    serving.cancel()
    await asyncio.wait((serving,))
    assert hosted.is_cancelled
    assert not await hosted.server.wait_for_termination(5)


@pytest.mark.parametrize("warmup", [7, "warm", ()])
async def test_what_cannot_be_called_is_no_warmup(
    hosted: WarmingServer, warmup: Any
) -> None:
    with pytest.raises(ConfigError, match=r"warmup = .*: want a callable"):
        await lbclient.serve(hosted.server, warmup=warmup)
    assert hosted.server.state is TaskState.STARTING  # and never started


async def test_a_server_that_serves_cannot_be_warmed_up(hosted: WarmingServer) -> None:
    await hosted.server.start()
    with pytest.raises(ConfigError, match="the server has started"):
        await hosted.server.start(warmup=hosted.warmup)
    assert hosted.server.state is TaskState.SERVING


async def test_grpcs_own_server_listens_when_it_is_warm(
    monkeypatch: pytest.MonkeyPatch,
    warming_server: Callable[[], WarmingServer],
    serve: Serve,
) -> None:
    """The kill switch: it has no state to tell."""
    monkeypatch.setenv("LBCLIENT_DISABLE", "1")
    hosted = warming_server()
    serving = serve(hosted, hosted.warmup)
    call = hosted.method(b"", wait_for_ready=True)
    await let_pass(0.1)
    assert hosted.served == 0
    hosted.warm.set()
    await asyncio.wait_for(call, 20)
    assert not serving.done()


# --- its clients -----------------------------------------------------------------


async def test_a_waiting_call_is_sent_within_a_round_trip_of_ready(
    hosted: WarmingServer, serve: Serve, eventually: Any
) -> None:
    serve(hosted, hosted.warmup)
    config = ChannelConfig(health_interval=3600)
    async with lbclient.insecure_channel(hosted.address, config=config) as channel:
        method: Any = channel.unary_unary(PATH)
        call = asyncio.ensure_future(method(b"", timeout=20))
        await eventually(lambda: states(channel) == ["starting"])
        assert hosted.served == 0
        hosted.warm.set()
        trips = 0
        while not call.done():
            await hosted.check(b"")
            trips += 1
        # The news, the call, its answer; and the loop is shared by both sides.
        assert trips <= 6
        assert (await call, hosted.served) == (hosted.address.encode(), 1)


async def ask(channel: Any, count: int) -> dict[str, int]:
    method: Any = channel.unary_unary(PATH)
    answers = [(await method(b"", timeout=20)).decode() for _ in range(count)]
    return {answer: answers.count(answer) for answer in set(answers)}


def states(channel: Any) -> list[str]:
    return sorted(backend.state for backend in channel.statistics().backends)


# Those that go by latency give shares that nobody knows beforehand: of two idle ones
# they may take the one that answered faster, again and again.
BY_LATENCY = ("peak_ewma", "prequal")


@pytest.mark.parametrize("picker", [it for it in PICKERS if it not in BY_LATENCY])
async def test_a_newcomer_gets_nothing_before_it_is_ready_and_a_part_after(
    warming_server: Callable[[], WarmingServer],
    serve: Serve,
    eventually: Any,
    picker: str,
) -> None:
    """The ramp takes an hour, so that it stays at its floor here."""
    old, new = warming_server(), warming_server()
    await old.server.start()
    serve(new, new.warmup)
    target = f"ipv4:{old.address},{new.address}"
    config = ChannelConfig(picker=picker, slow_start=3600.0, health_interval=3600.0)
    passed = 0.0  # of seconds that are not waited for
    async with Channel(
        target, None, None, None, None, config, lambda: monotonic() + passed
    ) as channel:
        await ask(channel, 1)
        await eventually(lambda: states(channel) == ["ready", "starting"])
        passed = 3600.0
        assert await ask(channel, 100) == {old.address: 100}
        new.warm.set()
        await eventually(lambda: states(channel) == ["ready", "ready"])
        share = 1.0 if PICKERS[picker] in WITHOUT_SLOW_START else FLOOR
        seen = {each.address: each.weight for each in channel.statistics().backends}
        assert seen[new.address] / seen[old.address] == pytest.approx(share, rel=0.01)
        assert sum(seen.values()) == pytest.approx(len(seen))
        answers = await ask(channel, 440)
        assert answers[new.address] / answers[old.address] == pytest.approx(
            share, rel=0.5
        )


PROGRAM = """
import asyncio, sys
import grpc, lbclient

is_warm = False

def warmup():
    global is_warm
    sys.stdin.readline()
    is_warm = True

async def respond(request, context):
    return b"warm" if is_warm else b"cold"

async def main():
    server = lbclient.server()
    handler = grpc.unary_unary_rpc_method_handler(respond)
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("test.Service", {"Method": handler})]
    )
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await lbclient.serve(server, warmup=warmup)
    print("stopped", flush=True)

asyncio.run(main())
"""


@pytest.fixture
async def child() -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"LBCLIENT_LAME_DUCK_QUIET": "0.1"},
    )
    yield process
    with suppress(ProcessLookupError):
        process.kill()
    await process.communicate()


async def test_a_process_that_warms_up_gets_no_call_before_it_is_ready(
    hosted: WarmingServer, child: Any, eventually: Any
) -> None:
    await hosted.server.start()
    port = int(await child.stdout.readline())
    target = f"ipv4:{hosted.address},127.0.0.1:{port}"
    config = ChannelConfig(slow_start=0.0)
    async with lbclient.insecure_channel(target, config=config) as channel:
        await ask(channel, 1)
        await eventually(lambda: states(channel) == ["ready", "starting"])
        assert await ask(channel, 100) == {hosted.address: 100}
        child.stdin.write(b"go\n")
        seen: dict[str, int] = {}
        while "warm" not in seen:
            seen |= await ask(channel, 10)
        assert seen.keys() == {hosted.address, "warm"}


async def test_a_process_that_is_told_to_stop_while_it_warms_up_stops(
    child: Any,
) -> None:
    port = int(await child.stdout.readline())
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        method: Any = channel.unary_unary(PATH)
        assert await method(b"", wait_for_ready=True, timeout=20) == b"cold"
        child.terminate()
        assert await asyncio.wait_for(child.stdout.readline(), 20) == b"stopped\n"
    assert await asyncio.wait_for(child.wait(), 20) == 0
