"""The requests of a stream, for one attempt after another."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from lbclient.client.calls.request_stream import KEPT, Requests


def plain(count: int) -> Iterator[int]:
    yield from range(count)


async def asynchronous(count: int) -> AsyncIterator[int]:
    for number in range(count):
        await asyncio.sleep(0)
        yield number


def begin(requests: Requests) -> Any:
    """One more attempt iterates over them, as grpc.aio does."""
    attempt = requests.attempt()
    return aiter(attempt) if hasattr(attempt, "__aiter__") else attempt


async def take(attempt: Any, most: int) -> list[int]:
    taken: list[int] = []
    if hasattr(attempt, "__anext__"):
        while len(taken) < most:
            try:
                taken.append(await anext(attempt))
            except StopAsyncIteration:
                break
    else:
        for _, number in zip(range(most), attempt, strict=False):
            taken.append(number)
    return taken


@pytest.mark.parametrize("source", [plain, asynchronous])
async def test_a_second_attempt_gets_all_from_the_first_on(source: Any) -> None:
    requests = Requests(source(5))
    assert await take(begin(requests), 2) == [0, 1]
    assert requests.are_repeatable
    assert await take(begin(requests), 9) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("source", [plain, asynchronous])
async def test_beyond_the_limit_there_is_no_second_attempt(source: Any) -> None:
    requests = Requests(source(KEPT + 5))
    attempt = begin(requests)
    assert await take(attempt, KEPT) == list(range(KEPT))
    assert requests.are_repeatable
    assert await take(attempt, 9) == list(range(KEPT, KEPT + 5))
    assert not requests.are_repeatable


async def test_what_a_former_attempt_waits_for_goes_to_the_next() -> None:
    gate = asyncio.Event()

    async def gated() -> AsyncIterator[int]:
        yield 0
        await gate.wait()
        yield 1

    requests = Requests(gated())
    former = asyncio.ensure_future(take(begin(requests), 2))
    await asyncio.sleep(0)
    later = asyncio.ensure_future(take(begin(requests), 9))
    await asyncio.sleep(0)
    gate.set()
    assert await later == [0, 1]
    assert await former == [0, 1]


async def test_a_call_that_is_over_keeps_no_request() -> None:
    requests = Requests(plain(5))
    attempt = begin(requests)
    assert await take(attempt, 2) == [0, 1]
    requests.drop()
    assert await take(attempt, 9) == []
    assert await take(begin(requests), 9) == []


def test_what_is_no_iterable_is_handed_on() -> None:
    assert Requests(7).attempt() == 7  # type: ignore[arg-type]
