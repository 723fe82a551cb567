"""Calls that lbclient itself ends, with the connection that they were on.

They end as UNAVAILABLE, with the reason. CancelledError is for who cancelled.
"""

import asyncio
import gc
import pickle
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

import grpc
import pytest

import lbclient
from lbclient.config import ChannelConfig
from lbclient.core.backends.connection_state import Order
from tests import needs
from tests.hosts import hosting, method_handler
from tests.interceptors import PassesBoth, PassesRequests
from tests.waiting import eventually, stands_still

KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
CAUSE = (
    "silent for 15.0 s; its connection was given up 0.0 s ago, and has not answered "
    "this call since"
)
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


class Frozen:
    """A server of which each handler says what it says first, and then nothing more.

    Or, if it `is_silent`, nothing at all.
    """

    def __init__(self, is_silent: bool = False) -> None:
        self.is_silent = is_silent
        self.begun = 0
        self.answers = asyncio.Event()  # once set, it answers

    async def unary(self, _request: Any, context: Any) -> bytes:
        if not self.is_silent:
            await context.send_initial_metadata((("said", "first"),))
        self.begun += 1
        await self.answers.wait()
        return b"last"

    async def stream(self, _request: Any, context: Any) -> AsyncIterator[bytes]:
        if not self.is_silent:
            await context.send_initial_metadata((("said", "first"),))
            yield b"first"
        self.begun += 1
        await self.answers.wait()
        yield b"last"


@asynccontextmanager
async def served(handlers: Any) -> AsyncIterator[str]:
    """The address of a plain server with its `unary` and `stream`, of every kind."""
    methods = {
        f"/frozen/{kind}": method_handler(
            kind, handlers.stream if kind.endswith("stream") else handlers.unary
        )
        for kind in KINDS
    }
    async with hosting(methods, server=grpc.aio.server()) as (_, address, _):
        yield address


@pytest.fixture
async def frozen() -> AsyncIterator[tuple[Frozen, str]]:
    server = Frozen()
    async with served(server) as address:
        yield server, address


@asynccontextmanager
async def channel_to(*addresses: str, **options: Any) -> AsyncIterator[Any]:
    settings = {"picker": "round_robin", **options.pop("settings", {})}
    async with lbclient.insecure_channel(
        "ipv4:" + ",".join(addresses), config=ChannelConfig(**settings), **options
    ) as channel:
        channel.get_state(True)
        await eventually(
            lambda: {b.state for b in channel.statistics().backends} == {"ready"}
        )
        yield channel


def give_up(channel: Any, address: str | None = None) -> None:
    """What a backend does with the calls on a connection that it gave up long ago."""
    for backend in channel.balancer().pool.nodes.values():
        if address in (None, backend.endpoint.address):
            former = backend.channel
            backend._obey(Order.REDIAL, "silent for 15.0 s")
            backend._former.end(former)


def begin(channel: Any, kind: str, **options: Any) -> Any:
    call = getattr(channel, kind)(f"/frozen/{kind}")
    return call(**options) if kind.startswith("stream") else call(b"", **options)


async def answer(call: Any) -> list[bytes]:
    if hasattr(call, "__await__"):
        return [await call]
    return [message async for message in call]


def ways(call: Any, kind: str) -> dict[str, Callable[[], Any]]:
    """How a caller can wait for something of a call that never comes."""
    named: dict[str, Callable[[], Any]] = {"answer": lambda: answer(call)}
    if kind.endswith("stream"):
        named["read"] = lambda: reading(call)
    if kind == "unary_unary":
        named["wait_for_connection"] = call.wait_for_connection
    return named


async def reading(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


def each_way(kind: str) -> list[str]:
    class Anything:
        wait_for_connection = None

    return list(ways(Anything(), kind))


EACH_WAY = [(kind, way) for kind in KINDS for way in each_way(kind)]


@pytest.mark.parametrize("is_idempotent", [False, True])
@pytest.mark.parametrize(("kind", "way"), EACH_WAY)
async def test_whoever_waits_gets_unavailable_with_the_reason(
    frozen: Any, kind: str, way: str, is_idempotent: bool
) -> None:
    """A retry has no other attempt left, so the error is that of the attempt."""
    server, address = frozen
    settings = {
        "idempotent": ("/frozen/*",) if is_idempotent else (),
        "max_attempts": 1,
    }
    async with channel_to(address, settings=settings) as channel:
        seen: list[Any] = []
        call = begin(channel, kind)
        call.add_done_callback(lambda one: seen.append((one, one.cancelled())))
        code = asyncio.ensure_future(call.code())
        waiting = asyncio.ensure_future(ways(call, kind)[way]())
        await eventually(lambda: server.begun == 1)
        give_up(channel)
        assert call.done()
        assert not call.cancelled()
        assert not call.cancel()
        assert seen == [(call, False)]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await waiting
        error = caught.value
        said = f"{address}: {CAUSE}"
        assert (error.code(), error.details()) == (UNAVAILABLE, said)
        # A unary answer's come with the answer, in grpc.aio.
        received = {} if kind == "unary_unary" else {"said": "first"}
        assert dict([*(error.initial_metadata() or ())]) == received
        assert dict([*await call.initial_metadata()]) == received
        again = pickle.loads(pickle.dumps(error))
        assert (again.code(), again.details()) == (UNAVAILABLE, said)
        assert await code is await call.code() is UNAVAILABLE
        assert await call.details() == said
        assert not await call.trailing_metadata()
        assert CAUSE in repr(call)
        with pytest.raises(grpc.aio.AioRpcError, match="given up"):
            await answer(call) if way != "read" else await call.read()
        counts = channel.statistics()
        assert counts.calls == {"UNAVAILABLE": 1}
        assert (counts.attempts["failed"], counts.attempts["abandoned"]) == (1, 0)
        assert CAUSE in "".join(lbclient.info(call).history)
        assert CAUSE in "".join(getattr(error, "__notes__", ()))
        assert counts.backends[0].in_flight == 0


@pytest.mark.parametrize("kind", ["stream_unary", "stream_stream"])
async def test_a_write_learns_it_too(frozen: Any, kind: str) -> None:
    server, address = frozen
    async with channel_to(address) as channel:
        call = begin(channel, kind)
        await call.write(b"one")

        sent: list[bool] = []

        async def write() -> None:
            while True:
                await call.write(bytes(1_000_000))
                sent.append(True)

        writing = asyncio.ensure_future(write())
        await eventually(lambda: server.begun == 1)
        await stands_still(lambda: 1 + len(sent))  # flow control stops it
        give_up(channel)
        with pytest.raises(grpc.aio.AioRpcError, match="given up"):
            await writing
        with pytest.raises(asyncio.InvalidStateError):
            await call.write(b"more")
        await call.done_writing()  # as in grpc.aio: of a call that is over, nothing


@pytest.mark.parametrize("kind", KINDS)
async def test_what_may_be_executed_twice_is_sent_again(kind: str) -> None:
    """Not where a message was read; here nobody has read one."""
    frozen, well = Frozen(is_silent=True), Frozen()
    well.answers.set()
    async with served(frozen) as one, served(well) as other:
        settings = {"idempotent": ("/frozen/*",)}
        async with channel_to(one, other, settings=settings) as channel:
            calls = [begin(channel, kind) for _ in range(2)]
            for call in calls:
                if kind.startswith("stream"):
                    await call.done_writing()
            await eventually(lambda: frozen.begun == 1)
            give_up(channel, one)
            if kind == "unary_unary":
                got = [await answer(call) for call in calls]
                assert got == [[b"last"]] * 2
                assert channel.statistics().calls == {"OK": 2}
                assert channel.statistics().retries == 1
            elif kind == "unary_stream":
                got = [await answer(call) for call in calls]
                assert got == [[b"first", b"last"]] * 2
            else:  # what was written is not kept
                ends = await asyncio.gather(*map(answer, calls), return_exceptions=True)
                errors = [e for e in ends if isinstance(e, grpc.aio.AioRpcError)]
                assert [error.details() for error in errors] == [f"{one}: {CAUSE}"]


class Counting:
    """Answers with the number of its requests, or never."""

    def __init__(self, is_frozen: bool) -> None:
        self.is_frozen = is_frozen
        self.taken: list[bytes] = []

    async def unary(self, requests: Any, _context: Any) -> bytes:
        async for request in requests:
            self.taken.append(request)
        if self.is_frozen:
            await asyncio.sleep(60)
        return b"%d" % len(self.taken)

    async def stream(self, requests: Any, context: Any) -> AsyncIterator[bytes]:
        yield await self.unary(requests, context)


@pytest.mark.parametrize(
    ("kind", "through"),
    [
        ("stream_unary", "nothing"),
        ("stream_stream", "nothing"),
        ("stream_unary", "interceptors"),
        ("stream_stream", "interceptors"),
        ("stream_stream", "a wrapper"),
    ],
)
async def test_what_is_sent_again_is_the_whole_stream(kind: str, through: str) -> None:
    """The iterator of requests is not interrupted: half of an upload would be sent.

    Where that cannot be helped, as the call is hidden, nothing is sent again.
    """
    interceptors: dict[str, tuple[Any, ...]] = {
        "nothing": (),
        "interceptors": SEEING,
        "a wrapper": (Wrapping(),),
    }
    frozen, well = Counting(True), Counting(False)
    wait = asyncio.Event()

    async def requests() -> AsyncIterator[bytes]:
        yield b"a"
        await wait.wait()
        yield b"b"

    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        one, other = await enter(served(frozen)), await enter(served(well))
        stack.enter_context(instrumented(*interceptors[through]))
        settings = {"idempotent": ("/frozen/*",)}
        channel = await enter(channel_to(one, other, settings=settings))
        calls = [begin(channel, kind, request_iterator=requests()) for _ in range(2)]
        ends = [asyncio.ensure_future(answer(call)) for call in calls]
        await eventually(lambda: len(frozen.taken) == len(well.taken) == 1)
        give_up(channel, one)
        if through == "a wrapper":
            wait.set()
            got = await asyncio.gather(*ends, return_exceptions=True)
            assert sorted(type(each).__name__ for each in got) == [
                "AioRpcError",
                "list",
            ]
            assert well.taken == [b"a", b"b"]
            return
        await eventually(lambda: len(well.taken) == 2)
        wait.set()
        for end in ends:
            [count] = await end
            assert count in (b"3", b"4")
        assert sorted(well.taken) == [b"a", b"a", b"b", b"b"]
        assert channel.statistics().calls == {"OK": 2}


async def test_a_wrapped_call_is_sent_again_too() -> None:
    frozen, well = Frozen(is_silent=True), Frozen()
    well.answers.set()
    async with served(frozen) as one, served(well) as other:
        settings = {"idempotent": ("/frozen/*",)}
        async with channel_to(one, other, settings=settings) as channel:
            with waiting(channel):
                wrapped = [begin(channel, "unary_unary") for _ in range(2)]
            await eventually(lambda: frozen.begun == 1)
            give_up(channel, one)
            assert [await call for call in wrapped] == [b"last"] * 2


@contextmanager
def waiting(channel: Any) -> Iterator[None]:
    """Calls find no backend until the end, and are wrapped therefore."""
    pool = channel.balancer().pool
    ready, pool.ready = pool.ready, ()
    yield
    pool.ready = ready
    channel.balancer().pending.serve()


@pytest.mark.parametrize(("kind", "way"), EACH_WAY)
@pytest.mark.parametrize("is_first", [True, False])
async def test_who_is_cancelled_in_the_same_turn_is_cancelled(
    frozen: Any, kind: str, way: str, is_first: bool
) -> None:
    server, address = frozen
    settings = {"idempotent": ("/frozen/*",)}
    async with channel_to(address, settings=settings) as channel:
        call = begin(channel, kind)
        waiting = asyncio.ensure_future(ways(call, kind)[way]())
        await eventually(lambda: server.begun == 1)
        if is_first:
            waiting.cancel()
            give_up(channel)
        else:
            give_up(channel)
            waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert waiting.cancelled()
        await eventually(call.done)
        await eventually(lambda: channel.statistics().backends[0].in_flight == 0)
        assert sum(channel.statistics().calls.values()) == 1


async def test_who_was_cancelled_before_and_goes_on_is_told(frozen: Any) -> None:
    server, address = frozen
    async with channel_to(address) as channel:

        async def clean_up() -> str:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                try:
                    await begin(channel, "unary_unary")
                except grpc.aio.AioRpcError as error:
                    return error.details() or ""
            return "not told"

        cleaning = asyncio.ensure_future(clean_up())
        await asyncio.sleep(0)
        cleaning.cancel()
        await eventually(lambda: server.begun == 1)
        give_up(channel)
        assert await cleaning == f"{address}: {CAUSE}"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_done_callback_that_cancels_the_others_has_cancelled_them(
    frozen: Any, kind: str
) -> None:
    server, address = frozen
    async with channel_to(address) as channel:
        calls = [begin(channel, kind) for _ in range(8)]
        first: list[Any] = []

        def cancel_others(one: Any) -> None:
            if not first:
                first.append(one)
                assert all(other.cancel() for other in calls if other is not one)

        for call in calls:
            call.add_done_callback(cancel_others)
        await eventually(lambda: server.begun == 8)
        give_up(channel)
        assert [call.cancelled() for call in calls].count(False) == 1
        ends = await asyncio.gather(*map(answer, calls), return_exceptions=True)
        kinds = sorted(type(end).__name__ for end in ends)
        assert kinds == ["AioRpcError", *["CancelledError"] * 7]


async def test_a_task_group_sees_an_error(frozen: Any) -> None:
    server, address = frozen
    async with channel_to(address) as channel:

        async def group() -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(answer(begin(channel, "unary_unary")))
                tasks.create_task(answer(begin(channel, "unary_stream")))

        grouped = asyncio.ensure_future(group())
        await eventually(lambda: server.begun == 2)
        give_up(channel)
        with pytest.raises(ExceptionGroup) as caught:
            await grouped
        for error in caught.value.exceptions:
            assert isinstance(error, grpc.aio.AioRpcError)
            assert error.details() == f"{address}: {CAUSE}"


class Watching(grpc.aio.UnaryUnaryClientInterceptor):
    """Awaits the end, as instrumentation does."""

    async def intercept_unary_unary(
        self, continuation: Any, client_call_details: Any, request: Any
    ) -> Any:
        call = await continuation(client_call_details, request)
        await call.code()
        return call


class Wrapping(grpc.aio.StreamStreamClientInterceptor):
    """Returns an iterator in place of the call."""

    async def intercept_stream_stream(
        self, continuation: Any, client_call_details: Any, request_iterator: Any
    ) -> Any:
        call = await continuation(client_call_details, request_iterator)

        async def responses() -> AsyncIterator[Any]:
            async for response in call:
                yield response

        return responses()


SEEING = (Watching(), PassesRequests(), PassesBoth())


@contextmanager
def instrumented(*interceptors: Any) -> Iterator[None]:
    """Every inner channel has an interceptor, as OpenTelemetry sees to."""
    aio: Any = grpc.aio
    plain = aio.insecure_channel

    def make(**options: Any) -> Any:
        return plain(interceptors=interceptors, **options)

    aio.insecure_channel = make
    try:
        yield
    finally:
        aio.insecure_channel = plain


@pytest.mark.parametrize("where", ["here", "inside"])
async def test_interceptors_change_nothing(frozen: Any, where: str) -> None:
    server, address = frozen
    if where == "here":
        async with channel_to(address, interceptors=[Watching()]) as channel:
            await _sees_the_error(server, channel)
    else:
        with instrumented(*SEEING):
            async with channel_to(address) as channel:
                await _sees_the_error(server, channel)


async def _sees_the_error(server: Frozen, channel: Any) -> None:
    call = begin(channel, "unary_unary")
    waiting = asyncio.ensure_future(answer(call))
    await eventually(lambda: server.begun == 1)
    give_up(channel)
    with pytest.raises(grpc.aio.AioRpcError, match="given up"):
        await waiting
    assert await call.code() is UNAVAILABLE
    assert channel.statistics().calls == {"UNAVAILABLE": 1}


@pytest.mark.parametrize("kind", KINDS)
async def test_who_closes_the_channel_cancels_its_calls(frozen: Any, kind: str) -> None:
    server, address = frozen
    async with channel_to(address) as channel:
        call = begin(channel, kind)
        waiting = asyncio.ensure_future(answer(call))
        await eventually(lambda: server.begun == 1)
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert call.cancelled()


@pytest.mark.parametrize("kind", KINDS)
async def test_calls_of_a_channel_that_is_dropped_go_on(frozen: Any, kind: str) -> None:
    server, address = frozen
    channel = lbclient.insecure_channel(f"ipv4:{address}")
    waiting = asyncio.ensure_future(answer(begin(channel, kind)))
    await eventually(lambda: server.begun == 1)
    del channel
    gc.collect()
    server.answers.set()
    assert (await waiting)[-1] == b"last"
    gc.collect()


async def given_up_as_the_answer_arrives(channel: Any, call: Any) -> None:
    """When grpc.aio has the answer, one turn of the loop before the call has it."""
    needs.grpcio("1.84", "lbclient does not see the task that has the answer")
    task = call._call_response
    while not ((waiter := task._fut_waiter) and waiter.done()):
        assert not task.done(), "it was over before it could be given up"
        await asyncio.sleep(0)
    assert not call.done()
    give_up(channel)


@pytest.mark.parametrize("is_idempotent", [False, True])
async def test_who_is_given_up_as_the_answer_arrives_is_tried_again_or_unavailable(
    frozen: Any, is_idempotent: bool
) -> None:
    server, address = frozen
    settings = {"idempotent": ("/frozen/*",) if is_idempotent else ()}
    async with channel_to(address, settings=settings) as channel:
        call = begin(channel, "unary_unary")
        waiting = asyncio.ensure_future(answer(call))
        await eventually(lambda: server.begun)
        server.answers.set()
        await given_up_as_the_answer_arrives(channel, call)
        if is_idempotent:
            assert await waiting == [b"last"]
        else:
            with pytest.raises(grpc.aio.AioRpcError, match="given up"):
                await waiting
        assert call.done()
        assert await call.code() is (
            grpc.StatusCode.OK if is_idempotent else UNAVAILABLE
        )
