"""What a server counts and measures, request by request."""

import asyncio
import logging
import resource
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from math import inf, nan
from pathlib import Path
from threading import Event, Thread, get_ident
from typing import Any, cast

import grpc
import grpc.aio
import pytest
from grpc import StatusCode

from lbclient import wire
from lbclient.config import ServerConfig
from lbclient.core.model import LoadReport
from lbclient.server import Server
from lbclient.server.report.request_tally import MethodTally
from lbclient.server.sampler import SAMPLE_INTERVAL
from lbclient.v1 import load_pb2
from tests.hosts import PATH, Host, method_handler
from tests.parts import parts
from tests.waiting import eventually, let_pass
from tests.wire.conftest import echo


async def hosted(
    host: Host, behavior: Any, arity: str = "unary_unary", **options: Any
) -> tuple[Server, Any, grpc.aio.Channel]:
    """Hosts one function; returns the server, the method's stub, and the channel."""
    server, _, channel = await host(method_handler(arity, behavior), **options)
    return server, getattr(channel, arity)(PATH), channel


@pytest.fixture
async def pool() -> AsyncIterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(1)
    yield pool
    await asyncio.to_thread(pool.shutdown)


async def wait(request: bytes, context: Any) -> bytes:
    await asyncio.sleep(30)
    return request


async def wait_in_stream(request: bytes, context: Any) -> AsyncIterator[bytes]:
    yield request
    await asyncio.sleep(30)


async def flood(request: bytes, context: Any) -> AsyncIterator[bytes]:
    while True:
        yield bytes(100_000)


async def write_and_wait(request: bytes, context: Any) -> None:
    await context.write(request)
    await asyncio.sleep(30)


@pytest.mark.parametrize(
    ("code", "is_error"),
    [
        (StatusCode.OK, False),
        (StatusCode.NOT_FOUND, False),
        (StatusCode.INVALID_ARGUMENT, False),
        (StatusCode.PERMISSION_DENIED, False),
        (StatusCode.UNIMPLEMENTED, False),
        (StatusCode.UNKNOWN, True),
        (StatusCode.DEADLINE_EXCEEDED, True),
        (StatusCode.RESOURCE_EXHAUSTED, True),
        (StatusCode.INTERNAL, True),
        (StatusCode.UNAVAILABLE, True),
        (StatusCode.DATA_LOSS, True),
    ],
)
def test_an_error_is_the_servers_fault(code: StatusCode, is_error: bool) -> None:
    now = 0.0
    server = parts(clock=lambda: now, read_cpu=lambda now: 0.0)
    server.sampler.sample()
    server.monitor.active += 1
    method = MethodTally(server.tally.call_counts.of("unary_unary", "/a/b"))
    server.tally.finish(code, now, method)
    now = 0.5
    server.sampler.sample()
    seen = server.statistics()
    assert (seen.qps, seen.eps) == pytest.approx((2.0, 2.0 * is_error))
    assert seen.requests[code.name] == 1


def test_who_asks_while_it_is_being_counted_neither_hangs_nor_counts_twice() -> None:
    """As a signal's handler does. It waited for a lock that its own thread had."""
    server = parts()
    reporter, tally = server.reporter, server.tally
    method = MethodTally(tally.call_counts.of("unary_unary", "/a/b"))
    for _ in range(5):
        server.monitor.active += 1
        tally.finish(StatusCode.OK, 0.0, method)
    observe = tally.latency.observe
    asked: list[int] = []

    class Asking:
        bounds, counts, sum = tally.latency.bounds, tally.latency.counts, 0.0

        def observe(self, took: float) -> None:
            observe(took)
            if len(asked) < 2:
                asked.append(0)
                reporter.statistics()

    tally.latency = cast(Any, Asking())
    thread = Thread(target=reporter.statistics, daemon=True)
    thread.start()
    thread.join(20.0)
    assert not thread.is_alive()
    seen = reporter.statistics()
    assert seen.requests["OK"] == sum(seen.latency_counts) == 5
    assert server.monitor.begun == 5


async def test_what_a_thread_served_is_told_on_the_loop(
    host: Host, pool: ThreadPoolExecutor, eventually: Any
) -> None:
    told_in: set[int] = set()

    class Uncounted(deque[Any]):
        def append(self, one: Any) -> None:
            told_in.add(get_ident())
            super().append(one)

    def respond(request: bytes, context: Any) -> bytes:
        return request

    server, method, _ = await hosted(host, respond, migration_thread_pool=pool)
    server._reporter.monitor.uncounted = Uncounted()
    for _ in range(20):
        await method(b"")
    await eventually(lambda: server.statistics().requests["OK"] == 20)
    assert told_in == {get_ident()}


async def test_rates_are_measured(host: Host, eventually: Any) -> None:
    async def respond(request: bytes, context: Any) -> bytes:
        if request == b"fail":
            raise RuntimeError("broken")
        return request

    server, method, _ = await hosted(host, respond)
    for request in (b"ok", b"fail") * 5:
        with suppress(grpc.aio.AioRpcError):
            await method(request)
    await eventually(lambda: server.statistics().eps > 0)
    seen = server.statistics()
    assert seen.qps > seen.eps
    call = method(b"ok")
    await call
    report = wire.find_report(await call.trailing_metadata())
    assert report is not None
    assert report.qps > 0 < report.eps
    assert server.statistics().requests == {"OK": 6, "UNKNOWN": 5}
    assert sum(server.statistics().latency_counts) == 11
    assert server.statistics().latency_sum > 0


STREAMS = [wait_in_stream, flood, write_and_wait]


@pytest.mark.parametrize("behavior", STREAMS)
async def test_a_cancelled_stream_is_neither_served_nor_failed(
    host: Host, eventually: Any, behavior: Any
) -> None:
    server, method, _ = await hosted(host, behavior, "unary_stream")
    call = method(b"x")
    await call.read()
    assert server.statistics().active == 1
    call.cancel()
    await eventually(lambda: server.statistics().active == 0)
    seen = server.statistics()
    assert seen.requests == {"OK": 0, "CANCELLED": 1}
    assert sum(seen.latency_counts) == 0


async def test_a_cancelled_call_is_neither_served_nor_failed(
    host: Host, eventually: Any
) -> None:
    server, method, _ = await hosted(host, wait)
    for timeout in (None, 20.0):
        call = method(b"x", timeout=timeout)
        await eventually(lambda: server.statistics().active == 1)
        call.cancel()
        await eventually(lambda: server.statistics().active == 0)
    await let_pass(2 * SAMPLE_INTERVAL)
    seen = server.statistics()
    assert seen.requests == {"OK": 0, "CANCELLED": 2}
    assert (seen.qps, seen.eps) == (0.0, 0.0)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("arity", ["unary_unary", "stream_unary"])
async def test_of_a_call_in_a_thread_that_is_cancelled_the_rest_is_not_heard(
    host: Host, pool: ThreadPoolExecutor, eventually: Any, arity: str, fails: bool
) -> None:
    """Whatever its handler says when its client has left."""
    begun, going, over = Event(), Event(), Event()

    def respond(_request: Any, context: Any) -> bytes:
        begun.set()
        assert going.wait(20)
        over.set()
        if fails:
            raise ValueError("nobody hears that")
        return b""

    server, method, _ = await hosted(host, respond, arity, migration_thread_pool=pool)
    call = method(b"x" if arity == "unary_unary" else iter([b"x"]))
    await eventually(begun.is_set)
    assert server.statistics().active == 1
    call.cancel()
    try:
        await eventually(lambda: server.statistics().active == 0)
    finally:
        going.set()
    await asyncio.to_thread(over.wait, 20)
    await asyncio.to_thread(pool.shutdown)
    await asyncio.sleep(0)  # what the thread tells the loop
    assert server.statistics().requests == {"OK": 0, "CANCELLED": 1}


# Above a second a timeout is rounded up on the wire: 1.003 s to 1.01 s.
@pytest.mark.parametrize("timeout", [0.05, 1.003])
async def test_a_passed_deadline_is_an_error(
    host: Host, eventually: Any, timeout: float
) -> None:
    server, method, _ = await hosted(host, wait)
    call = method(b"x", timeout=timeout)
    assert await call.code() is StatusCode.DEADLINE_EXCEEDED
    await eventually(lambda: server.statistics().active == 0)
    assert server.statistics().requests == {"OK": 0, "DEADLINE_EXCEEDED": 1}


@pytest.mark.parametrize("behavior", STREAMS)
async def test_a_streams_passed_deadline_is_an_error(
    host: Host, eventually: Any, behavior: Any
) -> None:
    for timeout in (0.05, 0.5, 5.0):  # a busy machine may have no answer in the first
        server, method, _ = await hosted(host, behavior, "unary_stream")
        call = method(b"x", timeout=timeout)
        with suppress(grpc.aio.AioRpcError):
            await call.read()
            break
        assert await call.code() is StatusCode.DEADLINE_EXCEEDED
    assert await call.code() is StatusCode.DEADLINE_EXCEEDED
    await eventually(lambda: server.statistics().active == 0)
    assert server.statistics().requests == {"OK": 0, "DEADLINE_EXCEEDED": 1}


async def test_a_request_that_waits_for_a_thread_is_active(
    host: Host, pool: ThreadPoolExecutor, eventually: Any
) -> None:
    """One thread, one request in it, one cancelled while it waits for the thread."""
    loop = asyncio.get_running_loop()
    going = asyncio.Event()

    def respond(request: bytes, context: Any) -> bytes:
        asyncio.run_coroutine_threadsafe(going.wait(), loop).result(timeout=10)
        return request

    server, method, _ = await hosted(host, respond, migration_thread_pool=pool)
    first, second = method(b"1"), method(b"2")
    await eventually(lambda: server.statistics().active == 2)
    second.cancel()
    await eventually(lambda: server.statistics().active == 1)
    going.set()
    assert await first == b"1"
    await eventually(lambda: server.statistics().active == 0)
    assert server.statistics().requests == {"OK": 1, "CANCELLED": 1}


async def test_a_client_that_never_sends_its_request_is_no_load(host: Host) -> None:
    """It is a request once there is something to do."""
    server, method, channel = await hosted(host, echo)
    stream: Any = channel.stream_unary(PATH)()  # to a unary method
    await method(b"x")
    assert server.statistics().active == 0
    stream.cancel()
    await method(b"x")
    assert server.statistics().requests == {"OK": 2}


class _Slow(grpc.aio.ServerInterceptor):
    def __init__(self) -> None:
        self.may_pass = asyncio.Event()

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        await self.may_pass.wait()
        return await continuation(details)


async def test_a_request_in_a_users_interceptor_is_active(
    host: Host, eventually: Any
) -> None:
    slow = _Slow()
    server, method, _ = await hosted(host, echo, interceptors=[slow])
    calls = [method(b"x") for _ in range(3)]
    await eventually(lambda: server.statistics().active == 3)
    calls.pop().cancel()
    await eventually(lambda: server.statistics().active == 2)
    slow.may_pass.set()
    for call in calls:
        assert await call == b"x"
    assert server.statistics().active == 0
    assert server.statistics().requests == {"OK": 2, "CANCELLED": 1}


async def test_health_and_load_streams_are_no_requests(
    host: Host, eventually: Any
) -> None:
    server, _, channel = await hosted(host, echo)
    paths = (wire.WATCH_METHOD, wire.SERVING_WATCH_METHOD, wire.ORCA_METHOD)
    watches = [await _watched(channel, path) for path in paths]
    check: Any = channel.unary_unary(wire.CHECK_METHOD)
    await check(b"")
    seen = server.statistics()
    assert (seen.active, seen.watchers) == (0, 3)
    assert seen.requests == {"OK": 0}
    for watch in watches:
        watch.cancel()
    await eventually(lambda: server.statistics().watchers == 0)


async def test_watchers_take_no_place_under_the_limit(host: Host) -> None:
    _, method, channel = await hosted(host, echo, maximum_concurrent_rpcs=1)
    await _watched(channel, wire.WATCH_METHOD)
    assert await method(b"x") == b"x"


async def _watched(channel: Any, path: str) -> Any:
    watch = channel.unary_stream(path)(b"")
    await watch.read()
    return watch


async def test_the_applications_utilization_goes_with_the_cpus(host: Host) -> None:
    config = ServerConfig(
        utilization=lambda: 0.75, utilization_replaces=True, runnable=lambda: 3
    )
    server, method, _ = await hosted(host, echo, config=config)
    await eventually(lambda: server.statistics().utilization == pytest.approx(0.75))
    call = method(b"x")
    await call
    report = wire.find_report(await call.trailing_metadata())
    assert report is not None
    assert report.utilization == pytest.approx(0.75)
    assert report.runnable == 3
    assert server.statistics().utilization == pytest.approx(0.75)


async def test_requests_that_wait_are_not_told_as_runnable(host: Host) -> None:
    """Of 31 in flight 30 take 50 times as long as the others, for nothing."""
    release = asyncio.Event()

    async def handle(request: bytes, context: Any) -> bytes:
        if request == b"wait":
            await release.wait()
        return request

    config = ServerConfig(utilization=lambda: 0.1, utilization_replaces=True)
    server, method, _ = await hosted(host, handle, config=config)
    told: list[LoadReport] = []

    async def ask() -> None:
        release.clear()
        waiting = [method(b"wait") for _ in range(30)]
        await eventually(lambda: server.statistics().active == 30)
        for _ in range(50):
            call = method(b"x")
            await call
            report = wire.find_report(await call.trailing_metadata())
            assert report is not None
            assert report.active == 30
            told.append(report)
        release.set()
        for each in waiting:
            await each

    def is_low() -> bool:
        runnable = told[-1].runnable if told else None
        return runnable is not None and runnable <= 20

    await eventually(is_low, lambda: told[-1:], meanwhile=ask)


@pytest.mark.parametrize(
    ("own", "replaces", "told"),
    [(1.5, False, 1.5), (0.1, False, 0.25), (0.1, True, 0.1)],
    ids=["the larger", "the smaller", "the smaller replaces"],
)
def test_both_utilizations_are_reported(
    own: float, replaces: bool, told: float
) -> None:
    """The application's is the larger of what limits, or its own word."""
    now = 0.0
    config = ServerConfig(utilization=lambda: own, utilization_replaces=replaces)
    server = parts(config, lambda: now, lambda now: 0.25)
    server.sampler.sample()
    now = 0.1
    server.sampler.sample()
    load = server.reporter.load()
    assert load.application_utilization == pytest.approx(told)
    assert load.cpu_utilization == pytest.approx(0.25)
    assert server.statistics().utilization == pytest.approx(told)


@pytest.fixture
def limited() -> Iterator[None]:
    """A limit of eight times the address space that this process has."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = 8 * pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (most, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.parametrize("max_memory", [0.95, 0.0])
async def test_the_memory_in_use_is_told(
    host: Host, limited: None, max_memory: float
) -> None:
    """Whether or not requests are refused for it."""
    _, method, _ = await hosted(host, echo, max_memory=max_memory)
    told = 0.0
    while not told:
        call = method(b"x")
        await call
        trailers = await call.trailing_metadata()
        report = load_pb2.LoadReport.FromString(dict([*trailers])[wire.LOAD_KEY])
        told = report.mem_utilization
    assert 0.05 < told < 1.0


async def _named(method: Any) -> dict[str, float]:
    call = method(b"x")
    await call
    trailers = await call.trailing_metadata()
    data = dict([*trailers])[wire.LOAD_KEY]
    return dict(load_pb2.LoadReport.FromString(data).named_metrics)


async def test_the_signals_are_told_over_their_targets(
    host: Host, limited: None
) -> None:
    _, method, _ = await hosted(
        host,
        echo,
        signals={"pool": lambda: 0.25, "broken": _raise},
        max_memory=0.5,
        maximum_concurrent_rpcs=10,
    )
    told = await _named(method)
    while told.get("pool") != pytest.approx(0.25) or "memory" not in told:
        told = await _named(method)
    assert {*told} == {"load", "memory", "pool", "queue delay", "concurrency"}
    assert 0.1 < told["memory"] < 2.0  # an eighth, of a half


async def test_a_signal_that_is_off_or_unknown_is_not_told(host: Host) -> None:
    _, method, _ = await hosted(host, echo, max_load=0, max_memory=0)
    told = await _named(method)
    while not told:
        told = await _named(method)
    assert {*told} == {"queue delay"}


async def test_a_signal_that_breaks_is_not_told_any_more(
    host: Host, eventually: Any
) -> None:
    """It would fade as if the server became idle."""
    pool = [0.8]
    _, method, _ = await hosted(host, echo, signals={"pool": lambda: pool[0]})
    told = await _named(method)
    while "pool" not in told:
        told = await _named(method)
    pool[0] = nan
    while "pool" in told:
        assert told["pool"] == pytest.approx(0.8)
        told = await _named(method)


async def test_the_lag_of_the_loop_is_told(eventually: Any) -> None:
    loop = asyncio.get_running_loop()
    server = parts(clock=loop.time)
    server.start(loop)
    try:
        await eventually(lambda: server.statistics().contention.lag > 0.0)
        loop.call_soon(time.sleep, 3 * SAMPLE_INTERVAL)  # as a handler may do
        await eventually(lambda: server.statistics().contention.lag > 0.02)
    finally:
        server.stop()


async def test_a_loop_that_handlers_block_is_full(eventually: Any) -> None:
    """It uses no CPU time."""
    loop = asyncio.get_running_loop()
    server = parts(clock=time.monotonic)
    server.start(loop)

    async def block() -> None:
        while True:
            time.sleep(0.02)  # noqa: ASYNC251 - as a handler may do
            await asyncio.sleep(0.001)

    blocking = loop.create_task(block())
    try:
        await eventually(lambda: server.statistics().contention.loop > 0.6)
        assert server.statistics().utilization > 0.5
        blocking.cancel()
        await eventually(lambda: server.statistics().contention.loop < 0.5)
    finally:
        blocking.cancel()
        server.stop()
    assert "select" not in vars(loop._selector)  # type: ignore[attr-defined]


@pytest.mark.parametrize("is_default", [False, True])
async def test_a_server_whose_threads_are_all_taken_is_full(
    host: Host, eventually: Any, is_default: bool
) -> None:
    """They wait, and use no CPU time."""
    is_over = Event()

    def wait(request: bytes, context: Any) -> bytes:
        is_over.wait(60.0)
        return request

    pool = ThreadPoolExecutor(2)
    if is_default:
        asyncio.get_running_loop().set_default_executor(pool)
    options: Any = {} if is_default else {"migration_thread_pool": pool}
    server, method, _ = await hosted(host, wait, smoothing=0.1, **options)
    await let_pass(3 * SAMPLE_INTERVAL)  # what it takes to start is no load
    await eventually(lambda: server.statistics().utilization < 0.5)
    try:
        calls = [method(b"") for _ in range(2)]
        await eventually(lambda: server.statistics().utilization > 0.95)
    finally:
        is_over.set()
    await asyncio.gather(*calls)
    await eventually(lambda: server.statistics().utilization < 0.5)
    pool.shutdown()


def _raise() -> float:
    raise OSError("no sensor")


@pytest.mark.parametrize(
    "signal", [_raise, lambda: nan, lambda: -0.1, lambda: inf, lambda: "much"]
)
def test_a_signal_that_fails_is_replaced_by_the_cpu(
    signal: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Counted each time, logged once."""
    now = 0.0
    config = ServerConfig(utilization=signal)
    server = parts(config, lambda: now, lambda now: 0.25)
    with caplog.at_level(logging.WARNING, "lbclient"):
        for _ in range(5):
            server.sampler.sample()
            now += 0.1
    seen = server.statistics()
    assert seen.utilization == pytest.approx(0.25)
    assert seen.signal_failures == 5
    assert len(caplog.records) == 1
    assert "ServerConfig.utilization" in caplog.text


@pytest.mark.parametrize("signal", [_raise, lambda: -1, lambda: 2**40, lambda: nan])
def test_a_runnable_signal_that_fails_is_left_out(
    signal: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = parts(ServerConfig(runnable=signal))
    encoded = server.reporter.encoded
    with caplog.at_level(logging.WARNING, "lbclient"):
        reports = [wire.parse_report(encoded(1)) for _ in range(3)]
    assert [report and report.runnable for report in reports] == [None] * 3
    assert server.statistics().signal_failures == 3
    assert len(caplog.records) == 1


async def test_a_busy_process_is_utilized(host: Host, eventually: Any) -> None:
    async def burn(request: bytes, context: Any) -> bytes:
        sum(range(2_000_000))
        return request

    server, method, _ = await hosted(host, burn)
    for _ in range(10):
        await method(b"x")
    await eventually(lambda: server.statistics().utilization > 0.01)
