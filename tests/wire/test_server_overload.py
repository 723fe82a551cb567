"""What a server in more demand than it can meet does on the wire."""

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar, copy_context
from threading import Event, get_ident
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc import StatusCode

import lbclient
from lbclient import admin, wire
from lbclient.config import ServerConfig
from lbclient.core.criticality import Criticality, current
from lbclient.core.quotas.costs import RequestCost, Total
from lbclient.server import Server
from lbclient.server.meters.cpu import available_cpus
from lbclient.server.quotas.cpu_timing import bill_to, billed
from lbclient.server.sampler import SAMPLE_INTERVAL
from lbclient.wire import propagation
from tests import needs
from tests.hosts import (
    PATH,
    Host,
    Hosted,
    Passing,
    add_methods,
    hosting,
    method_handler,
    unary_unary,
)
from tests.waiting import let_pass

ARITIES = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
KINDS = [(arity, kind) for arity in ARITIES for kind in ("async", "sync")]
KINDS += [("unary_stream", "generator"), ("stream_stream", "generator")]


@pytest.fixture
async def pool() -> AsyncIterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(2)
    yield pool
    await asyncio.to_thread(pool.shutdown)


def handler_of(
    arity: str, kind: str, ask: Callable[[], object], deserializer: Any = None
) -> Any:
    """Answers with what `ask` returns, as text."""

    def answer() -> bytes:
        return str(ask()).encode()

    async def respond(_request: Any, context: Any) -> bytes:
        return answer()

    async def write(_request: Any, context: Any) -> None:
        await context.write(answer())

    async def generate(_request: Any, context: Any) -> AsyncIterator[bytes]:
        yield answer()

    def respond_in_thread(_request: Any, context: Any) -> bytes:
        return answer()

    def generate_in_thread(_request: Any, context: Any) -> Iterator[bytes]:
        yield answer()

    streams = arity.endswith("stream")
    functions: dict[str, Any] = {
        "async": write if streams else respond,
        "generator": generate,
        "sync": generate_in_thread if streams else respond_in_thread,
    }
    return method_handler(arity, functions[kind], request_deserializer=deserializer)


def begin(channel: Any, arity: str, **options: Any) -> Any:
    """Of a stream of requests none is sent: no handler here reads any.

    A client that still writes when its stream ends is told INTERNAL instead.
    """
    method = getattr(channel, arity)(PATH)
    return method(b"a", **options) if arity.startswith("unary") else method(**options)


async def ask(channel: Any, arity: str, **options: Any) -> tuple[bytes, Any]:
    """What the handler said, if anything, and the call."""
    call = begin(channel, arity, **options)
    said = b""
    with suppress(grpc.aio.AioRpcError):
        if arity.endswith("stream"):
            async for message in call:
                said = message
        else:
            said = await call
    return said, call


FULL = ServerConfig(signals={"test": lambda: 1000.0})


def forbidden(*_: object) -> Any:
    raise AssertionError("it was refused")


@pytest.mark.parametrize("interceptors", [None, [Passing()]])
@pytest.mark.parametrize(("arity", "kind"), KINDS)
async def test_what_is_refused_is_neither_read_nor_begun(
    host: Host, pool: ThreadPoolExecutor, arity: str, kind: str, interceptors: Any
) -> None:
    server, _, channel = await host(
        handler_of(arity, kind, forbidden, forbidden),
        config=FULL,
        interceptors=interceptors,
        migration_thread_pool=pool,
    )
    _, call = await ask(channel, arity)
    assert await call.code() is StatusCode.UNAVAILABLE
    assert "test is 1000.00, the limit 1" in await call.details()
    trailers = await call.trailing_metadata()
    assert trailers[wire.REFUSAL_KEY] == "overloaded"
    assert wire.find_report(trailers) is not None
    seen = server.statistics()
    assert seen.refused["overloaded"]["CRITICAL"] == 1
    assert seen.requests == {"OK": 0, "UNAVAILABLE": 1}
    assert seen.active == 0


async def test_a_refusal_is_an_error_to_those_who_read_reports(
    host: Host, eventually: Any
) -> None:
    """And refusals carry that report themselves, before anything is deserialized."""
    server, _, channel = await host(
        handler_of("unary_unary", "async", forbidden, forbidden), config=FULL
    )
    errors = []
    for _ in range(2):
        _, call = await ask(channel, "unary_unary")
        report = wire.find_report(await call.trailing_metadata())
        assert report is not None
        errors.append((report.eps, report.qps))
        await eventually(lambda: server.statistics().eps > 0.0)
    assert errors[0] == (0.0, 0.0)
    assert errors[1][0] == errors[1][1] > 0.0


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("customer", [None, lambda _: "mail"])
async def test_one_customers_quota_is_nothing_to_the_others(
    host: Host, customer: Any, kind: str
) -> None:
    """Else who serves little beside a flood that is refused would look the worst."""
    config = ServerConfig(default_quota=0.0, customer=customer)
    server, _, channel = await host(
        handler_of("unary_unary", kind, forbidden, forbidden), config=config
    )
    for _ in range(3):
        _, call = await ask(channel, "unary_unary")
        trailers = await call.trailing_metadata()
        assert trailers[wire.REFUSAL_KEY] == "quota"
    await let_pass(1.5 * SAMPLE_INTERVAL)
    seen = server.statistics()
    assert (seen.qps, seen.eps, seen.active) == (0.0, 0.0, 0)
    assert seen.requests == {"OK": 0, "RESOURCE_EXHAUSTED": 3}
    assert seen.refused["quota"]["CRITICAL"] == 3


async def test_a_last_attempt_is_told_not_to_retry(host: Host) -> None:
    _, _, channel = await host(
        handler_of("unary_unary", "async", forbidden), config=FULL
    )
    metadata = ((wire.ATTEMPT_KEY, "2"),)
    _, call = await ask(channel, "unary_unary", metadata=metadata)
    trailers = await call.trailing_metadata()
    assert trailers[wire.REFUSAL_KEY] == "overloaded-dont-retry"
    assert trailers[wire.PUSHBACK_KEY] == "-1"


async def test_health_and_load_are_told_however_full_a_task_is(host: Host) -> None:
    _, _, channel = await host(
        handler_of("unary_unary", "async", forbidden), config=FULL
    )
    method: Any
    for path in (wire.CHECK_METHOD, wire.SERVING_CHECK_METHOD):
        method = channel.unary_unary(path)
        await method(b"", timeout=5)
    method = channel.unary_stream(wire.ORCA_METHOD)
    watch = method(b"")
    assert await watch.read() is not grpc.aio.EOF
    watch.cancel()


@pytest.mark.parametrize("interceptors", [None, [Passing()]])
async def test_reflection_and_health_are_served_however_full_a_task_is(
    interceptors: Any,
) -> None:
    """Also to who names a criticality, and a customer who may use nothing."""
    pb2 = needs.module("grpc_reflection.v1alpha.reflection_pb2")
    config = ServerConfig(signals={"test": lambda: 1000.0}, default_quota=0.0)
    server = Server(config=config, interceptors=interceptors)
    served = handler_of("stream_stream", "async", lambda: "served")
    path = "/grpc.reflection.v1{}.ServerReflection/ServerReflectionInfo"
    add_methods(server, {PATH: served, path.format(""): served})
    admin.register(server)  # which has the older name
    metadata = ((wire.CRITICALITY_KEY, "SHEDDABLE"), (wire.CUSTOMER_KEY, "mail"))
    async with hosting(server=server) as (_, _, channel):

        async def said(path: str, request: bytes) -> bytes:
            info: Any = channel.stream_stream(path)
            call: Any = info(iter([request]), metadata=metadata, timeout=20)
            return b"".join([message async for message in call])

        with pytest.raises(grpc.aio.AioRpcError, match="what it may"):
            await said(PATH, b"")
        assert await said(path.format(""), b"") == b"served"
        request = pb2.ServerReflectionRequest(list_services="").SerializeToString()
        answer = await said(path.format("alpha"), request)
        listed = pb2.ServerReflectionResponse.FromString(answer).list_services_response
        assert "lbclient.v1.BackendHealth" in [one.name for one in listed.service]
        check: Any = channel.unary_unary(wire.SERVING_CHECK_METHOD)
        await check(b"", metadata=metadata, timeout=20)


@pytest.mark.parametrize("interceptors", [None, [Passing()]])
@pytest.mark.parametrize(("arity", "kind"), KINDS)
async def test_a_handler_knows_how_much_its_request_matters(
    host: Host, pool: ThreadPoolExecutor, arity: str, kind: str, interceptors: Any
) -> None:
    _, _, channel = await host(
        handler_of(arity, kind, lambda: (current(), lbclient.degraded())),
        interceptors=interceptors,
        migration_thread_pool=pool,
    )
    for level in Criticality:
        metadata = ((wire.CRITICALITY_KEY, level.name),)
        said, _ = await ask(channel, arity, metadata=metadata)
        assert said.decode() == str((level, False))
    said, _ = await ask(channel, arity)
    assert said.decode() == str((None, False)), "nothing is left of those before"


class Starter:
    """A request within which a server is started: it has no time left."""

    downstream = propagation.DownstreamResult.OK
    is_strained = True

    def time_remaining(self) -> float:
        return 0.0


OF_STARTER: ContextVar[str] = ContextVar("of_starter", default="")


@pytest.mark.parametrize("interceptors", [None, [Passing()]])
@pytest.mark.parametrize(("arity", "kind"), KINDS)
async def test_a_request_has_nothing_of_the_one_that_started_its_server(
    host: Host, pool: ThreadPoolExecutor, arity: str, kind: str, interceptors: Any
) -> None:
    """It was admitted as CRITICAL, and its handler's calls were SHEDDABLE."""

    def look() -> str:
        return f"{current()} {billed()} {lbclient.degraded()} {OF_STARTER.get()}"

    async def sheddable() -> Any:
        with lbclient.criticality("SHEDDABLE"):
            return await host(
                handler_of(arity, kind, look),
                interceptors=interceptors,
                migration_thread_pool=pool,
            )

    def start() -> Awaitable[Any]:
        propagation.enter(Starter())
        bill_to(RequestCost(Total()))
        OF_STARTER.set("the user's own")
        return asyncio.ensure_future(sheddable())

    _, _, channel = await copy_context().run(start)
    said, _ = await ask(channel, arity)
    # As grpc.aio's: threads of the pool have what their requests have.
    assert said.decode() == "None None False the user's own"


@pytest.mark.parametrize("customer", [None, lambda _: "mail"])
async def test_what_is_refused_counts_as_what_it_is_whoever_started_the_server(
    host: Host, customer: Any
) -> None:
    config = ServerConfig(default_quota=0.0, customer=customer)
    with lbclient.criticality("SHEDDABLE"):
        server, _, channel = await host(
            handler_of("unary_unary", "async", forbidden), config=config
        )
    await ask(channel, "unary_unary")
    assert server.statistics().refused["quota"]["CRITICAL"] == 1


async def test_a_health_check_of_the_users_own_has_no_deadline_of_the_starters(
    host: Host,
) -> None:
    """It is not wrapped, so nothing else sets what it inherits."""

    async def look(request: bytes, context: Any) -> bytes:
        return str(propagation.limited(None)).encode()

    methods = {wire.SERVING_CHECK_METHOD: unary_unary(look)}

    def start() -> Awaitable[Hosted]:
        propagation.enter(Starter())
        return asyncio.ensure_future(host(methods))

    _, _, channel = await copy_context().run(start)
    method: Any = channel.unary_unary(wire.SERVING_CHECK_METHOD)
    assert await method(b"", timeout=5) == b"None"


async def test_a_handlers_own_calls_matter_as_much_as_its_request(host: Host) -> None:
    below = await host(handler_of("unary_unary", "async", current))
    async with lbclient.insecure_channel(below.address) as channel:

        async def forward(request: bytes, context: Any) -> Any:
            return await channel.unary_unary(PATH)(request, timeout=5)

        _, _, above = await host(unary_unary(forward))
        metadata = ((wire.CRITICALITY_KEY, "SHEDDABLE_PLUS"),)
        said, _ = await ask(above, "unary_unary", metadata=metadata)
    assert said.decode() == str(Criticality.SHEDDABLE_PLUS)


@pytest.mark.parametrize("interceptors", [None, [Passing()]])
@pytest.mark.parametrize(("arity", "kind"), KINDS)
async def test_a_cheaper_answer_is_wanted_from_a_busy_task(
    host: Host, pool: ThreadPoolExecutor, arity: str, kind: str, interceptors: Any
) -> None:
    runnable, own = [0.0], [0.0]
    server, _, channel = await host(
        handler_of(arity, kind, lbclient.degraded),
        config=ServerConfig(
            runnable=lambda: int(runnable[0]),
            max_load=1000.0,
            signals={"mine": lambda: own[0]},
        ),
        interceptors=interceptors,
        migration_thread_pool=pool,
    )
    full = 1000.0 * available_cpus()
    # The load is looked at when a handler asks; signals, ten times a second.
    for load, mine, is_busy in (
        (0.0, 0.0, False),
        (0.45 * full, 0.0, False),
        (0.55 * full, 0.0, True),
        (0.95 * full, 0.0, True),
        (0.0, 0.45, False),
        (0.0, 0.55, True),
        (0.0, 0.95, True),
    ):
        runnable[0], own[0] = load, mine
        server._parts.sampler.sample()
        said, _ = await ask(channel, arity)
        assert said.decode() == str(is_busy), (load, mine)
    assert not any(sum(by.values()) for by in server.statistics().refused.values())


class MakingHandlers(grpc.aio.ServerInterceptor):
    """Makes a handler for each request, as OpenTelemetry's and Sentry's do."""

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler = await continuation(details)
        return grpc.unary_unary_rpc_method_handler(handler.unary_unary)


@pytest.mark.parametrize("interceptors", [[], [MakingHandlers()]])
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_what_cannot_be_done_in_time_is_not_begun(
    host: Host, pool: ThreadPoolExecutor, kind: str, interceptors: list[Any]
) -> None:
    """Two requests that took 0.6 s each; the third has less than that."""
    began = 0

    def slow() -> str:
        nonlocal began
        began += 1
        time.sleep(0.6)
        return "done"

    server, _, channel = await host(
        handler_of("unary_unary", kind, slow),
        migration_thread_pool=pool,
        interceptors=interceptors,
    )
    for _ in range(2):
        assert (await ask(channel, "unary_unary", timeout=20))[0] == b"done"
    _, call = await ask(channel, "unary_unary", timeout=0.5)
    assert await call.code() is StatusCode.UNAVAILABLE  # it had 0.5 s left, or nearly
    assert dict([*await call.trailing_metadata()])[wire.REFUSAL_KEY] == "overloaded"
    await asyncio.sleep(0)
    assert began == 2
    assert server.statistics().refused["too-late"]["CRITICAL"] == 1
    assert not any(server._gate._refusals.for_load()), "the server is idle"
    assert (await ask(channel, "unary_unary", timeout=20))[0] == b"done"


@pytest.mark.parametrize(
    ("left", "waited", "code", "is_for_load"),
    [
        (None, 100.0, None, None),
        (1.0, 0.5, None, None),
        (1.0, 0.9, StatusCode.UNAVAILABLE, True),
        (0.001, 9.0, StatusCode.UNAVAILABLE, True),
        (0.0, 0.5, StatusCode.DEADLINE_EXCEEDED, False),
        (-1.0, 0.5, StatusCode.DEADLINE_EXCEEDED, False),
    ],
)
async def test_only_a_deadline_that_has_passed_is_said_to_be_exceeded(
    left: float | None,
    waited: float,
    code: StatusCode | None,
    is_for_load: bool | None,
) -> None:
    """Of itself a client does not see that: it gives up when the server would say it.

    By fakes, as no request can be had whose deadline passes between two lines.
    """
    handler = handler_of("unary_unary", "async", str)
    context: Any = SimpleNamespace(time_remaining=lambda: left)
    call: Any = SimpleNamespace(inner=context, begun_at=0.0)
    answer = lbclient.server()._wrapper.wrap(handler)._too_late(call, waited)
    assert (answer and answer.code) is code
    assert (answer and answer.is_for_load) is is_for_load


async def test_a_trial_may_wait_for_its_turn() -> None:
    """It was let in, and refused when its turn came. By fakes, as above."""
    wrapped = lbclient.server()._wrapper.wrap(handler_of("unary_unary", "async", str))
    wrapped._quickest.observe(5.0, 10.0)
    inner: Any = SimpleNamespace(time_remaining=lambda: 1.0)
    trial, other = (SimpleNamespace(inner=inner, begun_at=now) for now in (12.0, 12.01))
    assert wrapped._too_late(trial, 12.0) is None
    assert wrapped._too_late(other, 12.01) is not None
    assert wrapped._too_late(trial, 12.1) is None
    assert wrapped._too_late(other, 12.1) is not None


async def test_of_a_stream_nobody_knows_how_long_it_takes(host: Host) -> None:
    """That may be its client's doing, so only what is too late already is refused."""
    began = 0

    def slow() -> str:
        nonlocal began
        began += 1
        time.sleep(0.1)
        return "done"

    server, _, channel = await host(handler_of("unary_stream", "async", slow))
    for _ in range(2):
        assert (await ask(channel, "unary_stream", timeout=20))[0] == b"done"
    _, call = await ask(channel, "unary_stream", timeout=0.07)
    assert await call.code() is StatusCode.DEADLINE_EXCEEDED
    assert began == 3
    assert server.statistics().refused["too-late"]["CRITICAL"] == 0


async def test_a_refusal_in_a_thread_whose_client_has_left_is_no_error(
    host: Host, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It was logged with a traceback: to abort such a request raises."""
    on_loop, in_thread, has_left = get_ident(), Event(), Event()

    def clock() -> float:
        if get_ident() != on_loop:  # just before the thread looks who is to be refused
            in_thread.set()
            assert has_left.wait(20)
        return time.monotonic()

    with ThreadPoolExecutor(1) as pool:
        server, _, channel = await host(
            handler_of("unary_stream", "sync", forbidden),
            config=ServerConfig(default_quota=0.0, customer=lambda _: "mail"),
            migration_thread_pool=pool,
            clock=clock,
        )
        call = begin(channel, "unary_stream")
        await asyncio.to_thread(in_thread.wait, 20)
        call.cancel()
        await eventually(lambda: server.statistics().active == 0)
        has_left.set()
        await eventually(lambda: sum(server.statistics().refused["quota"].values()))
        await asyncio.to_thread(pool.shutdown)
        await asyncio.sleep(0)  # the loop hears of the thread's end
    gc.collect()  # an error that nobody has asked for is logged when it is freed
    assert [record.getMessage() for record in caplog.records] == []


async def test_a_busy_loop_sheds_by_itself_and_then_no_more(host: Host) -> None:
    """Each request has the loop for 10 ms; two seconds of them come at once, again and
    again: how many are seen to wait depends on how fast gRPC hands them over.
    """

    def burn() -> str:
        until = time.thread_time() + 0.01
        while time.thread_time() < until:
            pass
        return "done"

    needs.grpcio("1.84", "handlers of a burst all begin at once")
    server, _, channel = await host(handler_of("unary_unary", "async", burn))
    codes: list[StatusCode] = []
    for _ in range(4):
        calls = await asyncio.gather(*(ask(channel, "unary_unary") for _ in range(200)))
        codes += [await call.code() for _, call in calls]
        if StatusCode.UNAVAILABLE in codes:
            break
    assert set(codes) == {StatusCode.OK, StatusCode.UNAVAILABLE}
    assert codes.count(StatusCode.OK) >= 20
    await let_pass(2 * SAMPLE_INTERVAL)
    said, _ = await ask(channel, "unary_unary")
    assert said == b"done"
    assert server.statistics().active == 0


async def test_a_crowd_of_quick_requests_is_all_served(host: Host) -> None:
    done = handler_of("unary_unary", "async", lambda: "done")
    server, _, channel = await host(done, utilization=lambda: 0.1)
    calls = await asyncio.gather(*(ask(channel, "unary_unary") for _ in range(300)))
    assert [said for said, _ in calls] == [b"done"] * 300
    assert not any(sum(by.values()) for by in server.statistics().refused.values())


async def test_a_request_that_starts_many_short_operations_is_served(
    host: Host,
) -> None:
    """Time and again, and so are those beside it."""

    async def fan_out(request: bytes, context: Any) -> bytes:
        await asyncio.gather(*(asyncio.sleep(0) for _ in range(300)))
        return b"done"

    server, _, channel = await host(unary_unary(fan_out))
    for _ in range(30):
        calls = [ask(channel, "unary_unary") for _ in range(3)]
        assert [said for said, _ in await asyncio.gather(*calls)] == [b"done"] * 3
    assert not any(sum(by.values()) for by in server.statistics().refused.values())


async def test_waiting_for_others_is_no_load(host: Host) -> None:
    """Many requests that wait for something else than a processor."""
    going = asyncio.Event()

    async def wait(request: bytes, context: Any) -> bytes:
        await going.wait()
        return b"done"

    server, _, channel = await host(unary_unary(wait))
    calls = [asyncio.ensure_future(ask(channel, "unary_unary")) for _ in range(90)]
    await let_pass(3 * SAMPLE_INTERVAL)
    going.set()
    assert [said for said, _ in await asyncio.gather(*calls)] == [b"done"] * 90
    assert not any(sum(by.values()) for by in server.statistics().refused.values())


async def test_who_waits_for_a_thread_within_its_time_is_not_refused(
    host: Host,
) -> None:
    """150 that wait for 10 threads are answered in 0.7 s, of the 20 that they have."""
    going = threading.Event()

    def wait() -> str:
        going.wait(0.05)
        return "done"

    with ThreadPoolExecutor(10) as pool:
        server, _, channel = await host(
            handler_of("unary_unary", "sync", wait), migration_thread_pool=pool
        )
        for _ in range(3):
            calls = [ask(channel, "unary_unary", timeout=20) for _ in range(150)]
            assert [said for said, _ in await asyncio.gather(*calls)] == [b"done"] * 150
    assert not any(sum(by.values()) for by in server.statistics().refused.values())


async def test_a_more_critical_request_takes_the_place_of_one_that_waits_for_a_thread(
    host: Host, eventually: Any
) -> None:
    busy, going = [0.0], threading.Event()

    def wait() -> str:
        going.wait(20)
        return "done"

    with ThreadPoolExecutor(1) as pool:
        server, _, channel = await host(
            handler_of("unary_unary", "sync", wait),
            config=ServerConfig(signals={"test": lambda: busy[0]}),
            migration_thread_pool=pool,
        )

        async def waiting(criticality: str, requests: int) -> Any:
            metadata = ((wire.CRITICALITY_KEY, criticality),)
            call = asyncio.ensure_future(ask(channel, "unary_unary", metadata=metadata))
            await eventually(lambda: server.statistics().active == requests)
            return call

        calls = [await waiting("SHEDDABLE", number) for number in (1, 2, 3)]
        busy[0] = 1.05
        await eventually(lambda: server.statistics().admitted["SHEDDABLE"] < 1.0)
        # It comes and the first one that waits loses its place: as many as before.
        calls.append(await waiting("CRITICAL_PLUS", 3))
        await eventually(
            lambda: server.statistics().refused["overloaded"]["SHEDDABLE"] == 1
        )
        going.set()
        codes = [await call.code() for _, call in await asyncio.gather(*calls)]
        assert codes == [
            StatusCode.OK,
            StatusCode.UNAVAILABLE,
            StatusCode.OK,
            StatusCode.OK,
        ]
        await eventually(lambda: server.statistics().active == 0)


async def test_criticality_that_is_not_understood_is_counted(host: Host) -> None:
    server, _, channel = await host(handler_of("unary_unary", "async", current))
    metadata = ((wire.CRITICALITY_KEY, "urgent!"), (wire.ATTEMPT_KEY, "-1"))
    said, _ = await ask(channel, "unary_unary", metadata=metadata)
    assert said == b"None"
    assert server.statistics().misread == {
        wire.CRITICALITY_KEY: 1,
        wire.ATTEMPT_KEY: 1,
        wire.STOCK_ATTEMPT_KEY: 0,
    }
