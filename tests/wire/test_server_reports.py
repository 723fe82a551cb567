"""Every answer carries the load report, whatever becomes of the request."""

import asyncio
import functools
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc import StatusCode

from lbclient import wire
from lbclient.config import ServerConfig
from lbclient.core.errors import ConfigError
from lbclient.core.model import LoadReport, TaskState
from lbclient.server import Server
from lbclient.server.requests.context import RequestContext
from lbclient.server.requests.handler import behavior_of
from lbclient.server.requests.served_method import MOST_METHODS, ServedMethod
from lbclient.server.requests.wrapping import Wrapper
from lbclient.v1 import load_pb2
from tests.hosts import PATH, Host, method_handler, unary_unary
from tests.parts import parts


class Answer:
    """How a call ended, as its client sees it."""

    def __init__(self, code: StatusCode, details: str, trailers: Any) -> None:
        self.code = code
        self.details = details
        self.trailers = list(trailers or ())

    @property
    def report(self) -> LoadReport:
        report = wire.find_report(self.trailers)
        assert report is not None, self.trailers
        return report

    @property
    def own(self) -> list[tuple[str, str]]:
        return [item for item in self.trailers if item[0] != wire.LOAD_KEY]


@pytest.fixture
async def pool() -> AsyncIterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(12)
    yield pool
    # While the loop runs: grpcio's threads wait for it at the end of a stream.
    await asyncio.to_thread(pool.shutdown)


async def ask(
    channel: grpc.aio.Channel,
    arity: str = "unary_unary",
    requests: tuple[bytes, ...] = (),
    half_close: bool = False,
    **options: Any,
) -> Answer:
    """Writes no more than the server reads.

    A client that still writes when its stream ends is told INTERNAL instead, with a
    bare server as well.
    """
    single = arity.startswith("unary")
    call = getattr(channel, arity)(PATH)(b"a" if single else None, **options)
    if not single:
        for request in requests:
            await call.write(request)
        if half_close:
            await call.done_writing()
    if arity.endswith("stream"):
        with suppress(grpc.aio.AioRpcError):
            while await call.read() is not grpc.aio.EOF:
                pass
    code = await call.code()
    return Answer(code, await call.details(), await call.trailing_metadata())


OWN = (("own", "1"),)


class Gone(grpc.Status):
    code = StatusCode.NOT_FOUND
    details = "gone"
    trailing_metadata = (("own", "status"),)


# What a handler does at its end, the status, and the trailers that are its own.
ENDINGS: dict[str, tuple[StatusCode, list[tuple[str, str]]]] = {
    "ok": (StatusCode.OK, []),
    "ok with trailers": (StatusCode.OK, [("own", "1")]),
    "set_code": (StatusCode.NOT_FOUND, [("own", "1")]),
    "abort": (StatusCode.NOT_FOUND, []),
    "abort after trailers": (StatusCode.NOT_FOUND, [("own", "1")]),
    "abort with trailers": (StatusCode.NOT_FOUND, [("own", "2")]),
    "abort_with_status": (StatusCode.NOT_FOUND, [("own", "status")]),
    "raise": (StatusCode.UNKNOWN, []),
    "raise after trailers": (StatusCode.UNKNOWN, [("own", "1")]),
    "raise after set_code": (StatusCode.NOT_FOUND, []),
}


def _steps(ending: str, context: Any) -> Any:
    """Ends a request; what it returns is to be awaited where that is possible."""
    if ending in ("ok with trailers", "set_code") or ending.endswith("after trailers"):
        context.set_trailing_metadata(OWN)
    if ending in ("set_code", "raise after set_code"):
        context.set_code(StatusCode.NOT_FOUND)
        context.set_details("gone")
    if ending == "abort with trailers":
        return context.abort(StatusCode.NOT_FOUND, "gone", (("own", "2"),))
    if ending == "abort_with_status":
        return context.abort_with_status(Gone())
    if ending.startswith("abort"):
        return context.abort(StatusCode.NOT_FOUND, "gone")
    if ending.startswith("raise"):
        raise RuntimeError("broken")
    return None


async def _read(request: Any) -> Any:
    if isinstance(request, bytes):
        return request
    return b"".join([part async for part in request])


def _read_in_thread(request: Any) -> Any:
    return request if isinstance(request, bytes) else b"".join(request)


def handler(arity: str, kind: str, ending: str, **coding: Any) -> Any:
    async def respond(request: Any, context: Any) -> bytes:
        await _read(request)
        if step := _steps(ending, context):
            await step
        return b"x"

    async def write(request: Any, context: Any) -> None:
        await _read(request)
        await context.write(b"x")
        if step := _steps(ending, context):
            await step

    async def generate(request: Any, context: Any) -> AsyncIterator[bytes]:
        await _read(request)
        yield b"x"
        if step := _steps(ending, context):
            await step

    def respond_in_thread(request: Any, context: Any) -> bytes:
        _read_in_thread(request)
        _steps(ending, context)
        return b"x"

    def generate_in_thread(request: Any, context: Any) -> Iterator[bytes]:
        _read_in_thread(request)
        # An abort beside a response that is still being sent is lost: grpcio's own
        # race, 4 of 12 such calls on a bare server ended by their deadline only.
        if not ending.startswith("abort"):
            yield b"x"
        _steps(ending, context)

    single = arity.endswith("unary")
    functions: dict[str, Callable[..., Any]] = {
        "async": respond if single else write,
        "generator": generate,
        "sync": respond_in_thread if single else generate_in_thread,
    }
    return method_handler(arity, functions[kind], **coding)


KINDS = [
    *[(arity, "async") for arity in ("unary_unary", "stream_unary")],
    *[(arity, "sync") for arity in ("unary_unary", "stream_unary")],
    *[
        (arity, kind)
        for arity in ("unary_stream", "stream_stream")
        for kind in ("async", "generator", "sync")
    ],
]


class _Porter(grpc.aio.ServerInterceptor):
    """Lets all pass."""

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        return await continuation(details)


@pytest.mark.parametrize("interceptors", [(), (_Porter(),)])
@pytest.mark.parametrize(("arity", "kind"), KINDS)
async def test_every_ending_reports(
    host: Host,
    pool: ThreadPoolExecutor,
    eventually: Any,
    arity: str,
    kind: str,
    interceptors: tuple[Any, ...],
) -> None:
    for ending, (code, own) in ENDINGS.items():
        server, _, channel = await host(
            handler(arity, kind, ending),
            migration_thread_pool=pool,
            interceptors=interceptors,
        )
        answer = await ask(channel, arity, (b"a", b"b"), half_close=True)
        assert (ending, answer.code, answer.own) == (ending, code, own)
        assert answer.report.active == 0
        assert answer.report.state is TaskState.SERVING
        # Sync handlers are counted a moment later.
        await eventually(lambda server=server: server.statistics().active == 0)
        requests = {code.name: 1, "OK": int(code is StatusCode.OK)}
        assert server.statistics().requests == requests


@pytest.mark.parametrize("interceptors", [(), (_Porter(),)])
@pytest.mark.parametrize("arity", sorted({arity for arity, _ in KINDS}))
async def test_an_unknown_method_is_unimplemented_with_a_report(
    host: Host, arity: str, interceptors: tuple[Any, ...]
) -> None:
    server, _, channel = await host(interceptors=interceptors)
    answer = await ask(channel, arity)
    assert answer.code is StatusCode.UNIMPLEMENTED
    assert answer.details == "Method not found!"
    assert answer.report.active == 0
    assert server.statistics().requests["UNIMPLEMENTED"] == 1


class _Guard(grpc.aio.ServerInterceptor):
    """Refuses or breaks, as told."""

    def __init__(self, breaks: bool) -> None:
        self.breaks = breaks

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        if self.breaks:
            raise RuntimeError("no guard on duty")

        async def refuse(request: Any, context: Any) -> None:
            await context.abort(StatusCode.PERMISSION_DENIED, "not you", OWN)

        return unary_unary(refuse)


async def test_a_users_interceptor_that_refuses_reports(host: Host) -> None:
    _, _, channel = await host(interceptors=[_Guard(breaks=False)])
    answer = await ask(channel)
    assert answer.code is StatusCode.PERMISSION_DENIED
    assert answer.own == [("own", "1")]
    assert answer.report.active == 0


async def test_a_users_interceptor_that_breaks_reports(host: Host) -> None:
    server, _, channel = await host(interceptors=[_Guard(breaks=True)])
    answer = await ask(channel)
    assert answer.code is StatusCode.UNKNOWN
    assert "no guard on duty" in answer.details
    assert answer.report.active == 0
    assert server.statistics().requests["UNKNOWN"] == 1


class _BrokenLookup(grpc.GenericRpcHandler):
    def service(self, handler_call_details: Any) -> Any:
        raise RuntimeError("the book is lost")


async def test_a_lookup_that_breaks_reports(host: Host) -> None:
    _, _, channel = await host(handlers=[_BrokenLookup()])
    answer = await ask(channel)
    assert answer.code is StatusCode.UNKNOWN
    assert "the book is lost" in answer.details
    assert answer.report.active == 0


DICTIONARY: Any = type(grpc.method_handlers_generic_handler("", {}))


class _Fickle(grpc.GenericRpcHandler):
    """Has another handler each time."""

    def service(self, handler_call_details: Any) -> Any:
        self.asked = asked = getattr(self, "asked", 0) + 1

        async def respond(request: bytes, context: Any) -> bytes:
            return str(asked).encode()

        return unary_unary(respond)


class _FickleDictionary(_Fickle, DICTIONARY):  # type: ignore[misc]
    def __init__(self) -> None:
        DICTIONARY.__init__(self, "test.Service", {})


def _turned_fickle() -> Any:
    generic: Any = grpc.method_handlers_generic_handler("test.Service", {})
    generic.service = _Fickle().service
    return generic


@pytest.mark.parametrize("make", [_Fickle, _FickleDictionary, _turned_fickle])
async def test_a_lookup_of_the_users_own_is_asked_for_each_request(
    host: Host, make: Callable[[], Any]
) -> None:
    _, _, channel = await host(handlers=[make()])
    method: Any = channel.unary_unary(PATH)
    assert [await method(b"") for _ in range(3)] == [b"1", b"2", b"3"]


def _broken(message: Any) -> Any:
    raise ValueError("not my format")


@pytest.mark.parametrize(("arity", "kind"), KINDS)
async def test_a_request_that_cannot_be_read_reports(
    host: Host, pool: ThreadPoolExecutor, arity: str, kind: str
) -> None:
    _, _, channel = await host(
        handler(arity, kind, "ok", request_deserializer=_broken),
        migration_thread_pool=pool,
    )
    answer = await ask(channel, arity, (b"a",))
    assert answer.code is StatusCode.UNKNOWN
    assert "not my format" in answer.details
    assert answer.report.active == 0


@pytest.mark.parametrize(("arity", "kind"), KINDS)
async def test_a_response_that_cannot_be_written_reports(
    host: Host, pool: ThreadPoolExecutor, eventually: Any, arity: str, kind: str
) -> None:
    server, _, channel = await host(
        handler(arity, kind, "ok", response_serializer=_broken),
        migration_thread_pool=pool,
    )
    answer = await ask(channel, arity, (b"a",), half_close=True)
    assert answer.code is StatusCode.UNKNOWN
    assert "not my format" in answer.details
    assert answer.report.active == 0
    await eventually(lambda: server.statistics().active == 0)
    assert server.statistics().requests == {"UNKNOWN": 1, "OK": 0}


@pytest.mark.parametrize("arity", ["unary_unary", "stream_unary"])
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_the_response_of_a_failure_is_not_serialized(
    host: Host, pool: ThreadPoolExecutor, arity: str, kind: str
) -> None:
    _, _, channel = await host(
        handler(arity, kind, "set_code", response_serializer=_broken),
        migration_thread_pool=pool,
    )
    answer = await ask(channel, arity, (b"a",), half_close=True)
    assert answer.code is StatusCode.NOT_FOUND
    assert answer.own == [("own", "1")]


@pytest.mark.parametrize(("arity", "kind"), KINDS)
async def test_a_response_is_serialized_once(
    host: Host, pool: ThreadPoolExecutor, arity: str, kind: str
) -> None:
    _, _, channel = await host(
        handler(arity, kind, "ok", response_serializer=lambda text: text + b"!"),
        migration_thread_pool=pool,
    )
    method: Any = getattr(channel, arity)(PATH)
    call = method(b"a" if arity.startswith("unary") else iter([b"a"]))
    response = await call.read() if arity.endswith("stream") else await call
    assert response == b"x!"


async def test_a_report_counts_the_others_only(host: Host, eventually: Any) -> None:
    going = asyncio.Event()

    async def respond(request: bytes, context: Any) -> bytes:
        if request == b"slow":
            await going.wait()
        return b""

    server, _, channel = await host(unary_unary(respond))
    method: Any = channel.unary_unary(PATH)
    slow = [method(b"slow") for _ in range(3)]
    await eventually(lambda: server.statistics().active == 3)
    quick = method(b"quick")
    await quick
    report = wire.find_report(await quick.trailing_metadata())
    assert report is not None
    assert report.active == 3
    going.set()
    await asyncio.gather(*slow)
    left = [wire.find_report(await call.trailing_metadata()) for call in slow]
    assert sorted(report.active or 0 for report in left if report) == [0, 1, 2]


async def test_a_sync_handlers_report_counts_the_others_only(
    host: Host, pool: ThreadPoolExecutor, eventually: Any
) -> None:
    """Those that still wait for a thread are among them."""
    going = asyncio.Event()
    loop = asyncio.get_running_loop()

    def respond(request: bytes, context: Any) -> bytes:
        if request == b"slow":
            asyncio.run_coroutine_threadsafe(going.wait(), loop).result(timeout=10)
        return b""

    server, _, channel = await host(unary_unary(respond), migration_thread_pool=pool)
    method: Any = channel.unary_unary(PATH)
    slow = [method(b"slow") for _ in range(6)]  # of which 4 find a thread
    await eventually(lambda: server.statistics().active == 6)
    going.set()
    await asyncio.gather(*slow)
    reports = [wire.find_report(await call.trailing_metadata()) for call in slow]
    assert max(report.active or 0 for report in reports if report) == 5


@pytest.mark.parametrize(
    "trailers",
    [
        [("a", "1"), ("b-bin", b"\x00")],
        (("a", "1"), ("b-bin", b"\x00")),
        grpc.aio.Metadata(("a", "1"), ("b-bin", b"\x00")),
    ],
)
@pytest.mark.parametrize("by", ["set_trailing_metadata", "abort"])
async def test_a_users_trailers_are_kept_and_not_changed(
    host: Host, trailers: Any, by: str
) -> None:
    async def respond(request: bytes, context: Any) -> bytes:
        if by == "abort":
            await context.abort(StatusCode.NOT_FOUND, "", trailers)
        context.set_trailing_metadata(trailers)
        assert context.trailing_metadata() == tuple(trailers)
        return b""

    _, _, channel = await host(unary_unary(respond))
    answer = await ask(channel)
    assert answer.own == [("a", "1"), ("b-bin", b"\x00")]
    assert answer.report.active == 0
    assert list(trailers) == [("a", "1"), ("b-bin", b"\x00")]


async def test_trailers_of_the_wrong_type_are_the_handlers_error(host: Host) -> None:
    async def respond(request: bytes, context: Any) -> bytes:
        context.set_trailing_metadata({"a": "1"})
        return b""

    _, _, channel = await host(unary_unary(respond))
    answer = await ask(channel)
    assert answer.code is StatusCode.UNKNOWN
    assert "TypeError" in answer.details
    assert answer.report.active == 0


@pytest.mark.parametrize("key", ["grpc-timeout", "grpclb_client_stats"])
@pytest.mark.parametrize("by", ["set_trailing_metadata", "abort", "initial"])
async def test_metadata_that_would_kill_the_process_is_left_out(
    host: Host, caplog: pytest.LogCaptureFixture, key: str, by: str
) -> None:
    async def respond(request: bytes, context: Any) -> bytes:
        metadata = ((key, "5"), ("own", "1"))
        if by == "abort":
            await context.abort(StatusCode.NOT_FOUND, "", metadata)
        elif by == "initial":
            await context.send_initial_metadata(metadata)
            context.set_trailing_metadata((("own", "1"),))
        else:
            context.set_trailing_metadata(metadata)
        return b""

    _, _, channel = await host(unary_unary(respond))
    with caplog.at_level(logging.WARNING, "lbclient"):
        answer = await ask(channel)
    assert answer.own == [("own", "1")]
    assert answer.report.active == 0
    assert key in caplog.text


@pytest.mark.parametrize("status", [StatusCode.OK, StatusCode.NOT_FOUND])
async def test_a_backends_report_is_not_passed_on_as_the_tasks_own(
    host: Host, status: StatusCode
) -> None:
    """A handler that hands on all trailers of a call of its own has them there."""
    theirs = load_pb2.LoadReport(active_requests=77).SerializeToString()
    handed = ((wire.LOAD_KEY, theirs), (wire.ORCA_KEY, theirs), ("its-own", "1"))

    async def respond(request: bytes, context: Any) -> bytes:
        if status is not StatusCode.OK:
            await context.abort(status, "", handed)
        context.set_trailing_metadata(handed)
        return b""

    _, _, channel = await host(unary_unary(respond))
    answer = await ask(channel)
    assert answer.own == [("its-own", "1")]
    assert answer.report.active == 0
    reports = [value for key, value in answer.trailers if key == wire.LOAD_KEY]
    assert len(reports) == 1


async def test_an_orca_report_of_the_users_own_goes_before_ours(host: Host) -> None:
    """Envoy refuses more than one."""
    mine = load_pb2.LoadReport(cpu_utilization=0.5).SerializeToString()
    server = parts()
    sent: list[Any] = []

    class Inner:
        def set_trailing_metadata(self, trailers: Any) -> None:
            sent.append(trailers)

    counts = server.tally.call_counts.of("unary_unary", "/a.B/C")
    method = ServedMethod(server.reporter, server.gate, server.tally, counts)
    call = RequestContext(method, Inner())
    call.set_trailing_metadata(((wire.ORCA_KEY, mine),))
    assert [pair for pair in sent[0] if pair[0] == wire.ORCA_KEY] == [
        (wire.ORCA_KEY, mine)
    ]


def test_the_report_for_other_clients_can_be_left_out() -> None:
    config = ServerConfig(orca_trailers=False)
    reporter = parts(config).reporter
    [(key, _)] = trailers = reporter.trailers(7)
    assert key == wire.LOAD_KEY
    with_cost = [key for key, _ in reporter.with_cost(trailers, 0.5)]
    assert with_cost == [wire.LOAD_KEY, wire.COST_KEY]


def test_both_keys_carry_the_same_bytes() -> None:
    """A Python client cannot see the standard one; every other client can."""
    (own, report), (orca, same) = parts().reporter.trailers(7)
    assert (own, orca) == (wire.LOAD_KEY, wire.ORCA_KEY)
    assert report == same
    assert isinstance(report, bytes)
    parsed = wire.parse_report(report)
    assert parsed is not None
    assert parsed.active == 7


async def test_an_async_handler_is_given_an_async_context(
    host: Host, eventually: Any
) -> None:
    kinds: list[bool] = []
    seen: list[Any] = []

    async def respond(request: bytes, context: Any) -> bytes:
        kinds.append(isinstance(context, grpc.aio.ServicerContext))
        context.add_done_callback(seen.append)
        context.set_details("well")
        assert context.details() == "well"
        assert context.code() is None
        assert context.peer().startswith("ipv4:127.0.0.1")
        assert ("who", "me") in context.invocation_metadata()
        assert 0 < context.time_remaining() < 6
        assert not context.cancelled()
        seen.append(context)
        return b""

    _, _, channel = await host(unary_unary(respond))
    answer = await ask(channel, timeout=5, metadata=(("who", "me"),))
    assert answer.code is StatusCode.OK
    await eventually(lambda: len(seen) == 2)
    assert seen[0] is seen[1]
    assert kinds == [True]


async def test_a_sync_handler_is_given_a_sync_context(
    host: Host, pool: ThreadPoolExecutor
) -> None:
    def respond(request: bytes, context: Any) -> bytes:
        assert isinstance(context, grpc.ServicerContext)
        assert not isinstance(context, grpc.aio.ServicerContext)
        context.send_initial_metadata((("first", "1"),))
        return str(context.peer()).encode()

    _, _, channel = await host(unary_unary(respond), migration_thread_pool=pool)
    method: Any = channel.unary_unary(PATH)
    assert (await method(b"")).startswith(b"ipv4:127.0.0.1")


async def test_functions_in_disguise_are_served_as_what_they_are(
    host: Host, pool: ThreadPoolExecutor
) -> None:
    async def respond(request: bytes, context: Any, *, suffix: bytes) -> bytes:
        return request + suffix

    class Respond:
        def __call__(self, request: bytes, context: Any) -> bytes:
            assert isinstance(context, grpc.ServicerContext)
            return request + b"!"

    for behavior in (functools.partial(respond, suffix=b"!"), Respond()):
        _, _, channel = await host(unary_unary(behavior), migration_thread_pool=pool)
        method: Any = channel.unary_unary(PATH)
        assert await method(b"a") == b"a!"
        assert (await ask(channel)).report.active == 0


@pytest.mark.parametrize(("arity", "kind"), KINDS)
def test_a_handler_keeps_its_kind(arity: str, kind: str) -> None:
    """grpcio and instrumentation ask the function what it is."""
    user = handler(arity, kind, "ok")
    served = Wrapper(parts().serving).wrap(user)
    before, after = behavior_of(user), getattr(served, arity)
    for question in (
        asyncio.iscoroutinefunction,
        inspect.iscoroutinefunction,
        inspect.isasyncgenfunction,
    ):
        assert question(after) == question(before)


def test_a_handler_is_wrapped_once_and_many_do_not_fill_the_memory() -> None:
    wrapper = Wrapper(parts().serving)
    first, second = (handler("unary_unary", "async", "ok") for _ in range(2))
    wrapped = wrapper.wrap_found(PATH, first)
    assert wrapper.wrap_found(PATH, first) is wrapped
    assert wrapper.wrap_found(PATH, second) is not wrapped
    for number in range(MOST_METHODS + 10):
        wrapper.wrap_found(f"/test.Service/{number}", first)
    assert len(wrapper.known) <= MOST_METHODS


def waiting_handler(arity: str, kind: str, going: asyncio.Event) -> Any:
    loop = asyncio.get_running_loop()

    async def respond(request: Any, context: Any) -> bytes:
        await going.wait()
        return b""

    async def generate(request: Any, context: Any) -> AsyncIterator[bytes]:
        await going.wait()
        yield b""

    def respond_in_thread(request: Any, context: Any) -> bytes:
        asyncio.run_coroutine_threadsafe(going.wait(), loop).result(timeout=10)
        return b""

    def generate_in_thread(request: Any, context: Any) -> Iterator[bytes]:
        yield respond_in_thread(request, context)

    functions: dict[str, Callable[..., Any]] = {
        "async": respond,
        "generator": generate,
        "sync": respond_in_thread if arity.endswith("unary") else generate_in_thread,
    }
    return method_handler(arity, functions[kind])


@pytest.mark.parametrize(("arity", "kind"), KINDS)
async def test_a_crowd_above_the_limit_is_refused_with_a_report(
    host: Host, pool: ThreadPoolExecutor, eventually: Any, arity: str, kind: str
) -> None:
    going = asyncio.Event()
    server, _, channel = await host(
        waiting_handler(arity, kind, going),
        maximum_concurrent_rpcs=2,
        migration_thread_pool=pool,
    )
    served = [asyncio.create_task(ask(channel, arity)) for _ in range(2)]
    await eventually(lambda: server.statistics().active == 2)
    for _ in range(3):
        refused = await ask(channel, arity)
        assert refused.code is StatusCode.RESOURCE_EXHAUSTED
        assert refused.details == "Concurrent RPC limit exceeded!"
        assert refused.report.active == 2
    going.set()
    assert [(await call).code for call in served] == [StatusCode.OK] * 2
    await eventually(lambda: server.statistics().active == 0)
    assert (await ask(channel, arity)).code is StatusCode.OK
    await eventually(lambda: server.statistics().active == 0)
    assert server.statistics().requests == {"OK": 3, "RESOURCE_EXHAUSTED": 3}


@pytest.mark.parametrize(("arity", "kind"), KINDS)
async def test_what_is_sheddable_is_refused_before_the_limit_is_reached(
    host: Host, pool: ThreadPoolExecutor, eventually: Any, arity: str, kind: str
) -> None:
    """So that what is critical finds a place; the limit is for all."""
    going = asyncio.Event()
    server, _, channel = await host(
        waiting_handler(arity, kind, going),
        maximum_concurrent_rpcs=8,
        migration_thread_pool=pool,
    )
    served = [asyncio.create_task(ask(channel, arity)) for _ in range(7)]
    await eventually(lambda: server.statistics().active == 7)
    sheddable = ((wire.CRITICALITY_KEY, "SHEDDABLE"),)
    refused = await ask(channel, arity, metadata=sheddable)
    served.append(asyncio.create_task(ask(channel, arity)))
    await eventually(lambda: server.statistics().active == 8)
    also_refused = await ask(channel, arity)
    for one in (refused, also_refused):
        assert one.code is StatusCode.RESOURCE_EXHAUSTED
        assert one.details == "Concurrent RPC limit exceeded!"
    going.set()
    assert [(await call).code for call in served] == [StatusCode.OK] * 8
    counts = server.statistics().refused["concurrency"]
    assert (counts["SHEDDABLE"], counts["CRITICAL"]) == (1, 1)


async def test_the_limit_holds_in_a_burst(host: Host, eventually: Any) -> None:
    going = asyncio.Event()
    _, _, channel = await host(
        waiting_handler("unary_unary", "async", going), maximum_concurrent_rpcs=2
    )
    method: Any = channel.unary_unary(PATH)
    calls = [method(b"") for _ in range(20)]
    await eventually(lambda: sum(call.done() for call in calls) == 18)
    going.set()
    codes = [await call.code() for call in calls]
    assert codes.count(StatusCode.OK) == 2


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ({"maximum_concurrent_rpcs": 0}, "maximum_concurrent_rpcs = 0: want a whole"),
        ({"maximum_concurrent_rpcs": "5"}, "maximum_concurrent_rpcs = '5': want a w"),
        ({"config": {"max_load": 8.0}}, "config = <class 'dict'>: want a ServerConfig"),
    ],
)
async def test_a_wrong_argument_is_named(argument: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Server(**argument)
