"""Whatever a handler raises, its client is told, and the server counts it.

grpcio tells of ordinary exceptions only: see `test_grpcio_leaves_clients_waiting`.
"""

import asyncio
import concurrent.futures
import gc
import logging
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc import StatusCode

import lbclient
from lbclient import wire
from lbclient.config import ServerConfig
from lbclient.server.requests.uncounted import UNCOUNTED
from tests import needs
from tests.hosts import Host, method_handler
from tests.waiting import eventually

SERVICE = "test.Raising"


class Odd(BaseException):
    """As those of pytest or trio: no `Exception`."""


class Untold(Exception):
    def __str__(self) -> str:
        raise TypeError("no text")


class Unsaid(Exception):
    def __str__(self) -> str:
        raise Odd


# Of a call below, or of the request's own context: grpcio tells nobody of either.
[FailedBatch] = grpc.aio.InternalError.__subclasses__()

RAISED: dict[str, BaseException] = {
    "ordinary": ValueError("broken"),
    "cancelled": asyncio.CancelledError(),
    "cancelled future": concurrent.futures.CancelledError(),
    "odd": Odd("broken"),
    "generator exit": GeneratorExit(),
    "no text": Untold(),
    "no text either": Unsaid(),
    "surrogate": ValueError("\udcff broken"),
    "long": ValueError("\u00e9" * 1_000_000),
    "stop": StopIteration(1),
    "async stop": StopAsyncIteration(),
    "group": ExceptionGroup("two", [ValueError("a"), ValueError("b")]),
    "odd group": BaseExceptionGroup("odd", [Odd("a")]),
    "timeout": TimeoutError(),
    "another's abort": grpc.aio.AbortError("Locally aborted."),
    "a failed batch": FailedBatch("x"),
}
WORDS = {
    "cancelled": "CancelledError",
    "no text": "Untold",
    "no text either": "Unsaid",
    "surrogate": "? broken",
    "stop": "StopIteration",
    "async stop": "StopAsyncIteration",
    "odd group": "BaseExceptionGroup",
    "cancelled future": "CancelledError",
}


def behaviors(error: BaseException) -> dict[str, tuple[str, Any]]:
    """A handler of each kind that raises it, and its arity."""

    async def coroutine(_request: Any, _context: Any) -> bytes:
        raise error

    async def late(requests: Any, _context: Any) -> bytes:
        async for _ in requests:
            pass
        raise error

    async def generator(_request: Any, _context: Any) -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"
        raise error

    async def writer(_request: Any, context: Any) -> None:
        await context.write(b"one")
        await context.write(b"two")
        raise error

    def function(_request: Any, _context: Any) -> bytes:
        raise error

    def lines(_request: Any, _context: Any) -> Iterator[bytes]:
        yield b"one"
        yield b"two"
        raise error

    return {
        "unary_unary": ("unary_unary", coroutine),
        "stream_unary": ("stream_unary", late),
        "unary_stream": ("unary_stream", generator),
        "stream_stream": ("stream_stream", generator),
        "unary_stream by write": ("unary_stream", writer),
        "stream_stream by write": ("stream_stream", writer),
        "unary_unary in a thread": ("unary_unary", function),
        "stream_unary in a thread": ("stream_unary", function),
        "unary_stream in a thread": ("unary_stream", lines),
        "stream_stream in a thread": ("stream_stream", lines),
    }


Behaviors = dict[str, tuple[str, Any]]  # by the method's name or its whole path
Serve = Callable[..., Awaitable[tuple[Any, grpc.aio.Channel]]]


@pytest.fixture
async def pool() -> AsyncIterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(2)
    yield pool
    await asyncio.to_thread(pool.shutdown)


@pytest.fixture
def serve(pool: ThreadPoolExecutor, host: Host) -> Serve:
    """Hosts methods; returns the server, and a plain channel to it."""

    async def serve(
        behaviors: Behaviors,
        make: Callable[..., Any] = lbclient.server,
        starts: bool = True,
        **options: Any,
    ) -> tuple[Any, grpc.aio.Channel]:
        methods = {path_of(name): method_handler(*b) for name, b in behaviors.items()}
        server = make(**{"migration_thread_pool": pool, **options})
        _, _, channel = await host(methods, server=server, starts=starts)
        return server, channel

    return serve


def path_of(name: str) -> str:
    return name if name.startswith("/") else f"/{SERVICE}/{name}"


def begin(channel: Any, arity: str, name: str, **options: Any) -> Any:
    """`name` is that of a method of SERVICE, or a whole path."""
    call = getattr(channel, arity)(path_of(name))
    # None, as a write that meets the end makes grpcio say INTERNAL.
    request = iter(()) if arity.startswith("stream") else b"a"
    return call(request, **options)


async def told(call: Any, arity: str) -> tuple[list[bytes], grpc.aio.AioRpcError]:
    """The messages that came before the error, and that."""
    messages: list[bytes] = []

    async def take() -> None:
        if arity.endswith("stream"):
            while (message := await call.read()) is not grpc.aio.EOF:
                messages.append(message)
        else:
            await call

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await take()
    return messages, caught.value


class Passing(grpc.aio.ServerInterceptor):
    async def intercept_service(
        self, continuation: Any, handler_call_details: Any
    ) -> Any:
        return await continuation(handler_call_details)


SETUPS: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": dict,
    "interceptor": lambda: {"interceptors": [Passing()]},
    "quotas": lambda: {"config": ServerConfig(default_quota=1000.0)},
}


@pytest.mark.parametrize("setup", SETUPS)
@pytest.mark.parametrize("what", RAISED)
async def test_the_client_is_told(
    serve: Serve, what: str, setup: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    caplog.set_level(logging.CRITICAL, logger="grpc._cython.cygrpc")
    if what == "async stop":
        needs.grpcio("1.84", "a StopAsyncIteration ends its streams as OK")
    error = RAISED[what]
    handlers = behaviors(error)
    server, channel = await serve(handlers, **SETUPS[setup]())
    for name, (arity, _) in handlers.items():
        messages, ended = await told(begin(channel, arity, name, timeout=30), arity)
        assert ended.code() is StatusCode.UNKNOWN, name
        details = ended.details() or ""
        assert details.startswith("Unexpected <class "), name
        assert WORDS.get(what, type(error).__name__) in details, name
        assert messages == ([b"one", b"two"] if arity.endswith("stream") else [])
        trailers = tuple(ended.trailing_metadata() or ())
        assert wire.find_report(trailers) is not None, name
    await eventually(lambda: server.statistics().active == 0)
    await eventually(lambda: requests(server) == {"UNKNOWN": len(handlers)})


@pytest.mark.parametrize("setup", SETUPS)
@pytest.mark.parametrize("what", RAISED)
async def test_the_client_is_told_also_by_what_is_not_counted(
    serve: Serve, what: str, setup: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A health service, reflection or channelz of the user's own."""
    caplog.set_level(logging.CRITICAL)
    caplog.set_level(logging.CRITICAL, logger="grpc._cython.cygrpc")
    if what == "async stop":
        needs.grpcio("1.84", "a StopAsyncIteration ends its streams as OK")
    of_kind = behaviors(RAISED[what])
    paths = dict(zip(sorted(UNCOUNTED), of_kind, strict=False))
    assert len(paths) == len(of_kind)
    handlers = {path: of_kind[kind] for path, kind in paths.items()}
    server, channel = await serve(handlers, **SETUPS[setup]())
    for path, kind in paths.items():
        arity = of_kind[kind][0]
        messages, ended = await told(begin(channel, arity, path, timeout=30), arity)
        assert ended.code() is StatusCode.UNKNOWN, kind
        details = ended.details() or ""
        assert details.startswith("Unexpected <class "), kind
        if what != "another's abort":
            assert WORDS.get(what, type(RAISED[what]).__name__) in details, kind
        assert messages == ([b"one", b"two"] if arity.endswith("stream") else [])
    assert requests(server) == {}
    assert server.statistics().active == 0


async def test_what_is_not_counted_may_say_its_own_code_and_abort(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    async def coded(_request: Any, context: Any) -> bytes:
        context.set_code(StatusCode.NOT_FOUND)
        raise asyncio.CancelledError

    async def aborted(_request: Any, context: Any) -> bytes:
        await context.abort(StatusCode.DATA_LOSS, "gone", (("key", "value"),))
        return b""

    def aborted_in_thread(_request: Any, context: Any) -> bytes:
        context.abort(StatusCode.DATA_LOSS, "gone", (("key", "value"),))
        return b""

    async def lines(_request: Any, _context: Any) -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"

    def lines_in_thread(_request: Any, _context: Any) -> Iterator[bytes]:
        yield b"one"
        yield b"two"

    coded_at, *aborted_at, lines_at, lines_in_thread_at = sorted(UNCOUNTED)[:5]
    handlers = {
        coded_at: ("unary_unary", coded),
        aborted_at[0]: ("unary_unary", aborted),
        aborted_at[1]: ("unary_unary", aborted_in_thread),
        lines_at: ("unary_stream", lines),
        lines_in_thread_at: ("unary_stream", lines_in_thread),
    }
    _, channel = await serve(handlers)
    call = begin(channel, "unary_unary", coded_at, timeout=30)
    _, error = await told(call, "unary_unary")
    assert error.code() is StatusCode.NOT_FOUND
    assert "handler failed: CancelledError" in caplog.text
    caplog.clear()
    for path in aborted_at:
        call = begin(channel, "unary_unary", path, timeout=30)
        _, error = await told(call, "unary_unary")
        assert (error.code(), error.details()) == (StatusCode.DATA_LOSS, "gone")
        assert ("key", "value") in tuple(error.trailing_metadata() or ())
    for path in (lines_at, lines_in_thread_at):
        call = begin(channel, "unary_stream", path, timeout=30)
        assert [message async for message in call] == [b"one", b"two"]
    assert not caplog.records


@pytest.mark.parametrize("setup", SETUPS)
async def test_a_health_service_and_reflection_of_ones_own_answer(
    serve: Serve, setup: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    reflection_pb2_grpc = needs.module("grpc_reflection.v1alpha.reflection_pb2_grpc")

    async def check(_request: Any, _context: Any) -> bytes:
        raise asyncio.CancelledError

    async def watch(_request: Any, _context: Any) -> AsyncIterator[bytes]:
        yield b"one"
        raise asyncio.CancelledError

    class Reflecting(reflection_pb2_grpc.ServerReflectionServicer):  # type: ignore[misc, name-defined]
        async def ServerReflectionInfo(self, *_: Any) -> AsyncIterator[Any]:
            raise asyncio.CancelledError
            yield

    health = {
        wire.SERVING_CHECK_METHOD: ("unary_unary", check),
        "/grpc.health.v1.Health/List": ("unary_unary", check),
        wire.SERVING_WATCH_METHOD: ("unary_stream", watch),
    }
    server, channel = await serve(health, starts=False, **SETUPS[setup]())
    add: Any = reflection_pb2_grpc.add_ServerReflectionServicer_to_server
    add(Reflecting(), server)
    await server.start()
    reflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    for path, arity in (
        (wire.SERVING_CHECK_METHOD, "unary_unary"),
        ("/grpc.health.v1.Health/List", "unary_unary"),
        (wire.SERVING_WATCH_METHOD, "unary_stream"),
        (reflection, "stream_stream"),
    ):
        _, error = await told(begin(channel, arity, path, timeout=30), arity)
        assert error.code() is StatusCode.UNKNOWN, path
        assert "something that the handler awaited" in (error.details() or "")


@pytest.mark.parametrize("ends", ["cancel", "deadline", "its own cancel"])
async def test_a_watch_that_is_not_counted_ends_as_before(
    serve: Serve, ends: str, caplog: pytest.LogCaptureFixture
) -> None:
    watching: list[asyncio.Task[Any]] = []

    async def watch(_request: Any, _context: Any) -> AsyncIterator[bytes]:
        yield b"one"
        task = asyncio.current_task()
        assert task is not None
        watching.append(task)
        await asyncio.sleep(60)

    _, channel = await serve({wire.SERVING_WATCH_METHOD: ("unary_stream", watch)})
    call = await begun(
        partial(begin, channel, "unary_stream", wire.SERVING_WATCH_METHOD),
        lambda: watching,
        TIMEOUTS if ends == "deadline" else TIMEOUTS[-1:],
    )
    if ends == "cancel":
        call.cancel()
    elif ends == "its own cancel":
        watching[0].cancel()
        _, error = await told(call, "unary_stream")
        assert error.code() is StatusCode.CANCELLED
        assert "cancelled in its server" in (error.details() or "")
    else:
        _, error = await told(call, "unary_stream")
        assert error.code() is StatusCode.DEADLINE_EXCEEDED
    await eventually(watching[0].done)
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


TIMEOUTS = (0.2, 1.0, 5.0, 30.0)  # a busy machine may need the next one


async def is_begun(call: Any, has_begun: Callable[[], object]) -> bool:
    await eventually(lambda: has_begun() or call.done())
    return bool(has_begun())


async def begun(
    start: Callable[..., Any],
    has_begun: Callable[[], object],
    timeouts: Iterable[float] = TIMEOUTS,
) -> Any:
    """A call whose handler begins before its deadline, which is not far away."""
    for timeout in timeouts:
        call = start(timeout=timeout)
        if await is_begun(call, has_begun):
            return call
    pytest.fail("no handler began")


def requests(server: Any) -> dict[str, int]:
    return {name: n for name, n in server.statistics().requests.items() if n}


async def test_grpcio_leaves_clients_waiting(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """Once it tells them, all this may be simpler."""
    caplog.set_level(logging.CRITICAL, logger="grpc._cython.cygrpc")
    handlers = behaviors(asyncio.CancelledError())
    _, channel = await serve(handlers, grpc.aio.server)
    calls = [
        begin(channel, arity, name, timeout=1) for name, (arity, _) in handlers.items()
    ]
    codes = await asyncio.gather(*(call.code() for call in calls))
    assert set(codes) == {StatusCode.DEADLINE_EXCEEDED}


async def test_what_the_handler_awaits_may_be_cancelled(serve: Serve) -> None:
    """A task of its own, and a call on a channel of grpcio that is closed."""
    _, slow = await serve({"Slow": ("unary_unary", sleep)})

    async def await_task(_request: Any, _context: Any) -> bytes:
        task = asyncio.ensure_future(asyncio.sleep(60))
        asyncio.get_running_loop().call_later(0.01, task.cancel)
        await task
        return b""

    async def await_call(_request: Any, _context: Any) -> bytes:
        asyncio.get_running_loop().call_later(0.2, asyncio.ensure_future, slow.close())
        await begin(slow, "unary_unary", "Slow")
        return b""

    handlers = {
        "Task": ("unary_unary", await_task),
        "Call": ("unary_unary", await_call),
    }
    server, channel = await serve(handlers)
    for name in handlers:
        _, error = await told(begin(channel, "unary_unary", name), "unary_unary")
        assert error.code() is StatusCode.UNKNOWN
        assert "something that the handler awaited was cancelled" in str(error)
    await eventually(lambda: requests(server) == {"UNKNOWN": 2})


async def sleep(_request: Any, _context: Any) -> bytes:
    await asyncio.sleep(60)
    return b""


async def test_a_task_that_others_cancel_is_no_clients_doing(serve: Serve) -> None:
    async def cancel_itself(_request: Any, _context: Any) -> bytes:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(60)
        return b""

    server, channel = await serve({"It": ("unary_unary", cancel_itself)})
    _, error = await told(begin(channel, "unary_unary", "It"), "unary_unary")
    assert error.code() is StatusCode.CANCELLED
    assert "cancelled in its server" in (error.details() or "")
    await eventually(lambda: requests(server) == {"CANCELLED": 1})


@pytest.mark.parametrize(
    "arity", ["unary_unary", "stream_unary", "unary_stream", "stream_stream"]
)
async def test_a_request_whose_client_leaves_while_it_is_told_is_over(
    serve: Serve, arity: str
) -> None:
    """What else cancels the task then is the same to the request."""

    async def fail(_request: Any, _context: Any) -> bytes:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(task.cancel)
        raise Odd

    server, channel = await serve({"It": (arity, fail)})
    await told(begin(channel, arity, "It", timeout=30), arity)
    await eventually(lambda: sum(requests(server).values()) == 1)
    assert server.statistics().active == 0


@pytest.mark.parametrize("arity", ["unary_unary", "unary_stream"])
async def test_clients_that_cancel_and_deadlines_count_as_before(
    serve: Serve, arity: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def wait(_request: Any, context: Any) -> AsyncIterator[bytes]:
        yield b"one"
        await asyncio.sleep(60)

    behavior = wait if arity == "unary_stream" else sleep
    server, channel = await serve({"It": (arity, behavior)})
    call = begin(channel, arity, "It")
    await eventually(lambda: server.statistics().active == 1)
    call.cancel()
    await eventually(lambda: requests(server) == {"CANCELLED": 1})
    call = await begun(
        partial(begin, channel, arity, "It"), lambda: server.statistics().active == 1
    )
    _, error = await told(call, arity)
    assert error.code() is StatusCode.DEADLINE_EXCEEDED
    await eventually(lambda: server.statistics().active == 0)
    counted = requests(server)
    assert counted.pop("CANCELLED") == 1
    assert [*counted] == ["DEADLINE_EXCEEDED"]
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    "kind", ["unary_unary in a thread", "unary_stream in a thread"]
)
async def test_an_abort_in_a_thread_whose_client_has_left_ends_the_handler(
    serve: Serve, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Up to grpcio 1.84 its own `abort` returned then. Of a stream's handler "Future
    exception was never retrieved" was logged, with 1.85 too.
    """
    began, has_left = threading.Event(), threading.Event()
    raised: list[type[BaseException]] = []

    def leave(context: Any) -> bytes:
        began.set()
        assert has_left.wait(20)
        try:
            context.abort(StatusCode.NOT_FOUND, "no such guest")
        except BaseException as error:
            raised.append(type(error))
            raise
        return b""

    def lines(_request: Any, context: Any) -> Iterator[bytes]:
        yield leave(context)

    arity = kind.partition(" ")[0]
    behavior = lines if arity == "unary_stream" else lambda _, context: leave(context)
    with ThreadPoolExecutor(1) as pool:
        server, channel = await serve(
            {"It": (arity, behavior)}, migration_thread_pool=pool
        )
        call = begin(channel, arity, "It")
        await asyncio.to_thread(began.wait, 20)
        call.cancel()
        await eventually(lambda: server.statistics().active == 0)
        has_left.set()
        await asyncio.to_thread(pool.shutdown)
        await asyncio.sleep(0)  # the loop hears of the thread's end
    assert [issubclass(kind, grpc.aio.AbortError) for kind in raised] == [True]
    gc.collect()  # an error that nobody has asked for is logged when it is freed
    assert [record.getMessage() for record in caplog.records] == []


def goes_on(_context: Any) -> bytes:
    return b"three"


def aborts_again(context: Any) -> bytes:
    context.abort(StatusCode.INTERNAL, "oh")
    return b"three"


def raises_another(_context: Any) -> bytes:
    raise ValueError("oh")


@pytest.mark.parametrize(
    ("then", "logs"),
    [
        (None, []),
        (goes_on, []),
        (aborts_again, ["handler failed after its abort: UsageError"]),
        (raises_another, ["handler failed after its abort: ValueError"]),
    ],
)
async def test_an_abort_after_a_response_in_a_thread_is_told(
    serve: Serve,
    then: Callable[[Any], bytes] | None,
    logs: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """grpcio's own abort often meets a response that is being sent: then the client
    gets no status from it at all."""

    def lines(_request: Any, context: Any) -> Iterator[bytes]:
        yield b"one"
        try:
            context.abort(StatusCode.NOT_FOUND, "no such guest", (("key", "value"),))
        except Exception:
            if then is None:
                raise
            yield then(context)

    _, channel = await serve({"It": ("unary_stream", lines)})
    for _ in range(20):
        call = begin(channel, "unary_stream", "It", timeout=5)
        assert await call.read() == b"one"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        error = caught.value
        assert (error.code(), error.details()) == (
            StatusCode.NOT_FOUND,
            "no such guest",
        )
        trailers = dict(tuple(error.trailing_metadata()))
        assert trailers["key"] == "value"
        assert wire.LOAD_KEY in trailers
    errors = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    assert errors == 20 * logs


async def test_an_abort_with_ok_after_a_response_in_a_thread_is_no_success(
    serve: Serve,
) -> None:
    """It is UNKNOWN, as of `grpc.server`."""

    def lines(_request: Any, context: Any) -> Iterator[bytes]:
        yield b"one"
        context.abort(StatusCode.OK, "enough")

    _, channel = await serve({"It": ("unary_stream", lines)})
    call = begin(channel, "unary_stream", "It", timeout=5)
    assert await call.read() == b"one"
    with pytest.raises(grpc.aio.AioRpcError, match="enough") as caught:
        await call.read()
    assert caught.value.code() is StatusCode.UNKNOWN


class Broken(grpc.aio.ServerInterceptor):
    def __init__(self, error: BaseException) -> None:
        self._error = error

    async def intercept_service(
        self, continuation: Any, handler_call_details: Any
    ) -> Any:
        raise self._error


@pytest.mark.parametrize("what", ["cancelled", "odd", "no text"])
async def test_an_interceptor_may_raise_it(
    serve: Serve, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    server, channel = await serve(
        {"It": ("unary_unary", sleep)}, interceptors=[Broken(RAISED[what])]
    )
    _, error = await told(begin(channel, "unary_unary", "It"), "unary_unary")
    assert error.code() is StatusCode.UNKNOWN
    await eventually(lambda: requests(server) == {"UNKNOWN": 1})


class Stale(grpc.aio.ServerInterceptor):
    """Takes a cancel for its own without `uncancel`, and is then cancelled from below;
    unless it waits until its client has gone."""

    def __init__(self, waits: bool) -> None:
        self._waits = waits
        self.waiting = 0

    async def intercept_service(
        self, continuation: Any, handler_call_details: Any
    ) -> Any:
        if self._waits:
            self.waiting += 1
            await asyncio.sleep(60)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        raise asyncio.CancelledError


async def test_an_interceptor_that_cancelled_itself_is_answered(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    server, channel = await serve(
        {"It": ("unary_unary", sleep)}, interceptors=[Stale(waits=False)]
    )
    call = begin(channel, "unary_unary", "It", timeout=30)
    _, error = await told(call, "unary_unary")
    assert error.code() is StatusCode.CANCELLED
    await eventually(lambda: requests(server) == {"CANCELLED": 1})


async def test_a_client_that_leaves_during_an_interceptor_counts_as_cancelled(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    stale = Stale(waits=True)
    server, channel = await serve({"It": ("unary_unary", sleep)}, interceptors=[stale])
    call = begin(channel, "unary_unary", "It")
    await eventually(lambda: stale.waiting == 1)
    call.cancel()
    await eventually(lambda: requests(server) == {"CANCELLED": 1})
    assert server.statistics().active == 0
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]


EXITING = """
import asyncio, sys, grpc, lbclient

async def leave(request, context):
    raise {error}

async def main():
    server = lbclient.server()
    handler = grpc.unary_unary_rpc_method_handler(leave)
    generic = grpc.method_handlers_generic_handler("test.Raising", {{"It": handler}})
    server.add_generic_rpc_handlers((generic,))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("error", "status"),
    [("SystemExit(3)", 3), ("KeyboardInterrupt", -signal.SIGINT)],
)
async def test_who_ends_the_process_answers_first(error: str, status: int) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", EXITING.format(error=error),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    port = int(await process.stdout.readline())
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = begin(channel, "unary_unary", "It", wait_for_ready=True)
        _, ended = await told(call, "unary_unary")
    assert ended.code() in (StatusCode.UNKNOWN, StatusCode.UNAVAILABLE)
    assert await process.wait() == status
