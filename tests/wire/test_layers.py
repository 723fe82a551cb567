"""A handler whose own calls are refused, or that has a deadline: what its client sees.

Three processes in one: a client, a server above, and one below that its handler calls.
"""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from contextvars import Context
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc import StatusCode

import lbclient
from lbclient import wire
from lbclient.config import ChannelConfig, ServerConfig
from lbclient.core.model import Verdict
from lbclient.core.refusal import Refusal
from lbclient.core.throttles.throttle import COLD
from lbclient.server.requests.async_context import AsyncContext
from lbclient.server.requests.context import ContextlessRequest
from lbclient.server.requests.thread_context import ThreadContext
from lbclient.v1 import load_pb2
from tests.hosts import PATH, Host, Hosted, method_handler, unary_unary
from tests.waiting import eventually
from tests.wire.conftest import earn

ARITIES = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
KINDS = [(arity, kind) for arity in ARITIES for kind in ("async", "sync")]
KINDS += [("unary_stream", "generator"), ("stream_stream", "generator")]
FULL = ServerConfig(signals={"test": lambda: 1000.0})
TOO_MUCH = "test is 1000.00, the limit 1"
NOT_AGAIN = [
    (wire.REFUSAL_KEY, Refusal.DONT_RETRY.value),
    (wire.PUSHBACK_KEY, "-1"),
]

Ask = Callable[[Any], Awaitable[Any]]  # what a handler does, with its context


@pytest.fixture
async def pool() -> AsyncIterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(2)
    yield pool
    await asyncio.to_thread(pool.shutdown)


def handler_of(arity: str, kind: str, ask: Ask) -> Any:
    """Does on the loop what `ask` says, and answers with that."""
    loop = asyncio.get_running_loop()

    def asked(context: Any) -> Any:
        async def on_loop() -> Any:
            return await ask(context)

        return asyncio.run_coroutine_threadsafe(on_loop(), loop).result(10)

    async def respond(_request: Any, context: Any) -> Any:
        return await ask(context)

    async def write(_request: Any, context: Any) -> None:
        await context.write(await ask(context))

    async def generate(_request: Any, context: Any) -> AsyncIterator[Any]:
        yield await ask(context)

    def respond_in_thread(_request: Any, context: Any) -> Any:
        return asked(context)

    def generate_in_thread(_request: Any, context: Any) -> Iterator[Any]:
        yield asked(context)

    streams = arity.endswith("stream")
    functions: dict[str, Any] = {
        "async": write if streams else respond,
        "generator": generate,
        "sync": generate_in_thread if streams else respond_in_thread,
    }
    return method_handler(arity, functions[kind])


def begin(channel: Any, arity: str, **options: Any) -> Any:
    method = getattr(channel, arity)(PATH)
    return method(b"a", **options) if arity.startswith("unary") else method(**options)


async def end_of(call: Any, arity: str) -> Any:
    """What a caller gets; raises what it raises."""
    if arity.endswith("stream"):
        return [message async for message in call]
    return await call


async def failure(
    hosted: Hosted, arity: str = "unary_unary", **options: Any
) -> grpc.aio.AioRpcError:
    """What a stock client of this method is told."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await end_of(begin(hosted.channel, arity, timeout=10, **options), arity)
    return caught.value


def told(error: grpc.aio.AioRpcError) -> list[tuple[str, Any]]:
    """What is said of retries, in order, with nothing said twice."""
    keys = (wire.REFUSAL_KEY, wire.PUSHBACK_KEY)
    said = [(key, value) for key, value in error.trailing_metadata() if key in keys]
    return sorted(said, reverse=True)


async def never(context: Any) -> Any:
    raise AssertionError("it was refused")


# --- what a handler does with a refusal, on its loop ------------------------------


async def escapes(error: grpc.aio.AioRpcError, context: Any) -> None:
    raise error


async def aborts(error: grpc.aio.AioRpcError, context: Any) -> None:
    await context.abort(error.code(), error.details())


async def hands_on_all(error: grpc.aio.AioRpcError, context: Any) -> None:
    trailers = tuple(error.trailing_metadata())
    await context.abort(error.code(), error.details(), trailers)


async def sets_the_code(error: grpc.aio.AioRpcError, context: Any) -> Any:
    context.set_code(error.code())
    context.set_details(error.details())
    return b""


async def in_a_group(error: grpc.aio.AioRpcError, context: Any) -> None:
    cancelled: list[Exception] = [error]
    raise ExceptionGroup("two calls", cancelled)


async def overloaded(context: Any) -> Any:
    """What grpc.aio's own server says in our words."""
    report = load_pb2.LoadReport(active_requests=77).SerializeToString()
    trailers = ((wire.REFUSAL_KEY, "overloaded"), (wire.LOAD_KEY, report))
    await context.abort(StatusCode.UNAVAILABLE, TOO_MUCH, trailers)


async def aborts_later(call: Any, context: Any) -> Any:
    """When the error is no longer being handled."""
    failed = None
    try:
        await call
    except grpc.aio.AioRpcError as error:
        failed = error
    assert failed is not None
    await hands_on_all(failed, context)


async def asks_for_the_status(call: Any, context: Any) -> Any:
    code, details = await call.code(), await call.details()
    await context.abort(code, details, tuple(await call.trailing_metadata()))


async def sets_the_trailers(call: Any, context: Any) -> Any:
    context.set_code(await call.code())
    context.set_details(await call.details())
    context.set_trailing_metadata(tuple(await call.trailing_metadata()))
    return b""


WAYS = [escapes, aborts, hands_on_all, sets_the_code, in_a_group]


@pytest.mark.parametrize(("arity", "kind"), KINDS)
async def test_what_is_refused_below_is_refused_above_and_not_to_be_retried(
    host: Host, pool: ThreadPoolExecutor, arity: str, kind: str
) -> None:
    """However the handler called, whether it lets the error escape or does not."""
    below = await host(handler_of("unary_unary", "async", never), config=FULL)
    async with lbclient.insecure_channel(below.address) as channel:

        async def ask(_context: Any) -> Any:
            return await end_of(begin(channel, arity, timeout=5), arity)

        above = await host(handler_of(arity, kind, ask), migration_thread_pool=pool)
        error = await failure(above, arity)
    assert error.code() is StatusCode.UNAVAILABLE
    assert TOO_MUCH in (error.details() or "")
    assert told(error) == NOT_AGAIN


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("way", WAYS)
async def test_it_does_not_matter_how_a_handler_hands_a_refusal_on(
    host: Host, way: Any, plain: bool
) -> None:
    """`plain` is a handler with grpc.aio's own channel, whose errors tell all."""
    below = await host(handler_of("unary_unary", "async", never), config=FULL)
    make: Any = grpc.aio.insecure_channel if plain else lbclient.insecure_channel
    async with make(below.address) as channel:

        async def ask(context: Any) -> Any:
            try:
                return await channel.unary_unary(PATH)(b"", timeout=5)
            except grpc.aio.AioRpcError as error:
                return await way(error, context)

        error = await failure(await host(handler_of("unary_unary", "async", ask)))
    assert error.code() is StatusCode.UNAVAILABLE
    assert TOO_MUCH in (error.details() or "")
    if plain and way is sets_the_code:
        assert told(error) == []  # the one way that nobody sees
        return
    assert told(error) == NOT_AGAIN
    trailers = error.trailing_metadata()
    assert len(trailers.get_all(wire.LOAD_KEY)) == 1
    report = wire.find_report(trailers)
    assert report is not None
    assert report.active == 0, "its own, not the one from below"


@pytest.mark.parametrize("way", [aborts_later, asks_for_the_status, sets_the_trailers])
async def test_who_has_begun_never_says_that_it_was_not_executed(
    host: Host, way: Any
) -> None:
    """By a channel of grpc.aio's, of whose errors only the handler knows."""
    plain = grpc.aio.server()
    below = await host(handler_of("unary_unary", "async", overloaded), server=plain)
    executed: list[Any] = []
    async with grpc.aio.insecure_channel(below.address) as channel:

        async def ask(context: Any) -> Any:
            executed.append(way)
            method: Any = channel.unary_unary(PATH)
            return await way(method(b"", timeout=5), context)

        handler = handler_of("unary_unary", "async", ask)
        fleet = [(await host(handler)).address for _ in range(3)]
        async with lbclient.insecure_channel(f"ipv4:{','.join(fleet)}") as client:
            await client.channel_ready()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.unary_unary(PATH)(b"", timeout=5)
    assert len(executed) == 1, "it is not idempotent"
    assert told(caught.value) == NOT_AGAIN
    report = wire.find_report(caught.value.trailing_metadata())
    assert report is not None
    assert report.active == 0, "its own, not the one from below"


QUOTA = [(wire.REFUSAL_KEY, Refusal.QUOTA.value), NOT_AGAIN[1]]


async def out_of_quota(context: Any) -> Any:
    trailers = ((wire.REFUSAL_KEY, Refusal.QUOTA.value),)
    await context.abort(StatusCode.RESOURCE_EXHAUSTED, "no quota", trailers)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("way", WAYS)
async def test_that_a_customer_is_out_of_quota_below_is_said_above(
    host: Host, way: Any, plain: bool
) -> None:
    """However it is handed on. It was `overloaded-dont-retry`: see below."""
    below = await host(
        handler_of("unary_unary", "async", out_of_quota), server=grpc.aio.server()
    )
    make: Any = grpc.aio.insecure_channel if plain else lbclient.insecure_channel
    async with make(below.address) as channel:

        async def ask(context: Any) -> Any:
            try:
                return await channel.unary_unary(PATH)(b"", timeout=5)
            except grpc.aio.AioRpcError as error:
                return await way(error, context)

        error = await failure(await host(handler_of("unary_unary", "async", ask)))
    assert error.code() is StatusCode.RESOURCE_EXHAUSTED
    if plain and way is sets_the_code:
        assert told(error) == []  # the one way that nobody sees
        return
    assert told(error) == QUOTA


async def test_who_hands_on_one_of_several_refusals_means_that(host: Host) -> None:
    async def refuse(context: Any) -> Any:
        asked = dict(context.invocation_metadata())
        await (out_of_quota if "quota" in asked else overloaded)(context)

    below = await host(
        handler_of("unary_unary", "async", refuse), server=grpc.aio.server()
    )
    async with lbclient.insecure_channel(below.address) as channel:

        async def ask(context: Any) -> Any:
            errors = []
            for metadata in ((), (("quota", "yes"),)):
                call = channel.unary_unary(PATH)(b"", timeout=5, metadata=metadata)
                errors.append(await call_error(call))
            is_all = "all" in dict(context.invocation_metadata())
            await (hands_on_all if is_all else aborts)(errors[1], context)

        above = await host(handler_of("unary_unary", "async", ask))
        for metadata, said in (((("all", "yes"),), QUOTA), ((), NOT_AGAIN)):
            error = await failure(above, metadata=metadata)
            assert error.code() is StatusCode.RESOURCE_EXHAUSTED
            assert told(error) == said


async def call_error(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_one_customers_quota_below_throttles_nobody_above(
    host: Host, pool: ThreadPoolExecutor, kind: str, eventually: Any
) -> None:
    """Of those who call the same handler, over one channel. 101 of 150 were."""
    done = handler_of("unary_unary", "async", left)
    config = ServerConfig(quotas={"good": 1e6, "bad": 1e-6}, max_load=0)
    below = await host(done, config=config)
    async with lbclient.insecure_channel(below.address) as channel:

        async def ask(context: Any) -> Any:
            said = dict(context.invocation_metadata())[wire.CUSTOMER_KEY]
            who = ((wire.CUSTOMER_KEY, said),)
            return await channel.unary_unary(PATH)(b"", timeout=5, metadata=who)

        calm = ServerConfig(max_load=0)  # however busy the machine is
        server = lbclient.server(migration_thread_pool=pool, config=calm)
        above = await host(handler_of("unary_unary", kind, ask), server=server)
        async with lbclient.insecure_channel(above.address) as client:
            refused = 0
            for number in range(2 * round(COLD)):
                name = "bad" if number % 10 else "good"
                try:
                    await client.unary_unary(PATH)(
                        b"", timeout=5, metadata=((wire.CUSTOMER_KEY, name),)
                    )
                except grpc.aio.AioRpcError:
                    assert number % 10
                    refused += 1
            assert refused > 1.5 * COLD
            said = client.statistics()
            assert said.throttled == 0
            assert said.calls["RESOURCE_EXHAUSTED"] == refused
            sent = refused - said.refused["quota"]
        # To whoever balances, this layer is as good as any.
        assert server.statistics().eps == 0.0
        # A request in a thread is over when its task is, soon after its client knows.
        seen = server.statistics
        await eventually(lambda: seen().requests["RESOURCE_EXHAUSTED"] == sent)


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_calls_in_tasks_of_the_request_are_its_own(
    host: Host, pool: ThreadPoolExecutor, kind: str
) -> None:
    """The handler aborts when it has long forgotten the error."""
    below = await host(handler_of("unary_unary", "async", never), config=FULL)
    async with lbclient.insecure_channel(below.address) as channel:

        async def ask(context: Any) -> Any:
            method = channel.unary_unary(PATH)
            calls = [method(b"", timeout=5) for _ in range(2)]
            await asyncio.gather(*calls, return_exceptions=True)
            return b"nothing found"

        async def respond(_request: Any, context: Any) -> None:
            await ask(context)
            await context.abort(StatusCode.RESOURCE_EXHAUSTED, "too much below")

        def respond_in_thread(_request: Any, context: Any) -> None:
            handled = asyncio.run_coroutine_threadsafe(ask(context), loop)
            handled.result(10)
            context.abort(StatusCode.RESOURCE_EXHAUSTED, "too much below")

        loop = asyncio.get_running_loop()
        behaviors: dict[str, Any] = {"async": respond, "sync": respond_in_thread}
        handler = unary_unary(behaviors[kind])
        error = await failure(await host(handler, migration_thread_pool=pool))
    assert error.code() is StatusCode.RESOURCE_EXHAUSTED
    assert error.details() == "too much below"
    assert told(error) == NOT_AGAIN


async def test_a_status_that_was_asked_for_is_learned_like_an_error(
    host: Host,
) -> None:
    below = await host(handler_of("unary_unary", "async", never), config=FULL)
    async with lbclient.insecure_channel(below.address) as channel:

        async def ask(context: Any) -> Any:
            call = begin(channel, context.invocation_metadata()["arity"], timeout=5)
            code, details = await call.code(), await call.details()
            await context.abort(code, details)

        above = await host(handler_of("unary_unary", "async", by_dict(ask)))
        for arity in ARITIES:
            error = await failure(above, metadata=(("arity", arity),))
            assert error.code() is StatusCode.UNAVAILABLE
            assert told(error) == NOT_AGAIN


def by_dict(ask: Ask) -> Ask:
    async def asking(context: Any) -> Any:
        class Seen:
            abort = context.abort

            @staticmethod
            def invocation_metadata() -> dict[str, Any]:
                return dict(context.invocation_metadata())

        return await ask(Seen)

    return asking


async def test_what_is_refused_without_being_sent_is_refused_above(
    host: Host,
) -> None:
    """`Throttled` and `BackendsFull` are refusals, too."""

    async def ask(context: Any) -> Any:
        which = dict(context.invocation_metadata())["error"]
        raise getattr(lbclient, which).because("in words")

    above = await host(handler_of("unary_unary", "async", ask))
    for which, code in (
        ("Throttled", StatusCode.UNAVAILABLE),
        ("BackendsFull", StatusCode.RESOURCE_EXHAUSTED),
        ("OutOfQuota", StatusCode.RESOURCE_EXHAUSTED),
    ):
        error = await failure(above, metadata=(("error", which),))
        assert (error.code(), error.details()) == (code, "in words")
        assert told(error) == (QUOTA if which == "OutOfQuota" else NOT_AGAIN)


@pytest.mark.parametrize(("arity", "kind"), KINDS)
async def test_who_has_nobody_to_ask_is_unavailable_and_not_to_be_retried(
    host: Host, pool: ThreadPoolExecutor, arity: str, kind: str
) -> None:
    """It is no refusal: nobody's throttle is to count it as one."""
    async with lbclient.insecure_channel("127.0.0.1:1") as channel:

        async def ask(context: Any) -> Any:
            return await channel.unary_unary(PATH)(b"", timeout=5)

        handler = handler_of(arity, kind, ask)
        _, address, _ = await host(handler, migration_thread_pool=pool)
        async with grpc.aio.insecure_channel(address) as client:
            with pytest.raises(grpc.aio.AioRpcError, match="0 of 1 backends") as caught:
                await end_of(begin(client, arity, timeout=9), arity)
    assert caught.value.code() is StatusCode.UNAVAILABLE
    assert told(caught.value) == [(wire.PUSHBACK_KEY, "-1")]


async def test_a_channel_keeps_nothing_of_the_request_that_used_it_first(
    host: Host,
) -> None:
    below = await host(handler_of("unary_unary", "async", left))
    gc.collect()
    before = len(living())
    async with lbclient.insecure_channel(below.address) as channel:

        async def ask(_context: Any) -> Any:
            return await channel.unary_unary(PATH)(b"", timeout=2)

        above = await host(handler_of("unary_unary", "async", ask))
        async with grpc.aio.insecure_channel(above.address) as client:
            await end_of(begin(client, "unary_unary"), "unary_unary")
        gc.collect()
        await eventually(lambda: len(living()) <= before)


async def test_what_has_nothing_to_do_with_a_refusal_stays_as_it_is(
    host: Host,
) -> None:
    below = await host(handler_of("unary_unary", "async", never), config=FULL)
    async with lbclient.insecure_channel(below.address) as channel:

        async def ask(context: Any) -> Any:
            what = dict(context.invocation_metadata())["what"]
            with suppress(grpc.aio.AioRpcError):
                if what != "nothing was called":
                    await channel.unary_unary(PATH)(b"", timeout=5)
            if what == "an answer":
                return b"without it"
            if what == "another error":
                raise ExceptionGroup("", [lbclient.Throttled.because(""), KeyError(1)])
            code = StatusCode.UNAVAILABLE
            code = StatusCode.NOT_FOUND if what == "another status" else code
            await context.abort(code, "its own")

        above = await host(handler_of("unary_unary", "async", ask))
        for what, code in (
            ("nothing was called", StatusCode.UNAVAILABLE),
            ("another status", StatusCode.NOT_FOUND),
            ("another error", StatusCode.UNKNOWN),
        ):
            error = await failure(above, metadata=(("what", what),))
            assert (error.code(), told(error)) == (code, []), what
        async with grpc.aio.insecure_channel(above.address) as client:
            method: Any = client.unary_unary(PATH)
            assert await method(b"", metadata=(("what", "an answer"),)) == b"without it"


async def test_what_was_retried_in_vain_is_not_retried_above(host: Host) -> None:
    """It is no refusal: nobody's throttle is to count it as one."""

    async def ill(context: Any) -> Any:
        await context.abort(StatusCode.UNAVAILABLE, "not today")

    below = await host(handler_of("unary_unary", "async", ill))
    for idempotent, said in (((), []), ((PATH,), [(wire.PUSHBACK_KEY, "-1")])):
        config = ChannelConfig(idempotent=idempotent)
        async with lbclient.insecure_channel(below.address, config=config) as channel:

            async def ask(context: Any, channel: Any = channel) -> Any:
                code = await channel.unary_unary(PATH)(b"", timeout=5).code()
                await context.abort(code, "not today")

            above = await host(handler_of("unary_unary", "async", ask))
            error = await failure(above)
        assert (error.code(), error.details()) == (StatusCode.UNAVAILABLE, "not today")
        assert told(error) == said


async def test_only_the_layer_right_above_the_one_that_refuses_retries(
    host: Host,
) -> None:
    """Three layers of ours, each ready to try three times; 27 would come without."""
    seen: list[str] = []

    async def refuse(context: Any) -> Any:
        seen.append("low")
        trailers = ((wire.REFUSAL_KEY, Refusal.OVERLOADED.value),)
        await context.abort(StatusCode.UNAVAILABLE, "too much", trailers)

    def passing(name: str, channel: Any, way: Any) -> Any:
        async def ask(context: Any) -> Any:
            seen.append(name)
            try:
                return await channel.unary_unary(PATH)(b"", timeout=5)
            except grpc.aio.AioRpcError as error:
                return await way(error, context)

        return handler_of("unary_unary", "async", ask)

    plain = grpc.aio.server()
    low = await host(handler_of("unary_unary", "async", refuse), server=plain)
    config = ChannelConfig(idempotent=(PATH,))
    async with AsyncExitStack() as stack:

        async def to(hosted: Hosted) -> lbclient.Channel:
            channel = lbclient.insecure_channel(hosted.address, config=config)
            await earn(channel, 3)
            return await stack.enter_async_context(channel)

        middle = await host(passing("middle", await to(low), aborts))
        top = await host(passing("top", await to(middle), escapes))
        client = await to(top)
        with pytest.raises(grpc.aio.AioRpcError, match="too much") as caught:
            await client.unary_unary(PATH)(b"", timeout=5)
        assert client.statistics().attempts[Verdict.REJECTED.value] == 1
    assert seen == ["top", "middle", "low", "low", "low"]
    assert told(caught.value) == NOT_AGAIN


# --- deadlines ----------------------------------------------------------------------


async def left(context: Any) -> bytes:
    return str(context.time_remaining()).encode()


@pytest.mark.parametrize(("arity", "kind"), KINDS)
async def test_a_deadline_goes_down_if_that_is_switched_on(
    host: Host, pool: ThreadPoolExecutor, arity: str, kind: str
) -> None:
    below = await host(handler_of(arity, "async", left))
    for is_on, own, most in (
        (True, None, 40.0),
        (True, 5.0, 5.0),
        (True, 80.0, 40.0),  # it does not outlive the request
        (False, None, None),
    ):
        config = ChannelConfig(propagate_deadline=is_on)
        async with lbclient.insecure_channel(below.address, config=config) as channel:

            async def ask(_context: Any, channel: Any = channel, own: Any = own) -> Any:
                said = await end_of(begin(channel, arity, timeout=own), arity)
                return said[0] if isinstance(said, list) else said

            handler = handler_of(arity, kind, ask)
            above = await host(handler, migration_thread_pool=pool)
            async with grpc.aio.insecure_channel(above.address) as client:
                said = await end_of(begin(client, arity, timeout=40), arity)
                seconds = (said[0] if isinstance(said, list) else said).decode()
                if most is None:
                    assert seconds == "None"
                else:
                    # On the wire a timeout is rounded up by up to 1 %, twice here.
                    assert 0.0 < float(seconds) <= 1.03 * most
                    assert own == 5.0 or float(seconds) > 5.0
                # A request without a deadline has none to hand down.
                said = await end_of(begin(client, arity), arity)
                seconds = (said[0] if isinstance(said, list) else said).decode()
                assert (seconds == "None") is (own is None)


@pytest.mark.parametrize("arity", ARITIES)
async def test_what_outlives_the_deadline_of_its_request_is_not_sent(
    host: Host, arity: str
) -> None:
    """Unless it is begun in a context of its own."""
    asked: list[str] = []

    async def note(context: Any) -> bytes:
        asked.append("here")
        return b"done"

    below = await host(handler_of(arity, "async", note))
    config = ChannelConfig(propagate_deadline=True)
    async with lbclient.insecure_channel(below.address, config=config) as channel:
        await channel.channel_ready()
        tasks, events = [], (asyncio.Event(), asyncio.Event())

        async def after(event: asyncio.Event) -> Any:
            await event.wait()
            return await end_of(begin(channel, arity), arity)

        async def ask(_context: Any) -> Any:
            tasks.append(asyncio.create_task(after(events[0])))
            tasks.append(asyncio.create_task(after(events[1]), context=Context()))
            await asyncio.Event().wait()

        error = await failure_at_deadline(
            await host(handler_of("unary_unary", "async", ask))
        )
        assert error.code() is StatusCode.DEADLINE_EXCEEDED
        events[0].set()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await tasks[0]
        assert caught.value.code() is StatusCode.DEADLINE_EXCEEDED
        assert asked == []
        events[1].set()
        await tasks[1]
        assert asked == ["here"]


async def failure_at_deadline(hosted: Hosted) -> grpc.aio.AioRpcError:
    method: Any = hosted.channel.unary_unary(PATH)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await method(b"", timeout=0.2)
    # The server's clock may be a little behind.
    await eventually(lambda: hosted.server.statistics().active == 0)
    return caught.value


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_nothing_is_kept_of_a_request_that_is_over(
    host: Host, pool: ThreadPoolExecutor, kind: str
) -> None:
    async def ask(context: Any) -> bytes:
        return b"done"

    handler = handler_of("unary_unary", kind, ask)
    _, address, _ = await host(handler, migration_thread_pool=pool)
    gc.collect()
    before = len(living())
    gc.disable()  # what is left then is no garbage but kept, or kept by itself
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            method: Any = channel.unary_unary(PATH)
            for _ in range(5):
                await method(b"", timeout=5)
        await eventually(lambda: len(living()) <= before)
    finally:
        gc.enable()


def living() -> list[object]:
    kinds = (AsyncContext, ThreadContext, ContextlessRequest)
    return [thing for thing in gc.get_objects() if isinstance(thing, kinds)]
