"""How a stream that moves by itself ends, and what can be one."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import lbclient
from lbclient import ConfigError
from lbclient.client.calls.resumed import ResumedStream


class Streamed:
    """A stream of the messages after `last`, two of them, which then waits, as a call
    of grpc.aio."""

    def __init__(self, last: int) -> None:
        self.number, self.end = last, last + 2
        self.is_cancelled = False
        self._waiting: asyncio.Future[int] | None = None

    def cancel(self) -> bool:
        self.is_cancelled = True
        if self._waiting is not None:
            self._waiting.cancel()
        return True

    def __aiter__(self) -> "Streamed":
        return self

    async def __anext__(self) -> int:
        if self.is_cancelled:
            raise asyncio.CancelledError
        if self.number == self.end:
            self._waiting = asyncio.get_running_loop().create_future()
            return await self._waiting
        self.number += 1
        return self.number


def resumed(opened: list[Streamed]) -> ResumedStream[int]:
    def open_after(last: int | None) -> Streamed:
        opened.append(Streamed(last or 0))
        return opened[-1]

    return lbclient.resumed(open_after)


async def is_over(stream: ResumedStream[int]) -> bool:
    try:
        await asyncio.wait_for(anext(stream), 10)
    except asyncio.CancelledError:
        return True
    return False


@pytest.mark.parametrize("is_asked_first", [True, False])
async def test_a_stream_that_is_cancelled_does_not_move(is_asked_first: bool) -> None:
    opened: list[Streamed] = []
    stream = resumed(opened)
    assert await anext(stream) == 1
    if is_asked_first:
        stream.move()
    stream.cancel()
    if not is_asked_first:
        stream.move()
    assert await is_over(stream)
    assert await is_over(stream)
    assert [one.is_cancelled for one in opened] == [True]


async def test_a_stream_that_waits_is_cancelled_though_it_was_to_move() -> None:
    opened: list[Streamed] = []
    stream = resumed(opened)
    assert [await anext(stream), await anext(stream)] == [1, 2]
    reading = asyncio.ensure_future(is_over(stream))
    await asyncio.sleep(0)
    stream.move()
    stream.cancel()
    assert await reading
    assert [one.is_cancelled for one in opened] == [True]


async def test_a_stream_that_is_cancelled_before_its_first_message_is_not_opened() -> (
    None
):
    opened: list[Streamed] = []
    stream = resumed(opened)
    stream.cancel()
    assert await is_over(stream)
    assert opened == []


async def test_a_stream_that_could_not_be_opened_again_is_over() -> None:
    opened: list[Streamed] = []

    def open_after(last: int | None) -> Streamed:
        if opened:
            raise ValueError("no more")
        opened.append(Streamed(0))
        return opened[-1]

    stream = lbclient.resumed(open_after)
    assert await anext(stream) == 1
    stream.move()
    with pytest.raises(ValueError, match="no more"):
        await anext(stream)
    stream.move()
    for _ in range(2):
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
    assert stream.moved == 0


async def test_a_stream_that_has_ended_does_not_move() -> None:
    opened: list[Streamed] = []
    stream = resumed(opened)
    assert await anext(stream) == 1
    opened[0].cancel()
    assert await is_over(stream)
    stream.move()
    assert await is_over(stream)
    assert len(opened) == 1


async def numbers(last: int | None) -> AsyncIterator[int]:
    yield 1


def nothing(last: int | None) -> None: ...


@pytest.mark.parametrize("open_after", [numbers, nothing])
async def test_what_is_no_call_of_a_stub_is_refused_as_it_is_opened(
    open_after: Any,
) -> None:
    stream: Any = lbclient.resumed(open_after)
    with pytest.raises(ConfigError, match=r"open_after = .*: want .* a stub"):
        await anext(stream)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
