"""Interceptors of all kinds: once a call, and the call beneath them is a plain one."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

import lbclient

KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
METHODS = dict(zip(KINDS, ("Search", "Pages", "Index", "Chat"), strict=True))
BASES: dict[str, Any] = {
    "unary_unary": grpc.aio.UnaryUnaryClientInterceptor,
    "unary_stream": grpc.aio.UnaryStreamClientInterceptor,
    "stream_unary": grpc.aio.StreamUnaryClientInterceptor,
    "stream_stream": grpc.aio.StreamStreamClientInterceptor,
}


def passing(kind: str, name: str, seen: list[str]) -> Any:
    """Notes that it was asked, and lets the call pass."""

    async def intercept(_: Any, continuation: Any, details: Any, request: Any) -> Any:
        seen.append(name)
        return await continuation(details, request)

    return type("Passing", (BASES[kind],), {f"intercept_{kind}": intercept})()


def marking(kind: str, mark: str) -> Any:
    """Adds to every response, which makes an iterator of the call."""

    async def intercept(_: Any, continuation: Any, details: Any, request: Any) -> Any:
        call = await continuation(details, request)

        async def responses() -> AsyncIterator[Any]:
            async for response in call:
                response.text += mark
                yield response

        return responses()

    return type("Marking", (BASES[kind],), {f"intercept_{kind}": intercept})()


@pytest.fixture
async def task(start: Any) -> Any:
    return await start()


@pytest.fixture(params=["waiting", "ready"])
def is_ready(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "ready")


class Caller:
    """Calls each kind of method on a channel with interceptors, three texts a call."""

    def __init__(self, channel: lbclient.Channel, search: Any) -> None:
        self.channel = channel
        self._search = search
        self._stub = search.SearchStub(channel)

    def begin(self, kind: str, sending: str) -> Any:
        method = getattr(self._stub, METHODS[kind])
        if kind.startswith("unary"):
            return method(self._search.Query(text="3"), timeout=5)
        return method(self._queries() if sending == "iterator" else None, timeout=5)

    async def _queries(self) -> AsyncIterator[Any]:
        for number in range(3):
            yield self._search.Query(text=f"page {number}")

    async def write(self, call: Any) -> None:
        async for query in self._queries():
            await call.write(query)
        await call.done_writing()


async def texts_of(call: Any, receiving: str) -> list[str]:
    if receiving == "await":
        return [(await call).text]
    if receiving == "iterate":
        return [response.text async for response in call]
    texts = []
    while (response := await call.read()) is not grpc.aio.EOF:
        texts.append(response.text)
    return texts


@pytest.fixture
async def intercepted(task: Any, search: Any, is_ready: bool) -> AsyncIterator[Any]:
    """Makes a caller, once with calls that wait for their backend, once without."""
    channels: list[lbclient.Channel] = []

    async def intercepted(*interceptors: Any) -> Caller:
        channel = lbclient.insecure_channel(task.address, interceptors=interceptors)
        channels.append(channel)
        if is_ready:
            await channel.channel_ready()
        return Caller(channel, search)

    yield intercepted
    for channel in channels:
        await channel.close()


def expected(kind: str, name: str) -> list[str]:
    return {
        "unary_unary": [name],
        "unary_stream": [f"{name} {page}" for page in range(3)],
        "stream_unary": ["3"],
        "stream_stream": [f"page {number}" for number in range(3)],
    }[kind]


WAYS = [
    (kind, sending, receiving)
    for kind in KINDS
    for sending in (("single",) if kind.startswith("unary") else ("iterator", "write"))
    for receiving in (("await",) if kind.endswith("unary") else ("read", "iterate"))
]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("kind", "sending", "receiving"), WAYS)
async def test_a_call_passes_its_interceptors_in_order(
    intercepted: Any,
    task: Any,
    eventually: Any,
    kind: str,
    sending: str,
    receiving: str,
    depth: int,
) -> None:
    seen: list[str] = []
    names = ["outer", "inner"][:depth]
    caller = await intercepted(*(passing(kind, name, seen) for name in names))
    call = caller.begin(kind, sending)
    if sending == "write":
        await caller.write(call)
    assert await texts_of(call, receiving) == expected(kind, task.servicer.name)
    assert await call.code() is grpc.StatusCode.OK
    assert seen == names
    assert lbclient.info(call).backend == task.address
    await eventually(lambda: caller.channel.statistics().in_flight == 0)
    assert caller.channel.statistics().attempts["served"] == 1


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("receiving", ["read", "iterate"])
@pytest.mark.parametrize("kind", ["unary_stream", "stream_stream"])
async def test_an_interceptor_may_change_the_responses(
    intercepted: Any, task: Any, kind: str, receiving: str, depth: int
) -> None:
    caller = await intercepted(*(marking(kind, mark) for mark in "?!"[:depth]))
    call = caller.begin(kind, "iterator")
    marks = "!?" if depth == 2 else "?"
    assert await texts_of(call, receiving) == [
        text + marks for text in expected(kind, task.servicer.name)
    ]
    assert lbclient.info(call).backend == task.address


async def test_info_tells_of_a_call_whose_interceptor_raises_or_answers(
    task: Any, search: Any
) -> None:
    """It awaits the call itself, as many do that trace, and has its own response."""

    class Awaiting(grpc.aio.UnaryUnaryClientInterceptor):
        async def intercept_unary_unary(
            self, continuation: Any, details: Any, request: Any
        ) -> Any:
            call = await continuation(details, request)
            begun.set()
            return await call

    channel = lbclient.insecure_channel(task.address, interceptors=[Awaiting()])
    async with channel:
        stub = search.SearchStub(channel)
        for text in ("3", "abort", "sleep 60"):
            begun = asyncio.Event()
            call = stub.Search(search.Query(text=text), timeout=5)
            await begun.wait()
            if not text.startswith("sleep"):
                await call.code()
            told = lbclient.info(call)
            assert told.backend == task.address
            assert len(told.history) == (text == "abort")
            call.cancel()


@pytest.mark.parametrize("kind", KINDS)
async def test_an_interceptor_of_another_kind_is_not_asked(
    intercepted: Any, task: Any, kind: str
) -> None:
    seen: list[str] = []
    others = [passing(other, other, seen) for other in KINDS if other != kind]
    caller = await intercepted(*others)
    receiving = "await" if kind.endswith("unary") else "iterate"
    call = caller.begin(kind, "iterator")
    assert await texts_of(call, receiving) == expected(kind, task.servicer.name)
    assert seen == []


@pytest.mark.parametrize("kind", KINDS)
async def test_close_ends_an_intercepted_call(
    intercepted: Any, task: Any, eventually: Any, search: Any, kind: str
) -> None:
    caller = await intercepted(passing(kind, "only", []))
    query = search.Query(text="sleep 60")
    method = getattr(search.SearchStub(caller.channel), METHODS[kind])
    call = method(query if kind.startswith("unary") else iter([query]))
    read = texts_of(call, "await" if kind.endswith("unary") else "read")
    reading = asyncio.create_task(read)
    await eventually(lambda: task.servicer.served == 1)
    await caller.channel.close()
    (error,) = await asyncio.gather(reading, return_exceptions=True)
    assert isinstance(error, asyncio.CancelledError | grpc.aio.AioRpcError)
    assert caller.channel.statistics().in_flight == 0
