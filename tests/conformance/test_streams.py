"""Streams: the two ways to read and to write, mixed, half closed, broken off."""

import asyncio
import gc
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.conformance.both import (
    PARTS,
    Side,
    answered,
    attempted,
    comes_true,
    each_kind,
    each_sender,
    each_stream,
    end_of,
    on_both,
    outcome,
    responses,
)
from tests.conformance.script import path


@on_both
@each_stream
async def test_a_stream_ends_once_and_for_all(side: Side, kind: str) -> Any:
    call = await side.begin(kind)
    first = await responses(call, "read")
    return first, [await call.read() for _ in range(3)]


@on_both
@each_stream
async def test_a_failed_stream_fails_at_every_read(side: Side, kind: str) -> Any:
    call = await side.begin(kind, sending="write", do="abort")
    return [await outcome(call.read()) for _ in range(3)]


@on_both
@each_stream
async def test_a_stream_is_iterated_once(side: Side, kind: str) -> Any:
    call = await side.begin(kind)
    first = await responses(call)
    return first, await responses(call)


@on_both
@each_stream
async def test_an_iteration_is_resumed_by_another_loop(side: Side, kind: str) -> Any:
    call = await side.begin(kind)
    async for response in call:
        first = response
        break
    return first, await responses(call)


@on_both
@each_stream
async def test_a_call_has_one_iterator(side: Side, kind: str) -> Any:
    call = await side.begin(kind)
    one, two = aiter(call), aiter(call)
    return [await anext(one), await anext(two), await anext(one)], one is two


@on_both
@each_stream
async def test_only_one_task_at_a_time_may_iterate(side: Side, kind: str) -> Any:
    call = await side.begin(kind, sending="write", do="initial hang")
    await call.initial_metadata()
    one = asyncio.create_task(anext(aiter(call)))
    await asyncio.sleep(0)
    second = await outcome(anext(aiter(call)))
    call.cancel()
    return second, await outcome(one)


@on_both
@each_stream
async def test_a_reader_may_not_iterate(side: Side, kind: str) -> Any:
    call = await side.begin(kind)
    first = await call.read()
    return first, attempted(aiter, call), await responses(call, "read")


@on_both
@each_stream
async def test_who_iterates_may_not_read(side: Side, kind: str) -> Any:
    call = await side.begin(kind)
    first = await anext(aiter(call))
    return first, await outcome(call.read()), await responses(call)


@on_both
@each_stream
async def test_who_may_read_is_settled_before_there_is_a_connection(
    side: Side, kind: str
) -> Any:
    call = await side.begin(kind)
    iterator = aiter(call)
    return await outcome(call.read()), [response async for response in iterator]


@on_both
@each_stream
async def test_who_may_iterate_is_settled_before_there_is_a_connection(
    side: Side, kind: str
) -> Any:
    call = await side.begin(kind)
    reading = asyncio.create_task(call.read())
    await asyncio.sleep(0)
    return attempted(aiter, call), await reading


@on_both
@each_sender
async def test_who_gave_an_iterator_may_not_write(side: Side, kind: str) -> Any:
    call = await side.begin(kind)
    refused = [await outcome(call.write(b"x")), await outcome(call.done_writing())]
    return refused, await answered(call, kind)


@on_both
@each_sender
async def test_who_gave_an_iterator_may_not_write_afterwards(
    side: Side, kind: str
) -> Any:
    call = await side.begin(kind)
    await answered(call, kind)
    return await outcome(call.write(b"x")), await outcome(call.done_writing())


@on_both
@each_sender
async def test_a_half_closed_call_takes_no_more(side: Side, kind: str) -> Any:
    call = await side.begin(kind, sending="write")
    await call.write(b"a")
    await call.done_writing()
    refused = await outcome(call.write(b"x"))
    again = await outcome(call.done_writing())
    return refused, again, await answered(call, kind), await end_of(call)


@on_both
@each_sender
async def test_a_call_that_is_over_takes_no_more(side: Side, kind: str) -> Any:
    call = await side.begin(kind, sending="write", do="abort")
    await call.code()
    return await outcome(call.write(b"x")), await outcome(call.done_writing())


@on_both
async def test_questions_and_answers_take_turns(side: Side) -> Any:
    call = await side.begin("stream_stream", sending="write")
    seen = []
    for part in PARTS:
        await call.write(part)
        seen.append(await call.read())
    await call.done_writing()
    return seen, await call.read(), await call.code()


@on_both
async def test_one_task_writes_while_another_reads(side: Side) -> Any:
    call = await side.begin("stream_stream", sending="write")

    async def write() -> None:
        for number in range(50):
            await call.write(str(number).encode())
        await call.done_writing()

    writing = asyncio.create_task(write())
    seen = await responses(call)
    await writing
    return seen, await end_of(call)


@on_both
@each_sender
async def test_a_slow_source_of_requests_is_waited_for(side: Side, kind: str) -> Any:
    async def slow() -> Any:
        for part in PARTS:
            await asyncio.sleep(0.01)
            yield part

    method: Any = getattr(await side.channel(), kind)(path(kind))
    return await answered(method(slow()), kind)


@on_both
@each_sender
async def test_anything_that_can_be_iterated_is_sent(side: Side, kind: str) -> Any:
    method: Any = getattr(await side.channel(), kind)(path(kind))
    forms: list[Any] = [[b"a", b"b"], (b"a", b"b"), {b"a"}, {b"a": 1}, b"", 7]
    calls = [method(form) for form in forms]
    return [(await answered(call, kind), call.cancelled()) for call in calls]


@on_both
@each_sender
async def test_requests_given_by_position_and_by_name_are_the_same(
    side: Side, kind: str
) -> Any:
    method: Any = getattr(await side.channel(), kind)(path(kind))
    metadata = (("do", "deadline"),)
    calls = [
        method([b"a"], 30, metadata, None, None, None),
        method(request_iterator=[b"a"], timeout=30, metadata=metadata),
    ]
    return [
        (await answered(call, kind), await call.trailing_metadata()) for call in calls
    ]


@on_both
@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream"])
async def test_options_of_a_unary_request_go_by_name(side: Side, kind: str) -> Any:
    method: Any = getattr(await side.channel(), kind)(path(kind))
    tried = [lambda: method(b"a", 30), method, lambda: method(b"a", colour="red")]
    return [type(attempted(attempt)).__name__ for attempt in tried]


@on_both
@pytest.mark.parametrize("kind", ["unary_unary", "stream_unary"])
async def test_a_call_with_one_answer_is_no_stream(side: Side, kind: str) -> Any:
    call = await side.begin(kind)
    names = ("read", "__aiter__", "__anext__")
    return [hasattr(call, name) for name in names], await call


@on_both
@each_stream
async def test_a_stream_cannot_be_awaited(side: Side, kind: str) -> Any:
    call = await side.begin(kind)
    return hasattr(call, "__await__"), await responses(call)


@on_both
@each_kind
async def test_a_call_is_of_the_class_that_its_kind_names(side: Side, kind: str) -> Any:
    call = await side.begin(kind)
    classes = (
        grpc.RpcContext,
        grpc.aio.Call,
        grpc.aio.UnaryUnaryCall,
        grpc.aio.UnaryStreamCall,
        grpc.aio.StreamUnaryCall,
        grpc.aio.StreamStreamCall,
    )
    is_of = [isinstance(call, kind_of_call) for kind_of_call in classes]
    return is_of, await answered(call, kind)


@on_both
@each_kind
async def test_a_connection_can_be_waited_for(side: Side, kind: str) -> Any:
    call = await side.begin(kind)
    await call.wait_for_connection()
    return await answered(call, kind)


@on_both
@each_kind
async def test_who_waits_for_a_connection_hears_of_an_error(
    side: Side, kind: str
) -> Any:
    channel = side.insecure("127.0.0.1:1")
    call = await side.begin(kind, sending="write", on=channel)
    seen = await outcome(call.wait_for_connection(), 5)
    return type(seen).__mro__[-4].__name__, seen.code(), await call.code()


@on_both
@each_stream
async def test_a_stream_that_is_dropped_half_read_is_released(
    side: Side, kind: str
) -> Any:
    call = await side.begin(kind, then="hang")
    async for _ in call:
        break
    del call
    gc.collect(1)
    return await comes_true(lambda: "released" in side.script.events, turns=40)


@on_both
@each_stream
async def test_a_stream_whose_iterator_is_kept_goes_on(side: Side, kind: str) -> Any:
    iterator = aiter(await side.begin(kind, then="nap"))
    seen = [await anext(iterator)]
    gc.collect(1)
    return seen + [response async for response in iterator]


@on_both
@each_kind
async def test_a_call_that_nobody_keeps_is_made(side: Side, kind: str) -> Any:
    """All of a unary answer; of a stream it is begun, if it is not over already."""
    call = await side.begin(kind, do="hold hang")
    if kind.endswith("stream"):
        call.add_done_callback(lambda _: None)
    await side.at_work("holds")
    del call
    gc.collect(1)
    side.script.let_go.set()
    begun = kind.endswith("stream") or await comes_true(
        lambda: "hangs" in side.script.events
    )
    return begun


@on_both
async def test_many_calls_at_once_are_all_answered(side: Side) -> Any:
    calls = [
        await side.begin(kind, [str(number).encode()])
        for number in range(25)
        for kind in ("unary_unary", "stream_unary")
    ]
    return await asyncio.gather(*calls)


@on_both
@each_stream
async def test_a_long_stream_arrives_whole(side: Side, kind: str) -> Any:
    parts = [str(number).encode() for number in range(300)]
    call = await side.begin(kind, parts)
    return await responses(call) == parts, await end_of(call)
