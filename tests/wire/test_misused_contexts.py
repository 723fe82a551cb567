"""Whatever a handler does with its context, its client gets an answer, and at once.

grpcio gives none to some of this: see `test_grpcio_leaves_clients_waiting`.
"""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import grpc
import grpc.aio
import pytest
from grpc import StatusCode

import lbclient
from tests.hosts import Host, add_methods, method_handler
from tests.waiting import eventually

SERVICE = "/test.Misuse"

Misuse = Callable[[Any], Any]  # of a context; what it returns is awaited, if it can be


class Case(NamedTuple):
    misuse: Misuse
    code: StatusCode
    details: str  # or a part of them


def set_details(context: Any) -> None:
    context.set_code(StatusCode.NOT_FOUND)
    context.set_details("no \udcff")


def set_trailers(*metadata: Any) -> Misuse:
    return lambda context: context.set_trailing_metadata(metadata)


def send_initially(*metadata: Any) -> Misuse:
    return lambda context: context.send_initial_metadata(metadata)


def abort_with(*trailers: Any) -> Misuse:
    return lambda context: context.abort(StatusCode.NOT_FOUND, "no", trailers)


CASES = {
    "an abort with OK": Case(
        lambda context: context.abort(StatusCode.OK, "enough"),
        StatusCode.UNKNOWN,
        "enough",
    ),
    "an abort with the number of OK": Case(
        lambda context: context.abort(0, "enough"), StatusCode.UNKNOWN, "enough"
    ),
    "an abort with the name of a file": Case(
        lambda context: context.abort(StatusCode.NOT_FOUND, "no \udcff"),
        StatusCode.NOT_FOUND,
        "no ?",
    ),
    "details with the name of a file": Case(set_details, StatusCode.NOT_FOUND, "no ?"),
    "a text as binary metadata": Case(
        set_trailers(("key-bin", "text")), StatusCode.UNKNOWN, "is bytes, not str"
    ),
    "an abort with a text as binary metadata": Case(
        abort_with(("key-bin", "text")), StatusCode.UNKNOWN, "is bytes, not str"
    ),
    "metadata with the name of a file": Case(
        set_trailers(("key", "\udcff")), StatusCode.UNKNOWN, "surrogates not allowed"
    ),
    "an abort and metadata with the name of a file": Case(
        abort_with(("key", "\udcff")), StatusCode.UNKNOWN, "surrogates not allowed"
    ),
    "a number as metadata": Case(
        set_trailers(("key", 5)), StatusCode.UNKNOWN, "metadata"
    ),
    "an abort with a number as metadata": Case(
        abort_with(("key", 5)), StatusCode.UNKNOWN, "metadata"
    ),
    "a key without a value": Case(set_trailers("key"), StatusCode.UNKNOWN, "metadata"),
    "a text under a binary key of bytes": Case(
        set_trailers((b"key-bin", "secret")), StatusCode.UNKNOWN, "is bytes, not str"
    ),
    **{
        f"{flaw} {where}": Case(
            send(pair), StatusCode.UNKNOWN, "has characters that gRPC does not allow"
        )
        for flaw, pair in {
            "a line's end": ("key", "secret\n"),
            "text outside of ASCII": ("key", "secret é"),
            "bytes outside of ASCII": ("key", b"secret \xff"),
            "a key with a capital": ("Key", "secret"),
            "a binary key with a capital": ("Key-bin", b"secret"),
            "an empty key": ("", "secret"),
        }.items()
        for where, send in {
            "in trailers": set_trailers,
            "in initial metadata": send_initially,
            "in an abort's trailers": abort_with,
        }.items()
    },
}


def async_handlers(misuse: Misuse) -> dict[str, tuple[str, Any]]:
    """A handler of each kind that runs on the loop, and its arity."""

    async def misused(context: Any) -> None:
        done = misuse(context)
        if inspect.isawaitable(done):
            await done

    async def coroutine(_request: Any, context: Any) -> bytes:
        await misused(context)
        return b""

    async def generator(_request: Any, context: Any) -> AsyncIterator[bytes]:
        yield b"one"
        await misused(context)

    async def writer(_request: Any, context: Any) -> None:
        await context.write(b"one")
        await misused(context)

    return {
        "unary_unary": ("unary_unary", coroutine),
        "stream_unary": ("stream_unary", coroutine),
        "unary_stream": ("unary_stream", generator),
        "stream_stream": ("stream_stream", generator),
        "unary_stream by write": ("unary_stream", writer),
        "stream_stream by write": ("stream_stream", writer),
    }


def thread_handlers(misuse: Misuse) -> dict[str, tuple[str, Any]]:
    def function(_request: Any, context: Any) -> bytes:
        misuse(context)
        return b""

    def lines(_request: Any, context: Any) -> Iterator[bytes]:
        yield b"one"
        misuse(context)

    return {
        "unary_unary in a thread": ("unary_unary", function),
        "stream_unary in a thread": ("stream_unary", function),
        "unary_stream in a thread": ("unary_stream", lines),
        "stream_stream in a thread": ("stream_stream", lines),
    }


@pytest.fixture
async def pool() -> AsyncIterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(12)
    yield pool
    await asyncio.to_thread(pool.shutdown)


def methods(handlers: dict[str, tuple[str, Any]]) -> dict[str, Any]:
    return {f"{SERVICE}/{name}": method_handler(*of) for name, of in handlers.items()}


@asynccontextmanager
async def synchronous(
    pool: ThreadPoolExecutor, of: dict[str, Any]
) -> AsyncIterator[grpc.aio.Channel]:
    """A plain channel to a synchronous server of these methods."""
    server = add_methods(lbclient.sync_server(pool), of)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        assert await asyncio.to_thread(server.stop(None).wait, 60), "never stops"


async def ended(
    channel: Any, arity: str, name: str, timeout: float
) -> tuple[StatusCode, str, list[bytes]]:
    """How a call ends, and the messages before that."""
    request = iter(()) if arity.startswith("stream") else b""
    call = getattr(channel, arity)(f"{SERVICE}/{name}")(request, timeout=timeout)
    messages = []
    try:
        if arity.endswith("stream"):
            while (message := await call.read()) is not grpc.aio.EOF:
                messages.append(message)
        else:
            messages.append(await call)
    except grpc.aio.AioRpcError:
        pass
    return await call.code(), await call.details(), messages


async def answers(
    channel: Any, handlers: dict[str, tuple[str, Any]], timeout: float = 30
) -> dict[str, Any]:
    """By kind of handler."""
    all_ended = await asyncio.gather(
        *(ended(channel, of[0], name, timeout) for name, of in handlers.items())
    )
    return dict(zip(handlers, all_ended, strict=True))


def see(case: Case, told: dict[str, Any], handlers: dict[str, tuple[str, Any]]) -> None:
    for name, (arity, _) in handlers.items():
        code, details, messages = told[name]
        assert code is case.code, name
        assert case.details in details, name
        assert "secret" not in details, name
        assert messages == ([b"one"] if arity.endswith("stream") else []), name


def counted(server: Any) -> dict[str, int]:
    return {code: n for code, n in server.statistics().requests.items() if n}


@pytest.mark.parametrize("what", CASES)
async def test_the_client_gets_an_answer(
    host: Host, pool: ThreadPoolExecutor, what: str
) -> None:
    case = CASES[what]
    handlers = async_handlers(case.misuse) | thread_handlers(case.misuse)
    server = lbclient.server(migration_thread_pool=pool)
    _, _, channel = await host(methods(handlers), server=server)
    see(case, await answers(channel, handlers), handlers)
    ends = {case.code.name: len(handlers)}
    await eventually(lambda: counted(server) == ends)


@pytest.mark.parametrize("what", CASES)
async def test_the_client_of_a_synchronous_server_gets_an_answer(
    pool: ThreadPoolExecutor, what: str
) -> None:
    case = CASES[what]
    handlers = thread_handlers(case.misuse)
    async with synchronous(pool, methods(handlers)) as channel:
        see(case, await answers(channel, handlers), handlers)


@pytest.mark.parametrize(
    "pair", [["grpc-timeout", "1S"], (b"grpc-timeout", b"1S")], ids=["list", "bytes"]
)
@pytest.mark.parametrize("send", [set_trailers, send_initially])
async def test_metadata_that_would_kill_the_process_is_left_out_in_any_form(
    pool: ThreadPoolExecutor, pair: Any, send: Callable[..., Misuse]
) -> None:
    handlers = thread_handlers(send(pair))
    async with synchronous(pool, methods(handlers)) as channel:
        told = await answers(channel, handlers)
    # UNKNOWN: initial metadata after a message is an error of the handler.
    assert {it[0] for it in told.values()} <= {StatusCode.OK, StatusCode.UNKNOWN}
    assert told["unary_unary in a thread"][0] is StatusCode.OK


def leaves(error: BaseException) -> Misuse:
    def leave(_context: Any) -> None:
        raise error

    return leave


@pytest.mark.parametrize("error", [SystemExit(2), KeyboardInterrupt()])
async def test_who_would_end_the_process_of_a_synchronous_server_is_answered(
    pool: ThreadPoolExecutor, error: BaseException
) -> None:
    """A thread of a pool ends nothing, and `grpc.server` tells nobody."""
    case = Case(leaves(error), StatusCode.UNKNOWN, type(error).__name__)
    handlers = thread_handlers(case.misuse)
    async with synchronous(pool, methods(handlers)) as channel:
        see(case, await answers(channel, handlers), handlers)


async def test_the_client_of_a_serializer_that_makes_no_bytes_gets_an_answer(
    pool: ThreadPoolExecutor,
) -> None:
    """`grpc.server` sends nothing then; an asyncio server takes text for bytes."""
    handlers = thread_handlers(lambda _context: None)
    as_text = {
        f"{SERVICE}/{name}": method_handler(*of, response_serializer=str)
        for name, of in handlers.items()
    }
    async with synchronous(pool, as_text) as channel:
        told = await answers(channel, handlers)
    failed: Any = (StatusCode.INTERNAL, "Failed to serialize response!", [])
    assert told == dict.fromkeys(handlers, failed)


async def test_grpcio_leaves_clients_waiting(
    host: Host, pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    """Once it tells them, this may be simpler."""
    caplog.set_level(logging.CRITICAL, logger="grpc._cython.cygrpc")
    case = CASES["an abort with OK"]
    handlers = async_handlers(case.misuse) | thread_handlers(case.misuse)
    server = grpc.aio.server(migration_thread_pool=pool)
    _, _, channel = await host(methods(handlers), server=server)
    codes = {it[0] for it in (await answers(channel, handlers, timeout=1)).values()}
    assert codes == {StatusCode.DEADLINE_EXCEEDED}
