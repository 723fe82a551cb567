"""Who hears of a call's end, in which order, and what errors carry."""

import asyncio
import copy
import gc
import pickle
import weakref
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.conformance.both import (
    Side,
    answered,
    attempted,
    each_kind,
    each_stream,
    end_of,
    on_both,
    outcome,
)
from tests.waiting import eventually

ENDS = ["", "abort", "cancelled"]


async def ending(side: Side, kind: str, end: str) -> Any:
    """A call that will end well, badly or by cancellation."""
    if not end:
        return await side.begin(kind)
    return await side.begin(
        kind, sending="write", do="hang" if end == "cancelled" else end
    )


async def ended(side: Side, call: Any, kind: str, end: str) -> Any:
    if end == "cancelled":
        await side.at_work()
        call.cancel()
    return await answered(call, kind)


@on_both
@each_kind
async def test_a_callback_hears_of_the_end(side: Side, kind: str) -> Any:
    heard: list[Any] = []
    for end in ENDS:
        call = await ending(side, kind, end)
        call.add_done_callback(
            lambda it, call=call: heard.append((it is call, it.done(), it.cancelled()))
        )
        heard.append("not yet")
        heard.append(await ended(side, call, kind, end))
    return heard


@on_both
@each_kind
async def test_a_late_callback_hears_at_once(side: Side, kind: str) -> Any:
    heard: list[Any] = []
    for end in ENDS:
        call = await ending(side, kind, end)
        await ended(side, call, kind, end)
        call.add_done_callback(lambda it, call=call: heard.append(it is call))
        heard.append(end)
    return heard


@on_both
@each_kind
async def test_callbacks_are_called_in_order_and_before_who_waits(
    side: Side, kind: str
) -> Any:
    call = await side.begin(kind, do="nap")
    order: list[Any] = []
    for number in range(3):
        call.add_done_callback(lambda _, number=number: order.append(number))

    async def wait() -> None:
        await call.code()
        order.append("code")

    waiting = asyncio.create_task(wait())
    await answered(call, kind)
    order.append("answer")
    await waiting
    return order[:3], sorted(order[3:])


def step(coroutine: Any) -> Any:
    """What a coroutine returns at once."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    coroutine.close()
    return "suspends"


@on_both
@each_kind
async def test_the_status_is_known_in_a_callback(side: Side, kind: str) -> Any:
    heard: list[Any] = []

    def hear(call: Any) -> None:
        asked = (call.code(), call.details(), call.trailing_metadata())
        heard.extend(map(step, asked))

    for end in ENDS:
        call = await ending(side, kind, end)
        call.add_done_callback(hear)
        await ended(side, call, kind, end)
    return heard


@on_both
@each_kind
async def test_a_callback_that_is_given_twice_is_called_twice(
    side: Side, kind: str
) -> Any:
    call = await side.begin(kind)
    heard: list[Any] = []

    def hear(_: Any) -> None:
        heard.append(1)

    call.add_done_callback(hear)
    call.add_done_callback(hear)
    await answered(call, kind)
    return heard


@on_both
@each_kind
async def test_a_callback_that_adds_a_callback(side: Side, kind: str) -> Any:
    call = await side.begin(kind)
    heard: list[Any] = []
    call.add_done_callback(
        lambda it: it.add_done_callback(lambda _: heard.append("inner"))
    )
    await answered(call, kind)
    return heard


def failing(_: Any) -> None:
    raise KeyError("in a callback")


@on_both
@each_kind
async def test_a_callback_that_raises_spoils_nothing_but_the_answer(
    side: Side, kind: str, caplog: pytest.LogCaptureFixture
) -> Any:
    """What comes of the answer is in the next case; the status is not touched."""
    call = await side.begin(kind)
    call.add_done_callback(failing)
    await answered(call, kind)
    return call.done(), await call.code()


async def _answer_of_one_whose_callback_raises(side: Side, kind: str) -> Any:
    call = await side.begin(kind)
    call.add_done_callback(failing)
    return await answered(call, kind)


@on_both
async def test_a_unary_call_whose_callback_raises_has_its_answer(side: Side) -> Any:
    return await _answer_of_one_whose_callback_raises(side, "unary_unary")


@on_both
async def test_a_stream_of_requests_whose_callback_raises_has_its_answer(
    side: Side,
) -> Any:
    return await _answer_of_one_whose_callback_raises(side, "stream_unary")


@on_both
@each_stream
async def test_a_stream_whose_callback_raises_has_its_answers(
    side: Side, kind: str
) -> Any:
    return await _answer_of_one_whose_callback_raises(side, kind)


async def _heard_after_one_that_raises(side: Side, kind: str) -> Any:
    call = await side.begin(kind)
    heard: list[Any] = []
    call.add_done_callback(failing)
    call.add_done_callback(lambda _: heard.append("called"))
    await answered(call, kind)
    return heard


@on_both
async def test_the_callback_after_one_that_raises_is_called(side: Side) -> Any:
    return await _heard_after_one_that_raises(side, "unary_unary")


@on_both
@pytest.mark.parametrize("kind", ["unary_stream", "stream_unary", "stream_stream"])
async def test_the_callback_of_a_stream_after_one_that_raises_is_called(
    side: Side, kind: str
) -> Any:
    return await _heard_after_one_that_raises(side, kind)


@on_both
@each_kind
async def test_a_late_callback_that_raises(
    side: Side, kind: str, caplog: pytest.LogCaptureFixture
) -> Any:
    call = await side.begin(kind)
    await answered(call, kind)
    return type(attempted(call.add_done_callback, failing)).__name__


@on_both
@pytest.mark.parametrize("kind", ["unary_unary", "stream_unary"])
async def test_a_call_may_be_awaited_again(side: Side, kind: str) -> Any:
    seen = []
    for end in ENDS:
        call = await ending(side, kind, end)
        seen += [
            await ended(side, call, kind, end),
            *[await outcome(call) for _ in range(2)],
        ]
    return seen


@on_both
@pytest.mark.parametrize("kind", ["unary_unary", "stream_unary"])
@pytest.mark.parametrize("end", ENDS)
async def test_many_await_one_call(side: Side, kind: str, end: str) -> Any:
    call = await ending(side, kind, end)

    async def wait() -> Any:
        return await outcome(call)

    waiting = [asyncio.create_task(wait()) for _ in range(4)]
    await asyncio.sleep(0)
    first = await ended(side, call, kind, end)
    return first, await asyncio.gather(*waiting)


@on_both
@pytest.mark.parametrize("kind", ["unary_unary", "stream_unary"])
async def test_one_of_many_who_await_is_cancelled(side: Side, kind: str) -> Any:
    call = await side.begin(kind, do="hold")

    async def wait() -> Any:
        return await outcome(call)

    waiting = [asyncio.create_task(wait()) for _ in range(3)]
    await side.at_work("holds")
    waiting[0].cancel()
    side.script.let_go.set()
    seen = await asyncio.gather(*waiting)
    return seen, call.cancelled()


@on_both
@each_kind
async def test_many_ask_for_the_end(side: Side, kind: str) -> Any:
    call = await side.begin(kind, do="initial trailing nap")
    asked = asyncio.gather(
        *(call.code() for _ in range(3)),
        *(call.trailing_metadata() for _ in range(2)),
        *(call.initial_metadata() for _ in range(2)),
    )
    await answered(call, kind)
    return await asked


def is_gone(kept: "weakref.ref[Any]") -> bool:
    gc.collect(1)
    return kept() is None


@on_both
@each_kind
async def test_a_call_that_fails_unheard_makes_no_noise(side: Side, kind: str) -> Any:
    noise: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: noise.append(context["message"])
    )
    call = await side.begin(kind, sending="write", do="abort")
    over: list[bool] = []
    call.add_done_callback(lambda _: over.append(True))
    await eventually(lambda: over)
    kept = weakref.ref(call)
    del call
    await eventually(lambda: is_gone(kept))
    return noise


@on_both
@each_kind
async def test_a_call_to_nobody_fails_unheard_without_noise(
    side: Side, kind: str
) -> Any:
    noise: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: noise.append(context["message"])
    )
    channel = side.insecure("127.0.0.1:1")
    call = await side.begin(kind, sending="write", on=channel)
    over: list[bool] = []
    call.add_done_callback(lambda _: over.append(True))
    await eventually(lambda: over)
    kept = weakref.ref(call)
    del call
    await eventually(lambda: is_gone(kept))
    return noise


@on_both
@each_kind
@pytest.mark.parametrize("where", ["at the server", "before it"])
async def test_an_error_can_be_copied(side: Side, kind: str, where: str) -> Any:
    channel = side.insecure("127.0.0.1:1") if where == "before it" else None
    call = await side.begin(kind, sending="write", do="trailing abort", on=channel)
    (error,) = await answered(call, kind)
    pickled = pickle.loads(pickle.dumps(error))
    return [
        [
            type(again) is type(error),
            again.code() is error.code(),
            again.details() == error.details(),
            again.trailing_metadata() == error.trailing_metadata(),
            str(again) == str(error),
        ]
        for again in (pickled, copy.copy(error), copy.deepcopy(error))
    ]


@on_both
@each_kind
async def test_an_error_says_what_its_caller_was_handling(side: Side, kind: str) -> Any:
    """As every exception does; a traceback shows both."""
    call = await side.begin(kind, sending="write", do="trailing abort")
    try:
        raise LookupError("before")
    except LookupError as before:
        (error,) = await answered(call, kind)
        return error.__context__ is before, error.__suppress_context__


@on_both
@each_kind
async def test_an_error_is_caught_by_either_name(side: Side, kind: str) -> Any:
    call = await side.begin(kind, sending="write", do="abort")
    (error,) = await answered(call, kind)
    classes = (grpc.RpcError, grpc.aio.AioRpcError, grpc.Call, grpc.Future)
    return [isinstance(error, name) for name in classes], str(error).split("\n")[:3]


@on_both
@each_kind
async def test_a_call_is_equal_to_itself_alone(side: Side, kind: str) -> Any:
    one, two = [await side.begin(kind) for _ in range(2)]
    seen = one == one, one == two, len({one, two, one})
    return seen, await answered(one, kind), await answered(two, kind)


@on_both
@each_kind
async def test_a_call_shows_what_it_is(side: Side, kind: str) -> Any:
    call = await side.begin(kind, sending="write", do="abort")
    await call.code()
    return (await end_of(call))["repr"], str(call) == repr(call)
