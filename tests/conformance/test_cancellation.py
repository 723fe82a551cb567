"""Calls that are cancelled: by themselves, by who awaits them, by the server."""

import asyncio
import weakref
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.conformance.both import (
    NEVER,
    Side,
    answered,
    comes_true,
    each_kind,
    each_sender,
    each_stream,
    end_of,
    in_kind,
    on_both,
    outcome,
    receiving,
    responses,
)
from tests.waiting import eventually, stands_still

# Seconds for a wait to end that can end: not all do on a call that the server keeps.
LONG_ENOUGH = 0.01


async def hanging(side: Side, kind: str, **options: Any) -> Any:
    """A call that the server has begun, and will not answer."""
    call = await side.begin(kind, sending="write", do="initial hang", **options)
    if kind != "unary_unary":
        await call.initial_metadata()  # there it comes with the answer
    await side.at_work()
    return call


async def released(side: Side) -> bool:
    """Whether the server heard of the end."""
    return await comes_true(lambda: "released" in side.script.events)


@on_both
@each_kind
async def test_a_call_is_cancelled_at_once(side: Side, kind: str) -> Any:
    call = await side.begin(kind, sending="write")
    told = call.cancel(), call.cancel(), call.done(), call.cancelled()
    seen, end = await answered(call, kind), await end_of(call)
    del end["repr"]  # the next case
    return told, seen, end


@on_both
async def test_a_call_that_was_not_sent_shows_that(side: Side) -> Any:
    call = await side.begin("unary_unary")
    call.cancel()
    return in_kind(call)


@on_both
@each_kind
async def test_a_call_is_cancelled_while_the_server_works(side: Side, kind: str) -> Any:
    call = await hanging(side, kind)
    told = call.cancel(), call.cancel(), call.done(), call.cancelled()
    seen = told, await answered(call, kind), await end_of(call)
    return seen, await released(side)


@on_both
@each_kind
async def test_a_call_that_is_over_cannot_be_cancelled(side: Side, kind: str) -> Any:
    call = await side.begin(kind)
    seen = await answered(call, kind)
    return seen, call.cancel(), call.cancelled(), await call.code()


@on_both
@each_kind
async def test_the_servers_cancellation_is_an_error_not_a_cancellation(
    side: Side, kind: str
) -> Any:
    call = await side.begin(kind, sending="write", do="cancel")
    return await answered(call, kind), await end_of(call)


def waits(call: Any, kind: str) -> dict[str, Any]:
    """Every way to wait on a call, by name."""
    ways = {
        "initial_metadata": lambda: call.initial_metadata(),
        "trailing_metadata": lambda: call.trailing_metadata(),
        "code": lambda: call.code(),
        "details": lambda: call.details(),
        "debug_error_string": lambda: call.debug_error_string(),
        "wait_for_connection": lambda: call.wait_for_connection(),
        "answer": lambda: _answer(call),
    }
    if kind.endswith("stream"):
        ways |= {"read": lambda: call.read(), "next": lambda: anext(aiter(call))}
    return ways


async def _answer(call: Any) -> Any:
    if hasattr(call, "__await__"):
        return await call
    return [response async for response in call]


async def by_each_way(side: Side, kind: str, see: Any, **options: Any) -> Any:
    """What `see(call, way)` sees, of a call of its own for every way to wait."""
    seen = {}
    for name in waits(None, kind):
        side.script.events.clear()
        call = await side.begin(kind, sending="write", **options)
        seen[name] = await see(call, waits(call, kind)[name])
    return seen


@on_both
@each_kind
async def test_a_waiter_is_cancelled(side: Side, kind: str) -> Any:
    """Once the server is at work: does that cancel the call, too?"""

    async def see(call: Any, way: Any) -> Any:
        await side.at_work()
        waiter = asyncio.create_task(_await(way))
        await asyncio.wait([waiter], timeout=LONG_ENOUGH)
        was_done = waiter.done()
        waiter.cancel()
        seen = await outcome(waiter)
        after = call.done(), call.cancelled()
        call.cancel()
        return was_done, seen, after, await released(side)

    return await by_each_way(side, kind, see, do="hang")


async def _await(way: Any) -> Any:
    return await way()


@on_both
@each_kind
async def test_a_waiter_is_cancelled_at_once(side: Side, kind: str) -> Any:
    """Before the call can have been sent."""

    async def see(call: Any, way: Any) -> Any:
        waiter = asyncio.create_task(_await(way))
        await asyncio.sleep(0)
        waiter.cancel()
        seen = await outcome(waiter)
        await comes_true(call.done, turns=2)  # it passes on from task to task
        after = call.done(), call.cancelled()
        call.cancel()
        return seen, after

    return await by_each_way(side, kind, see, do="hang")


@on_both
@each_kind
async def test_a_waiter_sees_the_call_cancelled(side: Side, kind: str) -> Any:
    async def see(call: Any, way: Any) -> Any:
        await side.at_work()
        waiter = asyncio.create_task(outcome(way()))
        await asyncio.wait([waiter], timeout=LONG_ENOUGH)
        call.cancel()
        return await outcome(waiter, NEVER), await released(side)

    return await by_each_way(side, kind, see, do="hang")


@on_both
@each_kind
async def test_who_comes_late_sees_the_call_cancelled(side: Side, kind: str) -> Any:
    async def see(call: Any, way: Any) -> Any:
        call.cancel()
        return await outcome(way(), NEVER)

    seen = await by_each_way(side, kind, see)
    del seen["wait_for_connection"]  # the next case
    return seen


@on_both
@each_sender
async def test_a_cancelled_call_has_no_connection_to_wait_for(
    side: Side, kind: str
) -> Any:
    call = await side.begin(kind, sending="write")
    call.cancel()
    return await outcome(call.wait_for_connection(), NEVER)


@on_both
@each_kind
async def test_who_comes_late_sees_how_the_call_failed(side: Side, kind: str) -> Any:
    async def see(call: Any, way: Any) -> Any:
        await call.code()
        return await outcome(way(), NEVER)

    seen = await by_each_way(side, kind, see, do="trailing abort")
    return seen, len(seen.pop("debug_error_string")) > 0


@on_both
@each_sender
@pytest.mark.parametrize("moment", ["at once", "at work"])
async def test_a_write_is_cancelled(side: Side, kind: str, moment: str) -> Any:
    """The server does not read, so that the window fills up."""
    if moment == "at work":
        call = await hanging(side, kind)
    else:
        call = await side.begin(kind, sending="write", do="hang")
    sent: list[bool] = []
    writer = asyncio.create_task(_write_for_ever(call, sent))
    await asyncio.sleep(0)
    if moment == "at work":
        await stands_still(lambda: len(sent))  # the window is full
    writer.cancel()
    return await outcome(writer), call.done(), call.cancelled()


async def _write_for_ever(call: Any, sent: list[bool]) -> None:
    while True:
        await call.write(b"x" * 100_000)
        sent.append(True)


@on_both
@each_sender
async def test_a_cancelled_call_takes_no_more(side: Side, kind: str) -> Any:
    call = await side.begin(kind, sending="write")
    call.cancel()
    return await outcome(call.write(b"a")), await outcome(call.done_writing())


@on_both
@each_kind
async def test_a_timeout_of_asyncio_cancels_the_call(side: Side, kind: str) -> Any:
    call = await hanging(side, kind)
    try:
        async with asyncio.timeout(0.03):
            await _answer(call)
    except TimeoutError as error:
        seen = type(error).__name__
    return seen, await end_of(call), await released(side)


@on_both
@each_kind
async def test_wait_for_cancels_the_call(side: Side, kind: str) -> Any:
    call = await hanging(side, kind)
    try:
        await asyncio.wait_for(_answer(call), 0.03)
    except TimeoutError as error:
        seen = type(error).__name__
    return seen, call.cancelled(), await released(side)


@on_both
@each_kind
async def test_a_shield_keeps_the_call(side: Side, kind: str) -> Any:
    call = await side.begin(kind, do="nap")
    answer = asyncio.ensure_future(_answer(call))
    waiter = asyncio.create_task(_await(lambda: asyncio.shield(answer)))
    await asyncio.sleep(0)
    waiter.cancel()
    return await outcome(waiter), call.cancelled(), await answer, await call.code()


@on_both
@each_kind
async def test_gather_gives_answers_and_errors_in_order(side: Side, kind: str) -> Any:
    calls = [await side.begin(kind, sending="write", do=do) for do in ("abort", "fail")]
    calls += [await side.begin(kind) for _ in range(2)]
    return await asyncio.gather(*map(_answer, calls), return_exceptions=True)


@on_both
@each_kind
async def test_gather_that_is_cancelled_cancels_its_calls(side: Side, kind: str) -> Any:
    calls = [await side.begin(kind, sending="write", do="hang") for _ in range(3)]
    gathered = asyncio.gather(*map(_answer, calls))
    await side.at_work(calls=3)
    gathered.cancel()
    seen = await outcome(gathered)
    await asyncio.sleep(0)
    return seen, [call.cancelled() for call in calls]


@on_both
@each_kind
async def test_a_task_group_cancels_the_calls_of_its_others(
    side: Side, kind: str
) -> Any:
    hanging_call = await hanging(side, kind)
    failing = await side.begin(kind, sending="write", do="abort")
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_answer(hanging_call))
            group.create_task(_answer(failing))
    except* grpc.aio.AioRpcError as errors:
        seen = list(errors.exceptions)
    return seen, hanging_call.cancelled(), await released(side)


@on_both
@each_kind
async def test_a_task_that_is_cancelled_twice_is_cancelled(
    side: Side, kind: str
) -> Any:
    call = await hanging(side, kind)
    task = asyncio.create_task(_answer(call))
    await asyncio.sleep(0)
    return task.cancel(), task.cancel(), await outcome(task), call.cancelled()


@on_both
@each_stream
@pytest.mark.parametrize("receiving", ["read", "iterate"])
async def test_a_stream_is_cancelled_between_two_responses(
    side: Side, kind: str, receiving: str
) -> Any:
    call = await side.begin(kind, then="hang")
    first = await (call.read() if receiving == "read" else anext(aiter(call)))
    told = call.cancel(), call.cancelled()
    return first, told, await responses(call, receiving), await end_of(call)


@on_both
@each_stream
async def test_a_loop_is_left_and_the_call_cancelled(side: Side, kind: str) -> Any:
    call = await side.begin(kind, then="hang")
    async for response in call:
        first = response
        await side.at_work()  # else the handler ends before it hangs
        call.cancel()
        break
    return first, await end_of(call), await released(side)


@on_both
@each_sender
@pytest.mark.parametrize("form", ["generator", "async generator"])
async def test_requests_that_raise_cancel_the_call(
    side: Side, kind: str, form: str
) -> Any:
    def broken() -> Any:
        yield b"a"
        raise KeyError("no more")

    async def broken_async() -> Any:
        yield b"a"
        raise KeyError("no more")

    channel = await side.channel()
    method: Any = getattr(channel, kind)(f"/conformance.Script/{kind}")
    call = method(broken() if form == "generator" else broken_async())
    last = (await responses(call, receiving(kind)))[-1]
    return last, await call.code(), await call.details(), call.cancelled()


@on_both
@each_sender
async def test_an_endless_request_stream_is_closed_with_its_call(
    side: Side, kind: str
) -> Any:
    asked, closed = [], []

    async def endless() -> Any:
        try:
            while True:
                asked.append(True)
                yield b"a"
                await asyncio.sleep(0.005)
        finally:
            closed.append(True)

    channel = await side.channel()
    method: Any = getattr(channel, kind)(f"/conformance.Script/{kind}")
    call = method(endless())
    await eventually(lambda: len(asked) > 3)
    call.cancel()
    return await comes_true(lambda: closed), call.cancelled(), await call.code()


@on_both
@each_sender
async def test_a_call_that_is_over_does_not_keep_its_requests(
    side: Side, kind: str
) -> Any:
    class Requests:
        def __aiter__(self) -> Any:
            return self

        async def __anext__(self) -> bytes:
            raise StopAsyncIteration

    requests = Requests()
    kept = weakref.ref(requests)
    channel = await side.channel()
    method: Any = getattr(channel, kind)(f"/conformance.Script/{kind}")
    call = method(requests)
    del requests
    seen = await answered(call, kind)
    return seen, await comes_true(lambda: kept() is None, turns=100), call.done()


@on_both
@each_kind
async def test_a_call_can_be_cancelled_from_its_own_callback(
    side: Side, kind: str
) -> Any:
    told: list[Any] = []
    call = await side.begin(kind)
    call.add_done_callback(lambda done: told.append((done.cancel(), done.done())))
    return await answered(call, kind), told


@on_both
@pytest.mark.parametrize("code", [grpc.StatusCode.OK, grpc.StatusCode.CANCELLED])
@each_kind
async def test_code_may_be_asked_by_many_of_whom_one_gives_up(
    side: Side, kind: str, code: grpc.StatusCode
) -> Any:
    call = await side.begin(kind, sending="write", do="nap")
    asking = [asyncio.create_task(call.code()) for _ in range(3)]
    await asyncio.sleep(0)
    asking[0].cancel()
    if code is grpc.StatusCode.CANCELLED:
        call.cancel()
    elif not kind.startswith("unary"):
        await call.done_writing()
    end = asyncio.create_task(answered(call, kind))
    return await asyncio.gather(*map(outcome, asking)), await end
