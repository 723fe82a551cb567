"""A call that one backend did not take, or failed, gets its answer from another."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import grpc
import pytest

import lbclient
from lbclient import wire
from lbclient.client.calls.attempts import Attempts, Next
from lbclient.client.calls.request_stream import KEPT
from lbclient.config import ChannelConfig
from lbclient.core.criticality import DEFAULT
from lbclient.core.model import Verdict
from lbclient.core.retries.retry import ATTEMPTS, RATIO, RESENDS
from tests import needs
from tests.hosts import PATH, Host, hosting, stream_stream, unary_stream, unary_unary
from tests.waiting import eventually
from tests.wire.conftest import earn
from tests.wire.refuser import refuser

# No report comes, and no policy learns to avoid who refuses.
TURNS = ChannelConfig(picker="round_robin", health_interval=60)
SEARCH = "/search.Search/Search"
KINDS = ("Search", "Pages", "Index", "Chat")
CALLS = 6


@asynccontextmanager
async def between(
    *addresses: str, config: ChannelConfig = TURNS
) -> AsyncIterator[lbclient.Channel]:
    """A channel to all of them, each ready."""
    target = "ipv4:" + ",".join(addresses)
    async with lbclient.insecure_channel(target, config=config) as channel:
        await channel.channel_ready()
        await eventually(
            lambda: {b.state for b in channel.statistics().backends} == {"ready"}
        )
        yield channel


async def answers(stub: Any, search: Any, kind: str, texts: list[str]) -> list[str]:
    """What a call of any arity is answered, whoever answers it."""

    async def queries() -> AsyncIterator[Any]:
        for text in texts:
            yield search.Query(text=text)

    method = getattr(stub, kind)
    if kind == "Search":
        return [(await method(search.Query(text=texts[0]), timeout=5)).text]
    if kind == "Pages":
        call = method(search.Query(text="3"), timeout=5)
        return [answer.text async for answer in call]
    if kind == "Index":
        return [(await method(queries(), timeout=5)).text]
    return [answer.text async for answer in method(queries(), timeout=5)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["refuse", "goaway"])
async def test_what_no_server_took_is_answered_by_another(
    start: Any, search: Any, how: str, kind: str
) -> None:
    task = await start(lbclient.server)
    name = task.address.rpartition(":")[2]
    wanted = {
        "Search": [name],
        "Pages": [f"{name} {page}" for page in range(3)],
        "Index": ["3"],
        "Chat": ["a", "b", "c"],
    }
    async with refuser(how) as other, between(task.address, other.address) as channel:
        stub = search.SearchStub(channel)
        for _ in range(CALLS):
            assert await answers(stub, search, kind, ["a", "b", "c"]) == wanted[kind]
        said = channel.statistics()
    assert other.refused > 0
    assert said.resends == other.refused
    assert said.retries == 0
    assert said.calls == {"OK": CALLS}
    assert said.attempts["served"] == CALLS
    assert said.attempts["failed"] == other.refused


async def test_a_call_tells_of_its_attempts(start: Any, search: Any) -> None:
    task = await start(lbclient.server)
    async with refuser("refuse") as other, between(task.address, other.address) as c:
        stub = search.SearchStub(c)
        calls = [stub.Search(search.Query(), timeout=5) for _ in range(2)]
        heard: list[Any] = []
        for call in calls:
            call.add_done_callback(heard.append)
        codes = [await call.code() for call in calls]
        told = sorted(lbclient.info(call).attempts for call in calls)
        assert {lbclient.info(call).backend for call in calls} == {task.address}
        assert all(call.done() and not call.cancelled() for call in calls)
        assert [await call.details() for call in calls] == ["", ""]
    assert codes == [grpc.StatusCode.OK] * 2
    assert told == [1, 2]
    assert heard == calls or heard == calls[::-1]  # each once, with the call it is of


async def test_a_call_that_is_sent_again_can_be_cancelled(
    start: Any, search: Any
) -> None:
    task = await start(lbclient.server)
    async with refuser("refuse") as other, between(task.address, other.address) as c:
        stub = search.SearchStub(c)
        query = search.Query(text="sleep 5")
        calls = [stub.Search(query, timeout=9) for _ in range(2)]
        await eventually(lambda: task.servicer.served == 2)
        assert [call.cancel() for call in calls] == [True, True]
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(end) for end in ends] == [asyncio.CancelledError] * 2
        assert all(call.cancelled() for call in calls)
        assert c.statistics().calls == {"CANCELLED": 2}


@pytest.mark.parametrize(("timeout", "waiting"), [(5.0, 1000), (0.5, 1000), (5.0, 0)])
async def test_where_all_refuse_the_caller_gets_the_error(
    search: Any, timeout: float, waiting: int
) -> None:
    """After as many tries where little time is left, or no room to pause."""
    config = replace(TURNS, max_waiting=waiting)
    async with (
        refuser("refuse") as one,
        between(one.address, config=config) as channel,
    ):
        stub = search.SearchStub(channel)
        call = stub.Search(search.Query(), timeout=timeout)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "RST_STREAM" in (caught.value.details() or "")
        pauses = [each for each in lbclient.info(call).history if "after" in each]
        assert len(pauses) == (RESENDS - 1 if waiting else 0)
        assert channel.statistics().calls == {"UNAVAILABLE": 1}
    assert one.refused == RESENDS + 1


async def queries(search: Any, count: int) -> AsyncIterator[Any]:
    for _ in range(count):
        yield search.Query(text="x")


@pytest.mark.parametrize(("count", "attempts"), [(KEPT, RESENDS + 1), (KEPT + 1, 1)])
async def test_a_stream_that_went_too_far_is_not_sent_again(
    search: Any, count: int, attempts: int
) -> None:
    """What is taken from the iterator beyond the limit is not kept."""
    async with refuser("late") as one, between(one.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await search.SearchStub(channel).Index(queries(search, count), timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert one.refused == attempts


@pytest.mark.parametrize("kind", ["Index", "Chat"])
async def test_what_was_written_is_not_sent_again(search: Any, kind: str) -> None:
    """Nobody kept it."""
    async with refuser("late") as one, between(one.address) as channel:
        call = getattr(search.SearchStub(channel), kind)(timeout=5)
        await call.write(search.Query(text="x"))
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        assert channel.statistics().resends == 0
    assert one.refused == 1


async def test_a_stream_that_was_not_written_to_is_sent_again(
    start: Any, search: Any
) -> None:
    task = await start(lbclient.server)
    async with refuser("refuse") as other, between(task.address, other.address) as c:
        for _ in range(CALLS):
            call = search.SearchStub(c).Chat(timeout=5)
            # What is written before a refusal comes would not be sent again.
            await eventually(lambda: task.server.statistics().active == 1)
            for text in ("a", "b"):
                await call.write(search.Query(text=text))
                assert (await call.read()).text == text
            await call.done_writing()
            assert await call.code() is grpc.StatusCode.OK
        assert c.statistics().resends == other.refused


@pytest.mark.parametrize(
    "words",
    [
        "GOAWAY received; Error code: 0; Debug Text: ",
        "Stream removed (RST_STREAM (Received RST_STREAM with error code 7))",
        "failed to connect to all addresses; last error: none",
    ],
)
async def test_words_of_a_handler_about_another_call_have_nothing_sent_again(
    search: Any, words: str
) -> None:
    """It has executed this one, and hands on what it was told of the next one below."""
    ill = Unavailable(words)
    async with ill.serving() as it, between(it) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await search.SearchStub(channel).Search(search.Query(), timeout=5)
        assert channel.statistics().resends == 0
    assert ill.attempts == ["0"]


# --- methods that may be executed twice -------------------------------------------


class Unavailable:
    """A server whose handler says so, and remembers the attempts' numbers."""

    def __init__(self, words: str = "not today", pushback: str = "") -> None:
        self.attempts: list[str] = []
        self._words = words
        self._trailers = ((wire.PUSHBACK_KEY, pushback),) if pushback else ()

    async def search(self, request: bytes, context: Any) -> bytes:
        metadata = dict(context.invocation_metadata())
        self.attempts.append(metadata.get("lbclient-attempt", "0"))
        code = grpc.StatusCode.UNAVAILABLE
        await context.abort(code, self._words, self._trailers)
        raise AssertionError("abort raises")

    async def pages(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield request
        await self.search(request, context)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        self.server = server = grpc.aio.server()
        methods = {
            SEARCH: unary_unary(self.search),
            "/search.Search/Pages": unary_stream(self.pages),
        }
        async with hosting(methods, server=server) as (_, address, _):
            yield address


def marked(*methods: str) -> ChannelConfig:
    return ChannelConfig(picker="round_robin", health_interval=60, idempotent=methods)


@pytest.mark.parametrize("mark", [SEARCH, "/search.Search/*"])
async def test_what_failed_is_repeated_if_it_may_be(
    start: Any, search: Any, mark: str
) -> None:
    task, ill = await start(lbclient.server), Unavailable()
    config = marked(mark)
    async with ill.serving() as it, between(task.address, it, config=config) as channel:
        stub = search.SearchStub(channel)
        await earn(channel, CALLS)
        for _ in range(CALLS):
            assert (await stub.Search(search.Query(), timeout=5)).text
        said = channel.statistics()
    assert set(ill.attempts) == {"0"}
    assert (said.retries, said.resends) == (len(ill.attempts), 0)
    assert said.calls["OK"] == CALLS


async def test_what_failed_is_not_repeated_if_nobody_says_that_it_may_be(
    start: Any, search: Any
) -> None:
    task, ill = await start(lbclient.server), Unavailable()
    async with ill.serving() as address, between(task.address, address) as channel:
        stub = search.SearchStub(channel)
        calls = [stub.Search(search.Query(), timeout=5) for _ in range(CALLS)]
        ends = await asyncio.gather(*calls, return_exceptions=True)
        said = channel.statistics()
    assert sum(isinstance(end, grpc.aio.AioRpcError) for end in ends) == CALLS // 2
    assert said.calls == {"OK": CALLS // 2, "UNAVAILABLE": CALLS // 2}
    assert said.retries == 0


async def test_retries_are_numbered_and_never_more_than_a_tenth(search: Any) -> None:
    ill, calls = Unavailable(), 200
    async with ill.serving() as one, between(one, config=marked(SEARCH)) as channel:
        stub = search.SearchStub(channel)
        for _ in range(calls):
            with pytest.raises(grpc.aio.AioRpcError, match="not today"):
                await stub.Search(search.Query(), timeout=5)
        said = channel.statistics()
    numbers = Counter(ill.attempts)
    assert numbers["0"] == calls
    assert set(numbers) <= {str(number) for number in range(ATTEMPTS)}
    assert 0 < said.retries <= calls * RATIO
    assert len(ill.attempts) == calls + said.retries


@pytest.mark.parametrize(
    ("attempts", "made"),
    [(1, 1), (2, 2), (5, 5), ({SEARCH: 1}, 1), ({"/search.Search/*": 4}, 4)],
)
async def test_a_method_has_as_many_attempts_as_the_config_says(
    search: Any, attempts: Any, made: int
) -> None:
    ill = Unavailable()
    config = ChannelConfig(idempotent=(SEARCH,), max_attempts=attempts)
    async with ill.serving() as one, between(one, config=config) as channel:
        await earn(channel, made)
        with pytest.raises(grpc.aio.AioRpcError, match="not today"):
            await search.SearchStub(channel).Search(search.Query(), timeout=5)
    assert ill.attempts == [str(number) for number in range(made)]


async def told(call: Any, kind: str) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (call.read() if kind in ("Pages", "Chat") else call)
    return caught.value


@pytest.mark.parametrize("kind", KINDS)
async def test_the_last_error_reaches_the_caller_unchanged_with_its_history(
    host: Host, search: Any, kind: str
) -> None:
    """As a stock channel tells it, but for the number that this handler counts."""
    attempts: list[str] = []

    async def refuse(_requests: Any, context: Any) -> Any:
        number = dict(context.invocation_metadata()).get(wire.ATTEMPT_KEY, "0")
        attempts.append(number)
        trailers = ((wire.REFUSAL_KEY, "overloaded"), ("own-bin", b"\0\1"))
        code = grpc.StatusCode.UNAVAILABLE
        await context.abort(code, f"too much: {number}", trailers)

    methods = {f"/search.Search/{kind}": stream_stream(refuse)}
    _, address, plain = await host(methods, server=grpc.aio.server())

    def call_on(channel: Any, **options: Any) -> Any:
        method = getattr(search.SearchStub(channel), kind)
        if kind in ("Search", "Pages"):
            return method(search.Query(), timeout=5, **options)
        return method(timeout=5, **options)

    last = grpc.aio.Metadata((wire.ATTEMPT_KEY, "2"))
    call = call_on(plain, metadata=last)
    wanted, wanted_debug = await told(call, kind), await call.debug_error_string()
    del attempts[:]
    async with between(address) as channel:
        await earn(channel, ATTEMPTS)
        call = call_on(channel)
        error, debug = await told(call, kind), await call.debug_error_string()
        history = lbclient.info(call).history
        # To ask again is to be told the same, once.
        assert error.__notes__ == (await told(call, kind)).__notes__
        assert lbclient.info(call).attempts == ATTEMPTS
        for ask in ("code", "details", "trailing_metadata", "initial_metadata"):
            assert await getattr(call, ask)() == getattr(error, ask)()
    assert attempts == ["0", "1", "2"]
    assert (error.code(), error.details()) == (wanted.code(), wanted.details())
    assert error.trailing_metadata() == wanted.trailing_metadata()
    assert error.initial_metadata() == wanted.initial_metadata()
    where = f"{address}: UNAVAILABLE, 'too much: "
    starts = [where + "0': attempt 2 of 3 ", where + "1': attempt 3 of 3 "]
    assert [history[i].startswith(starts[i]) for i in range(2)] == [True, True]
    needs.grpcio("1.84", "its own texts for debugging differ from call to call")
    assert masked(debug) == masked(wanted_debug)
    assert masked(error.debug_error_string()) == masked(wanted.debug_error_string())
    assert history[2] == where + "2': all 3 attempts failed"
    assert error.__notes__ == [
        f"attempt {number} on {line}" for number, line in enumerate(history, 1)
    ]


def masked(debug: str | None) -> str:
    """Ports and times differ from call to call."""
    return re.sub(r"\d+", "#", debug or "")


async def test_an_error_of_a_single_attempt_says_why_there_was_no_other(
    search: Any,
) -> None:
    ill = Unavailable()
    async with ill.serving() as one, between(one) as channel:
        call = search.SearchStub(channel).Search(search.Query(), timeout=5)
        error = await told(call, "Search")
        assert lbclient.info(call).history == (
            f"{one}: UNAVAILABLE, 'not today': "
            "it may have been executed, and is not idempotent",
        )
    assert len(error.__notes__) == 1


FINAL = "only what is UNAVAILABLE or refused is tried again"


@pytest.mark.parametrize("kind", KINDS)
async def test_the_history_has_also_what_is_never_tried_again(
    start: Any, search: Any, kind: str
) -> None:
    task = await start(lbclient.server)
    async with lbclient.insecure_channel(task.address) as channel:
        for text, history in (
            ("abort", (f"{task.address}: NOT_FOUND, 'no such thing': {FINAL}",)),
            ("fail", (f"{task.address}: INTERNAL, 'it broke': {FINAL}",)),
            ("5", ()),
        ):
            query = search.Query(text=text)
            sent = iter([query]) if kind in ("Index", "Chat") else query
            call = getattr(search.SearchStub(channel), kind)(sent, timeout=5)
            assert lbclient.info(call).history == ()
            if not history and kind in ("Pages", "Chat"):
                assert [answer async for answer in call]
            await call.code()
            assert lbclient.info(call).history == history


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("overloaded-dont-retry", "the backend said not to retry"),
        ("quota", "the customer is out of quota everywhere"),
    ],
)
async def test_the_history_says_that_a_backend_refused_for_those_below(
    search: Any, word: str, why: str
) -> None:
    """Its handler hands on what it was told, with a status of its own."""

    async def front(request: bytes, context: Any) -> bytes:
        trailers = (wire.REFUSAL_KEY, word)
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
        await context.abort(code, "below", (trailers,))
        raise AssertionError("abort raises")

    async with (
        hosting({SEARCH: unary_unary(front)}) as (_, address, _),
        lbclient.insecure_channel(address) as channel,
    ):
        call = search.SearchStub(channel).Search(search.Query(), timeout=5)
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert lbclient.info(call).history == (
            f"{address}: RESOURCE_EXHAUSTED, 'below': {why}",
        )


@pytest.mark.parametrize("kind", KINDS)
async def test_the_error_of_a_single_attempt_names_its_backend(
    start: Any, search: Any, kind: str
) -> None:
    """Also where nobody thought of another attempt; and once, however often it is
    asked for."""
    task = await start(lbclient.server)
    async with lbclient.insecure_channel(task.address) as channel:
        query = search.Query(text="abort")
        sent = iter([query]) if kind in ("Index", "Chat") else query
        call = getattr(search.SearchStub(channel), kind)(sent, timeout=5)
        for _ in range(2):
            error = await told(call, kind)
            assert error.__notes__ == [
                f"attempt 1 on {task.address}: NOT_FOUND, 'no such thing': {FINAL}"
            ]


async def test_the_error_of_a_stream_that_broke_names_its_backend(search: Any) -> None:
    ill = Unavailable()
    async with ill.serving() as one, between(one) as channel:
        call = search.SearchStub(channel).Pages(search.Query(text="x"), timeout=5)
        await call.read()
        error = await told(call, "Pages")
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    (note,) = error.__notes__
    assert note == f"attempt 1 on {one}: UNAVAILABLE, 'not today': it had begun"


async def test_the_history_ends_with_the_last_attempt_whatever_came_of_it(
    start: Any, search: Any
) -> None:
    task = await start(lbclient.server)
    async with refuser("refuse") as other, between(task.address, other.address) as c:
        stub, query = search.SearchStub(c), search.Query(text="abort")
        calls = [stub.Search(query, timeout=5) for _ in range(2)]
        for call in calls:
            assert await call.code() is grpc.StatusCode.NOT_FOUND
        short, long = sorted((lbclient.info(call).history for call in calls), key=len)
    assert short == (f"{task.address}: NOT_FOUND, 'no such thing': {FINAL}",)
    assert (len(long), long[1:]) == (2, short)
    assert long[0].startswith(f"{other.address}: UNAVAILABLE, ")


async def test_a_stream_that_was_read_from_is_not_repeated(search: Any) -> None:
    """Its reader would get the same twice."""
    ill = Unavailable()
    config = marked("/search.Search/*")
    async with ill.serving() as one, between(one, config=config) as channel:
        call = search.SearchStub(channel).Pages(search.Query(text="x"), timeout=5)
        assert (await call.read()).text == "x"
        with pytest.raises(grpc.aio.AioRpcError, match="not today"):
            await call.read()
        assert channel.statistics().retries == 0
    assert ill.attempts == ["0"]


async def test_the_history_says_that_a_stream_had_begun(search: Any) -> None:
    ill = Unavailable()
    config = marked("/search.Search/*")
    async with ill.serving() as one:
        async with between(one, config=config) as channel:
            call = search.SearchStub(channel).Pages(search.Query(text="x"), timeout=5)
            assert (await call.read()).text == "x"
            with pytest.raises(grpc.aio.AioRpcError, match="not today"):
                await call.read()
        for _ in range(2):  # also once the channel is closed
            [line] = lbclient.info(call).history
            assert line == f"{one}: UNAVAILABLE, 'not today': it had begun"


@pytest.mark.parametrize("is_direct", [True, False])
async def test_the_history_says_that_the_channel_was_closed(
    search: Any, is_direct: bool
) -> None:
    class Slow(Unavailable):
        async def search(self, request: bytes, context: Any) -> bytes:
            begun.set()
            await closing.wait()
            return await super().search(request, context)

    begun, closing = asyncio.Event(), asyncio.Event()
    config = marked("/search.Search/*")
    async with Slow().serving() as one, between(one, config=config) as channel:
        call: Any
        if is_direct:
            call = search.SearchStub(channel).Search(search.Query(), timeout=5)
        else:
            requests: Any = iter([b""])
            call = channel.stream_unary(SEARCH)(requests, timeout=5)
        await begun.wait()
        closed = asyncio.create_task(channel.close(5.0))
        await asyncio.sleep(0)
        closing.set()
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        [line] = lbclient.info(call).history
        assert line == f"{one}: UNAVAILABLE, 'not today': the channel was closed"
        await closed


async def test_a_call_that_pauses_ends_with_its_channel(search: Any) -> None:
    ill = Unavailable(pushback="3600000")  # an hour, in milliseconds
    async with ill.serving() as one:
        async with between(one, config=marked(SEARCH)) as channel:
            call = search.SearchStub(channel).Search(search.Query())
            await eventually(lambda: channel.statistics().retries == 1)
            assert not call.done()
            assert channel.statistics().waiting == 1
            assert lbclient.info(call).backend == one
        assert await call.code() is grpc.StatusCode.CANCELLED
        with pytest.raises(asyncio.CancelledError):
            await call
        assert channel.statistics().waiting == 0


async def test_where_nobody_is_left_the_last_error_is_told(search: Any) -> None:
    ill = Unavailable(pushback="300")
    config = marked(SEARCH)
    async with ill.serving() as one, between(one, config=config) as channel:
        call = search.SearchStub(channel).Search(search.Query(), timeout=9)
        await eventually(lambda: channel.statistics().retries == 1)
        await ill.server.stop(None)
        with pytest.raises(grpc.aio.AioRpcError, match="not today"):
            await call
        assert lbclient.info(call).attempts == 1
    assert ill.attempts == ["0"]


@pytest.mark.parametrize("how", ["cancel", "reset"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("idempotent", [True, False])
async def test_what_a_task_ends_unseen_is_its_error_and_sent_again_if_it_may_be(
    start: Any, search: Any, kind: str, how: str, idempotent: bool
) -> None:
    """CANCELLED, though nobody cancelled it: it looked as if the caller had."""
    task = await start(lbclient.server)
    config = marked("/search.Search/*") if idempotent else TURNS
    async with (
        refuser(how) as other,
        between(task.address, other.address, config=config) as channel,
    ):
        while channel.statistics().retries_left < CALLS:
            await channel.unary_unary("/test.Nobody/Has")(b"").code()
        before, earlier = channel.statistics(), other.refused
        stub, failed = search.SearchStub(channel), 0
        for _ in range(CALLS):
            try:
                assert await answers(stub, search, kind, ["1"])
            except grpc.aio.AioRpcError:
                failed += 1
        said = channel.statistics()
        cut = other.refused - earlier
    assert cut > 0
    assert failed == (0 if idempotent else cut)
    assert said.retries == (cut if idempotent else 0)
    assert said.attempts["rejected"] - before.attempts["rejected"] == cut
    assert said.attempts["abandoned"] == 0
    assert [one.refused_there for one in said.throttle] == [other.refused]


async def test_a_call_that_is_given_up_says_nothing_of_the_backend(
    start: Any, search: Any
) -> None:
    """By its caller, by a task that is cancelled, or by the channel."""
    task = await start(lbclient.server)
    async with between(task.address, config=marked("/search.Search/*")) as channel:
        balancer, stub = channel.balancer(), search.SearchStub(channel)
        query = search.Query(text="sleep 60")
        calls = [stub.Search(query), stub.Pages(query), stub.Index(iter([query]))]
        asking = asyncio.create_task(anext(aiter(stub.Pages(query))))
        await eventually(lambda: task.servicer.served == len(calls) + 1)
        calls[0].cancel()
        calls[1].cancel()
        asking.cancel()
        await eventually(lambda: task.servicer.cancelled == 3)
        assert channel.statistics().attempts["abandoned"] == 3
    assert balancer.connections.attempts() == {
        Verdict.SERVED: 0,
        Verdict.REJECTED: 0,
        Verdict.FAILED: 0,
        Verdict.ABANDONED: 4,
        Verdict.DECLINED: 0,
    }
    assert (balancer.counters.retries, balancer.throttling.is_active) == (0, False)


async def test_what_a_handler_calls_cancelled_is_the_handlers_own_answer(
    host: Host, search: Any
) -> None:
    async def cancel(_request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.CANCELLED, "its own words")

    _, address, _ = await host({SEARCH: unary_unary(cancel)})
    async with between(address, config=marked(SEARCH)) as channel:
        await eventually(
            lambda: next(iter(channel.balancer().pool.ready)).reported.is_ours
        )
        with pytest.raises(grpc.aio.AioRpcError, match="its own words"):
            await search.SearchStub(channel).Search(search.Query(), timeout=5)
        assert channel.statistics().attempts["served"] == 1
        assert channel.statistics().retries == 0


@pytest.mark.parametrize("why", ["when_full", "max_waiting", "deadline"])
async def test_where_there_is_no_room_for_a_retry_the_last_error_is_told(
    host: Host, search: Any, why: str
) -> None:
    """It was RESOURCE_EXHAUSTED, "nothing was sent". A deadline is as in gRPC."""
    gone, holding = asyncio.Event(), asyncio.Event()

    async def fail(request: bytes, context: Any) -> bytes:
        told = ((wire.PUSHBACK_KEY, "300"),)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "not today", told)
        raise AssertionError("abort raises")

    async def hold(request: bytes, context: Any) -> bytes:
        holding.set()
        await gone.wait()
        return b""

    methods = {SEARCH: unary_unary(fail), "/search.Search/Hold": unary_unary(hold)}
    _, address, _ = await host(methods, server=grpc.aio.server())
    config = ChannelConfig(
        idempotent=(SEARCH,),
        active_limit=1,
        max_waiting=1 if why == "max_waiting" else 10,
        when_full="fail" if why == "when_full" else "wait",
    )
    async with between(address, config=config) as channel:
        call = search.SearchStub(channel).Search(search.Query(), timeout=1)
        await eventually(lambda: channel.statistics().retries == 1)
        method: Any = channel.unary_unary("/search.Search/Hold")
        held = [method(b"") for _ in range(2 if why == "max_waiting" else 1)]
        await holding.wait()
        error = await told(call, "Search")
        is_late = isinstance(error, lbclient.DeadlineWhileWaiting)
        assert is_late is (why == "deadline")
        assert is_late or error.details() == "not today"
        assert "not today" in error.__notes__[0]
        gone.set()
        await asyncio.gather(*held)
        assert sum(channel.statistics().refused.values()) == is_late


async def test_a_task_that_serves_as_many_as_it_may_leaves_the_rest_to_another(
    host: Host,
) -> None:
    """grpcio's status for that is RESOURCE_EXHAUSTED; it was not executed."""
    going, all_in, served = asyncio.Event(), asyncio.Event(), 0

    async def wait(_request: Any, context: Any) -> bytes:
        nonlocal served
        served += 1
        if served == 4:
            all_in.set()
        await going.wait()
        return b""

    fleet = [
        await host(unary_unary(wait), maximum_concurrent_rpcs=limit)
        for limit in (1, None)
    ]
    addresses = [hosted.address for hosted in fleet]
    config = ChannelConfig(picker="round_robin", slow_start=0)
    async with between(*addresses, config=config) as channel:
        calls = [channel.unary_unary(PATH)(b"", timeout=9) for _ in "abcd"]
        await asyncio.wait_for(all_in.wait(), 9)
        going.set()
        await asyncio.gather(*calls)
        assert channel.statistics().retries >= 1


async def test_a_deadline_that_passes_just_before_the_next_attempt_is_told(
    host: Host,
) -> None:
    """A retry was decided with a moment left. The call ended with an AssertionError."""
    hosted = await host(unary_unary(refuser))
    async with between(hosted.address) as channel:
        method: Any = channel.unary_unary(PATH)
        balancer = channel.balancer()
        [backend] = balancer.pool.ready
        options = {"metadata": None, "credentials": None}
        attempts = Attempts(balancer, method, b"", DEFAULT, options)
        then = Next(0.0, backend, balancer.clock())
        call = method.wrapper(attempts, 0.0, None, None, then)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call
    assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("pushback", [0, 60_000])  # milliseconds
@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream"])
async def test_a_retry_has_the_time_that_is_left_though_the_clock_was_set_back(
    host: Host, monkeypatch: pytest.MonkeyPatch, kind: str, pushback: int
) -> None:
    """It had an hour more, as grpc.aio tells what is left by the time of day."""
    left: list[float] = []  # at the beginning of each attempt
    told = ((wire.PUSHBACK_KEY, str(pushback)),)

    async def once(request: bytes, context: Any) -> bytes:
        left.append(context.time_remaining())
        if len(left) == 1:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not yet", told)
        return b""

    async def stream(request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield await once(request, context)

    handler = unary_unary(once) if kind == "unary_unary" else unary_stream(stream)
    _, address, _ = await host(handler)
    config = ChannelConfig(idempotent=(PATH,))
    async with between(address, config=config) as channel:
        method = getattr(channel, kind)(PATH)
        now = time.time
        with monkeypatch.context() as ahead:
            ahead.setattr(time, "time", lambda: now() + 3600.0)
            call = method(b"", timeout=30)
        if kind == "unary_stream":
            with suppress(grpc.aio.AioRpcError):  # its status is looked at below
                assert [_ async for _ in call] == [b""]
        code = await call.code()
    if pushback:
        assert (code, len(left)) == (grpc.StatusCode.UNAVAILABLE, 1), "there is no time"
    else:
        assert (code, len(left)) == (grpc.StatusCode.OK, 2)
        assert 0.0 < left[1] <= 31.0
