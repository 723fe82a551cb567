"""A `FakeChannel` and grpc.aio's own channel: the same client code sees the same."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import grpc
import pytest
from search_pb2 import Answer, Query
from search_pb2_grpc import SearchServicer, SearchStub, add_SearchServicer_to_server

import lbclient
from lbclient.testing import FakeChannel, FakeReply, VirtualLoop, failure, virtual_time
from tests.hosts import Host

Code = grpc.StatusCode
TRAILERS = (("hint", "oak"), ("x-bin", b"1"))
NOT_FOUND = failure(Code.NOT_FOUND, "no such tree", TRAILERS)


class Search(SearchServicer):
    """Does what `scripted` is told."""

    async def Search(self, request: Any, context: Any) -> Any:
        if request.text == "wait":
            await asyncio.sleep(60.0)
        if request.text == "plastic":
            await context.abort(Code.NOT_FOUND, "no such tree", TRAILERS)
        context.set_trailing_metadata((("cost", "7"),))
        return Answer(text=request.text)

    async def Pages(self, request: Any, context: Any) -> Any:
        yield Answer(text="one")
        yield Answer(text="two")
        if request.text == "plastic":
            await context.abort(Code.NOT_FOUND, "no such tree", (("hint", "oak"),))
        if request.text == "wait":
            await asyncio.sleep(60.0)

    async def Index(self, requests: Any, context: Any) -> Any:
        return Answer(text=" ".join([query.text async for query in requests]))

    async def Chat(self, requests: Any, context: Any) -> Any:
        async for query in requests:
            yield Answer(text=f"you said {query.text}")


def search(request: Any) -> Any:
    answers = {"plastic": NOT_FOUND, "wait": FakeReply.never()}
    usual = FakeReply(Answer(text=request.text), trailers=[("cost", "7")])
    return answers.get(request.text, usual)


def pages(request: Any) -> Any:
    ends: dict[str, Any] = {"plastic": [NOT_FOUND], "wait": [FakeReply.never()]}
    last = ends.get(request.text, [])
    return [Answer(text="one"), Answer(text="two"), *last]


async def index(requests: AsyncIterator[Any]) -> Any:
    return Answer(text=" ".join([query.text async for query in requests]))


async def chat(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for query in requests:
        yield Answer(text=f"you said {query.text}")


def scripted() -> FakeChannel:
    channel = FakeChannel()
    channel.answer("Search", search)
    channel.answer("Pages", pages)
    channel.answer("/search.Search/Index", index)
    channel.answer("Chat", chat)
    return channel


@pytest.fixture(name="stub", params=["fake", "grpc.aio", "lbclient"])
async def _stub(request: Any, host: Host) -> AsyncIterator[Any]:
    if request.param == "fake":
        async with scripted() as channel:
            yield SearchStub(channel)
        return
    server = grpc.aio.server()
    add_SearchServicer_to_server(Search(), server)
    _, address, plain = await host(server=server)
    if request.param == "grpc.aio":
        yield SearchStub(plain)
        return
    async with lbclient.insecure_channel(address) as balanced:
        yield SearchStub(balanced)


async def queries(*texts: str) -> AsyncIterator[Query]:
    for text in texts:
        yield Query(text=text)


async def test_an_answer_and_its_status(stub: Any) -> None:
    call = stub.Search(Query(text="larch"), timeout=30.0, metadata=(("a", "b"),))
    assert not call.done()
    assert 20.0 < call.time_remaining() <= 30.0
    over: list[object] = []
    call.add_done_callback(over.append)
    assert (await call).text == "larch"
    assert (await call).text == "larch"
    assert over == [call]
    assert call.done()
    assert not call.cancelled()
    assert not call.cancel()
    assert await call.code() is Code.OK
    assert await call.details() == ""
    assert (await call.trailing_metadata())["cost"] == "7"


async def test_an_error_with_trailers(stub: Any) -> None:
    call = stub.Search(Query(text="plastic"))
    with pytest.raises(grpc.aio.AioRpcError, match="no such tree") as caught:
        await call
    assert caught.value.code() is Code.NOT_FOUND
    assert isinstance(caught.value.trailing_metadata(), grpc.aio.Metadata)
    trailers = caught.value.trailing_metadata()
    assert (trailers["hint"], trailers["x-bin"]) == ("oak", b"1")
    assert await call.code() is Code.NOT_FOUND


async def test_a_deadline(stub: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="Deadline Exceeded") as caught:
        await stub.Search(Query(text="wait"), timeout=0.05)
    assert caught.value.code() is Code.DEADLINE_EXCEEDED


async def test_a_cancelled_call(stub: Any) -> None:
    call = stub.Search(Query(text="wait"))
    assert call.cancel()
    assert not call.cancel()
    assert call.cancelled()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await call.code() is Code.CANCELLED
    assert await call.details() == "Locally cancelled by application!"


async def test_who_stops_waiting_cancels_the_call(stub: Any) -> None:
    call = stub.Search(Query(text="wait"))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(call, 0.05)
    assert call.cancelled()


async def test_a_stream(stub: Any) -> None:
    call = stub.Pages(Query(text="oak"))
    assert [page.text async for page in call] == ["one", "two"]
    assert await call.code() is Code.OK
    call = stub.Pages(Query(text="oak"))
    read = [await call.read() for _ in range(3)]
    assert [read[0].text, read[1].text] == ["one", "two"]
    assert read[2] is grpc.aio.EOF


async def test_a_stream_that_fails_or_is_late(stub: Any) -> None:
    failing = stub.Pages(Query(text="plastic"))
    assert [(await failing.read()).text for _ in range(2)] == ["one", "two"]
    with pytest.raises(grpc.aio.AioRpcError, match="no such tree") as caught:
        await failing.read()
    assert (caught.value.trailing_metadata() or {})["hint"] == "oak"
    late = stub.Pages(Query(text="wait"), timeout=0.3)
    with pytest.raises(grpc.aio.AioRpcError, match="Deadline Exceeded"):
        _ = [page async for page in late]


async def test_a_stream_that_is_cancelled(stub: Any) -> None:
    call = stub.Pages(Query(text="wait"))
    assert (await call.read()).text == "one"
    assert call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call.read()


async def test_a_stream_of_requests(stub: Any) -> None:
    assert (await stub.Index(queries("ash", "elm"))).text == "ash elm"
    assert (await stub.Index([Query(text="ash")])).text == "ash"
    call = stub.Index()
    await call.write(Query(text="yew"))
    await call.done_writing()
    assert (await call).text == "yew"


async def test_a_stream_each_way(stub: Any) -> None:
    call = stub.Chat(queries("hello", "goodbye"))
    said = [answer.text async for answer in call]
    assert said == ["you said hello", "you said goodbye"]
    call = stub.Chat()
    await call.write(Query(text="hello"))
    assert (await call.read()).text == "you said hello"
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


async def test_a_stream_is_read_or_iterated_over(stub: Any) -> None:
    call = stub.Pages(Query(text="oak"))
    assert aiter(call) is aiter(call)
    assert [page.text async for page in call] == ["one", "two"]
    for first in (stub.Pages, stub.Chat):
        call = first(Query(text="wait") if first is stub.Pages else queries("a"))
        await call.read()
        with pytest.raises(grpc.aio.UsageError, match="may not be mixed"):
            aiter(call)
        call.cancel()
    with pytest.raises(grpc.aio.UsageError, match="may not be mixed"):
        await stub.Index(queries("a")).write(Query(text="b"))


async def test_a_call_that_is_late_from_the_start(stub: Any) -> None:
    call = stub.Search(Query(text="larch"), timeout=-1.0)
    with pytest.raises(grpc.aio.AioRpcError, match="Deadline Exceeded"):
        await call
    assert await call.code() is Code.DEADLINE_EXCEEDED


async def test_who_waits_for_the_connection_of_a_failed_call(stub: Any) -> None:
    call = stub.Search(Query(text="plastic"))
    with pytest.raises(grpc.aio.AioRpcError, match="no such tree"):
        await call.wait_for_connection()
    assert isinstance(await call.debug_error_string(), str)


async def test_a_closed_channel(stub: Any) -> None:
    channel = scripted()
    call = SearchStub(channel).Search(Query(text="wait"))
    await channel.close()
    assert call.cancelled()
    assert channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN
    with pytest.raises(grpc.aio.UsageError, match="Channel is closed"):
        SearchStub(channel).Search(Query(text="oak"))


# --- what only a script has ---------------------------------------------------------


@virtual_time
async def test_answers_in_turn_and_the_last_one_for_ever() -> None:
    channel = FakeChannel()
    late = FakeReply(Answer(text="b"), delay=5.0)
    channel.answer("Search", Answer(text="a"), late, lbclient.NoBackend.because("down"))
    stub: Any = SearchStub(channel)
    assert (await stub.Search(Query())).text == "a"
    assert (await stub.Search(Query())).text == "b"
    assert asyncio.get_running_loop().time() == 5.0
    for _ in range(2):
        with pytest.raises(grpc.aio.AioRpcError, match="down"):
            await stub.Search(Query())
    assert len(channel.calls_of("Search")) == len(channel.calls) == 4


async def test_requests_are_kept_as_they_were_sent() -> None:
    channel = scripted()
    stub: Any = SearchStub(channel)
    query = Query(text="larch")
    await stub.Search(query, timeout=1.0, metadata=(("tenant", "shop"),))
    query.text = "maple"
    await stub.Index([query, Query(text="oak")])
    first, second = channel.calls
    assert first.request == Query(text="larch")
    assert (first.timeout, first.metadata["tenant"]) == (1.0, "shop")
    assert [sent.text for sent in second.requests] == ["maple", "oak"]
    assert repr(channel).splitlines() == [
        "<fake channel, 2 calls>",
        '</search.Search/Search(text: "larch"): OK>',
        '</search.Search/Index(text: "maple", text: "oak"): OK>',
    ]


async def test_what_a_script_forgot_or_mistook() -> None:
    channel = FakeChannel()
    stub: Any = SearchStub(channel)
    with pytest.raises(AssertionError, match=r"has no answer: channel\.answer\('Sear"):
        await stub.Search(Query())
    with pytest.raises(AssertionError, match=r"answers are set for no method$"):
        await stub.Search(Query())
    others = FakeChannel()
    for number in range(12):
        others.answer(f"Find{number:02}", Answer())
    with pytest.raises(AssertionError, match=r"set for Find00, .*, Find09, \.\.\.$"):
        await SearchStub(others).Search(Query())
    channel.answer("Search", Query())
    with pytest.raises(TypeError, match="answers with Answer, its script has Query"):
        await stub.Search(Query())
    channel.answer("Pages", Answer())
    with pytest.raises(TypeError, match="a stream is answered by a list of messages"):
        await stub.Pages(Query()).read()
    with pytest.raises(TypeError):
        stub.Search("not a query")
    with pytest.raises(ValueError, match="none, want at least one"):
        channel.answer("Search")


async def test_an_error_of_lbclients_keeps_its_class() -> None:
    channel = scripted()
    channel.answer("Search", lbclient.NoBackend.because("down"))
    channel.answer("Pages", [lbclient.NoBackend.because("down")])
    stub: Any = SearchStub(channel)
    for _ in range(2):
        with pytest.raises(lbclient.NoBackend, match="down"):
            await stub.Search(Query(text="larch"))
    with pytest.raises(lbclient.NoBackend, match="down"):
        await stub.Pages(Query(text="larch")).read()


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        ((("Tenant", "shop"),), "'Tenant' has characters that gRPC does not allow"),
        ((("tenant", "büro"),), "'tenant' has characters that gRPC does not allow"),
        ((("tenant-bin", "shop"),), "'tenant-bin' is bytes, not str"),
        ((("tenant", 7),), "'tenant' is text or bytes, not int"),
        ({"a": "b"}, "unpack"),
    ],
)
async def test_metadata_that_grpc_does_not_send(metadata: Any, error: str) -> None:
    """A real channel says the same."""
    stub: Any = SearchStub(scripted())
    kinds = TypeError, ValueError, grpc.aio.AioRpcError
    with pytest.raises(kinds, match=error):
        await stub.Search(Query(text="larch"), metadata=metadata)
    with pytest.raises(kinds, match=error):
        await stub.Pages(Query(text="larch"), metadata=metadata).read()


async def test_a_close_lets_calls_end_within_its_grace() -> None:
    channel = scripted()
    stub: Any = SearchStub(channel)
    channel.answer("Search", FakeReply(Answer(text="late"), 0.01), FakeReply.never())
    ends, hangs = stub.Search(Query()), stub.Search(Query())
    await channel.close(0.05)
    assert (await ends).text == "late"
    assert hangs.cancelled()


async def test_a_call_keeps_what_it_was_given() -> None:
    channel = scripted()
    stub: Any = SearchStub(channel)
    await stub.Search(
        Query(text="larch"), compression=grpc.Compression.Gzip, wait_for_ready=True
    )
    [call] = channel.calls
    assert call.compression is grpc.Compression.Gzip
    assert call.wait_for_ready
    assert call.credentials is None


async def test_a_script_that_cancels_ends_the_call() -> None:
    channel = FakeChannel()
    channel.answer("Search", asyncio.CancelledError())
    stub: Any = SearchStub(channel)
    call = stub.Search(Query(text="larch"))
    assert await call.code() is Code.CANCELLED


async def test_a_function_may_be_a_plain_generator() -> None:
    channel = FakeChannel()
    channel.answer("Pages", lambda request: (Answer(text=it) for it in request.text))
    stub: Any = SearchStub(channel)
    pages = stub.Pages(Query(text="oak"))
    assert [page.text async for page in pages] == ["o", "a", "k"]


async def test_only_a_resumable_stream_in_flight_can_be_asked_to_move() -> None:
    channel = FakeChannel()
    channel.answer("Search", FakeReply.never())
    channel.answer("Chat", [FakeReply.never()])
    stub: Any = SearchStub(channel)
    moving = asyncio.Event()
    with lbclient.resumable(moving.set):
        search, chat = stub.Search(Query(text="oak")), stub.Chat()
    for call, why in ((search, "no stream"), (stub.Chat(), "not resumable")):
        with pytest.raises(AssertionError, match=why):
            call.ask_to_move()
    chat.ask_to_move()
    assert moving.is_set()
    chat.cancel()
    with pytest.raises(AssertionError, match="is over"):
        chat.ask_to_move()
    await channel.close()


@pytest.mark.parametrize("answer", [[Answer(text="one")], None, Code.NOT_FOUND])
async def test_an_answer_that_is_no_message_of_the_method(answer: Any) -> None:
    channel = FakeChannel()
    channel.answer("Search", answer)
    stub: Any = SearchStub(channel)
    with pytest.raises(TypeError, match="answers with Answer, its script has"):
        await stub.Search(Query(text="larch"))


def test_a_test_that_never_ends_is_no_hang() -> None:
    @virtual_time
    async def retry() -> None:
        for _ in count():
            await asyncio.sleep(3600.0)

    @virtual_time
    async def wait() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(TimeoutError):
        retry()
    with pytest.raises(TimeoutError):
        wait()
    with (
        asyncio.Runner(loop_factory=VirtualLoop) as runner,
        pytest.raises(RuntimeError, match="every task waits and no timer is set"),
    ):
        runner.run(asyncio.Event().wait())
