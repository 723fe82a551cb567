"""How long streams take until their first message is measured on its own."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

import lbclient
from lbclient.core.load import Load
from lbclient.grpc_seam import own_streams
from lbclient.grpc_seam.own_streams import MOST_OF_FIRST
from lbclient.metrics.samples import channel_counts
from tests import needs
from tests.hosts import Host, stream_stream, stream_unary, unary_stream, unary_unary

ECHO, PAGES, CHAT = "/test.Keys/Echo", "/test.Keys/Pages", "/test.Keys/Chat"


async def echo(request: bytes, _: Any) -> bytes:
    return request


async def pages(request: bytes, _: Any) -> AsyncIterator[bytes]:
    for _page in range(len(request)):
        yield request
        await asyncio.sleep(0.2)


async def chat(requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


METHODS = {
    ECHO: unary_unary(echo),
    PAGES: unary_stream(pages),
    CHAT: stream_stream(chat),
}


async def test_the_first_message_of_each_stream_counts_once(host: Host) -> None:
    address = (await host(METHODS)).address
    async with lbclient.insecure_channel(f"ipv4:{address}") as channel:
        await channel.channel_ready()

        def seen() -> tuple[int, float | None]:
            (backend,) = channel.statistics().backends
            return sum(channel.statistics().first_message.counts), backend.first_message

        await channel.unary_unary(ECHO)(b"", timeout=5)
        assert [
            page async for page in channel.unary_stream(PAGES)(b"", timeout=5)
        ] == []
        none = channel.unary_stream(PAGES)(b"", timeout=5)
        assert await none.read() is grpc.aio.EOF
        assert seen() == (0, None)
        iterated = channel.unary_stream(PAGES)(b"xx", timeout=5)
        assert len([page async for page in iterated]) == 2
        assert seen()[0] == 1
        read = channel.unary_stream(PAGES)(b"xx", timeout=5)
        while await read.read() is not grpc.aio.EOF:
            pass
        assert seen()[0] == 2
        talk = channel.stream_stream(CHAT)(iter([b"a", b"b"]), timeout=5)
        assert [answer async for answer in talk] == [b"a", b"b"]
        statistics = channel.statistics()
        assert seen()[0] == 3
        # The streams of pages took 0.4 s each, and their first messages no wait.
        assert statistics.first_message.total < statistics.latency.total
        first, (backend,) = seen()[1], statistics.backends
        assert first is not None
        assert 0.0 < first < backend.latency
        counts = dict(channel_counts(statistics, ""))
        assert counts["lbclient_first_message_seconds_count", ""] == 3


def test_the_mean_follows_late_streams() -> None:
    load = Load()
    load.hear_first(1.0)
    assert load.first_message == 1.0
    for _ in range(200):
        load.hear_first(0.1)
    assert load.first_message == pytest.approx(0.1, abs=0.001)


def noted_batches(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Of each batch that our kinds of calls begin, its operations."""
    needs.grpcio("1.83", "its own kinds of calls begin the batches")
    batches: list[list[str]] = []
    execute = vars(own_streams)["execute_batch"]

    async def noting(call: Any, operations: Any, loop: Any) -> None:
        batches.append([type(one).__name__ for one in operations])
        await execute(call, operations, loop)

    monkeypatch.setattr(own_streams, "execute_batch", noting)
    return batches


HEADERS_SENT, HEADERS = (
    "SendInitialMetadataOperation",
    "ReceiveInitialMetadataOperation",
)
SENT, RECEIVED = "SendMessageOperation", "ReceiveMessageOperation"
END = "SendCloseFromClientOperation"


FIRST_REQUESTS = pytest.mark.parametrize(
    ("size", "pause", "is_joined"),
    [
        (3, False, True),
        (MOST_OF_FIRST, False, True),
        (MOST_OF_FIRST + 1, False, False),
        (3, True, False),
    ],
)


class Given:
    """Three requests, of which the first has a size and may come after a `pause`.
    `serialized` is what was asked for, by `serialize`."""

    def __init__(self, size: int, pause: bool) -> None:
        self.requests = [b"1" * size, b"2", b"3"]
        self.serialized: list[bytes] = []
        self._pause = pause

    def serialize(self, request: bytes) -> bytes:
        self.serialized.append(request)
        return request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._pause:
            await asyncio.sleep(0.01)
        for request in self.requests:
            yield request


@FIRST_REQUESTS
async def test_a_short_first_request_that_is_there_goes_with_the_headers(
    size: int,
    pause: bool,
    is_joined: bool,
    host: Host,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One batch fewer, of eleven. All of them are answered, and headers are told."""
    batches = noted_batches(monkeypatch)
    given = Given(size, pause)

    async def answer(come: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        await context.send_initial_metadata((("told", "early"),))
        async for request in come:
            yield request

    address = (await host({CHAT: stream_stream(answer)})).address
    async with lbclient.insecure_channel(f"ipv4:{address}") as channel:
        await channel.channel_ready()
        method: Any = channel.stream_stream(CHAT, request_serializer=given.serialize)
        call = method(aiter(given), timeout=5)
        await call.wait_for_connection()
        headers = await call.initial_metadata()
        answers = [one async for one in call]
    assert (answers, headers["told"]) == (given.requests, "early")
    assert given.serialized == given.requests
    assert ([HEADERS_SENT, SENT] in batches) is is_joined
    assert sum(SENT in batch for batch in batches) == len(given.requests)


@FIRST_REQUESTS
async def test_a_client_stream_is_answered_in_the_batch_of_its_end(
    size: int,
    pause: bool,
    is_joined: bool,
    host: Host,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the status, which grpc.aio's own code asks for, six batches instead of
    seven."""
    batches = noted_batches(monkeypatch)
    given = Given(size, pause)

    async def answer(come: AsyncIterator[bytes], context: Any) -> bytes:
        return b"".join([one async for one in come])

    address = (await host({CHAT: stream_unary(answer)})).address
    async with lbclient.insecure_channel(f"ipv4:{address}") as channel:
        await channel.channel_ready()
        batches.clear()  # of health streams
        method: Any = channel.stream_unary(CHAT, request_serializer=given.serialize)
        call = method(aiter(given), timeout=5)
        await call.wait_for_connection()
        assert await call == b"".join(given.requests)
        assert await call.code() is grpc.StatusCode.OK
    assert given.serialized == given.requests
    apart = [[SENT], [SENT], [SENT], [END]]
    joined = [[HEADERS_SENT, SENT], [SENT], [SENT], [END, RECEIVED]]
    of_call = [batch for batch in batches if SENT in batch or END in batch]
    assert of_call == (joined if is_joined else apart)


@pytest.mark.parametrize("headers_first", [False, True])
@pytest.mark.parametrize(
    "connect", [lbclient.insecure_channel, grpc.aio.insecure_channel]
)
async def test_a_client_stream_may_be_answered_before_its_end(
    connect: Any, headers_first: bool, host: Host
) -> None:
    """The iterator waits for what comes once the call is over."""
    is_answered = asyncio.Event()

    async def given() -> AsyncIterator[bytes]:
        yield b"1"
        await is_answered.wait()
        yield b"2"

    async def answer(come: AsyncIterator[bytes], context: Any) -> bytes:
        if headers_first:
            await context.send_initial_metadata((("told", "early"),))
        context.set_trailing_metadata((("told", "late"),))
        return await anext(come)

    address = (await host({CHAT: stream_unary(answer)})).address
    async with connect(f"ipv4:{address}") as channel:
        await channel.channel_ready()
        call: Any = channel.stream_unary(CHAT)(given(), timeout=5)
        assert await call == b"1"
        is_answered.set()
        assert await call.code() is grpc.StatusCode.OK
        assert (await call.trailing_metadata())["told"] == "late"
        assert ("told" in await call.initial_metadata()) is headers_first


@pytest.mark.parametrize(
    "connect", [lbclient.insecure_channel, grpc.aio.insecure_channel]
)
async def test_a_client_stream_has_its_headers_while_it_sends(
    connect: Any, host: Host
) -> None:
    """Its second request waits for them, as an application may."""
    headers: list[Any] = []

    async def given() -> AsyncIterator[bytes]:
        yield b"1"
        headers.append(await call.initial_metadata())
        yield b"2"

    async def answer(come: AsyncIterator[bytes], context: Any) -> bytes:
        await context.send_initial_metadata((("told", "early"),))
        return b"".join([one async for one in come])

    address = (await host({CHAT: stream_unary(answer)})).address
    async with connect(f"ipv4:{address}") as channel:
        await channel.channel_ready()
        call: Any = channel.stream_unary(CHAT)(given(), timeout=5)
        assert await call == b"12"
    assert headers[0]["told"] == "early"


@pytest.mark.parametrize(
    "connect", [lbclient.insecure_channel, grpc.aio.insecure_channel]
)
@pytest.mark.parametrize("is_ended", [False, True])
async def test_a_client_stream_ends_as_it_is_cancelled_or_late(
    connect: Any, is_ended: bool, host: Host
) -> None:
    async def given() -> AsyncIterator[bytes]:
        yield b"1"
        if not is_ended:
            await is_over.wait()

    has_come, is_over = asyncio.Event(), asyncio.Event()

    async def answer(come: AsyncIterator[bytes], context: Any) -> bytes:
        await anext(come)
        has_come.set()
        await asyncio.sleep(60)
        return b""

    address = (await host({CHAT: stream_unary(answer)})).address
    async with connect(f"ipv4:{address}") as channel:
        await channel.channel_ready()
        method: Any = channel.stream_unary(CHAT)
        call = method(given(), timeout=60)
        await has_come.wait()
        headers = asyncio.ensure_future(call.initial_metadata())
        await asyncio.sleep(0)
        assert call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await call.code() is grpc.StatusCode.CANCELLED
        assert not await headers
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await method(given(), timeout=0.1)
        is_over.set()
    assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize(
    "connect", [lbclient.insecure_channel, grpc.aio.insecure_channel]
)
async def test_a_client_streaming_call_that_fails_has_its_headers(
    connect: Any, host: Host
) -> None:
    """They come while it still sends, and are in its error, as in grpc.aio."""
    go_on = asyncio.Event()

    async def given() -> AsyncIterator[bytes]:
        yield b"1"
        await go_on.wait()
        yield b"2"

    async def answer(come: AsyncIterator[bytes], context: Any) -> bytes:
        await context.send_initial_metadata((("told", "early"),))
        seen = [one async for one in come]
        await context.abort(grpc.StatusCode.DATA_LOSS, f"{seen}")
        return b""

    address = (await host({CHAT: stream_unary(answer)})).address
    async with connect(f"ipv4:{address}") as channel:
        await channel.channel_ready()
        call: Any = channel.stream_unary(CHAT)(given(), timeout=5)
        headers = await call.initial_metadata()
        go_on.set()
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call
    error = failed.value
    assert (headers["told"], error.initial_metadata()["told"]) == ("early", "early")
    assert (error.code(), error.details()) == (
        grpc.StatusCode.DATA_LOSS,
        "[b'1', b'2']",
    )
