"""What is taken from gRPC's core, which is ours here."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from lbclient.server.intake import AHEAD, Intake


class Core:
    """Hands over requests as fast as it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Callable[[Any], None], Callable[[Any], None]]] = []
        self.waiting: list[Any] = []

    def ask(self, take: Callable[[Any], None], fail: Callable[[Any], None]) -> None:
        self.asked.append((take, fail))
        asyncio.get_running_loop().call_soon(self.hand_over)

    def come(self, *requests: Any) -> None:
        self.waiting.extend(requests)
        self.hand_over()

    def hand_over(self) -> None:
        while self.asked and self.waiting:
            take, _ = self.asked.pop(0)
            take(self.waiting.pop(0))

    def end(self) -> None:
        for _, fail in self.asked:
            fail(ConnectionError("no more"))


class Task:
    def __init__(self) -> None:
        self.core = Core()
        self.intake = Intake()
        self.intake.take_from(self.core)

    async def take(self, times: int) -> list[Any]:
        return [await self.intake.next() for _ in range(times)]


async def test_requests_are_served_in_their_order() -> None:
    task = Task()
    task.core.come(*range(10 * AHEAD))
    assert await task.take(10 * AHEAD) == list(range(10 * AHEAD))


async def test_few_are_taken_at_once() -> None:
    """Beside hundreds that have begun their events would come late."""
    task = Task()
    task.core.come(*range(10 * AHEAD))
    for number in range(9 * AHEAD):
        assert await task.take(1) == [number]
        assert len(task.intake) <= AHEAD
        assert len(task.core.asked) <= AHEAD


async def test_where_more_waits_than_is_asked_for_it_is_known() -> None:
    task = Task()
    assert not task.intake.was_behind()
    task.core.come(*range(10 * AHEAD))
    await task.take(9 * AHEAD)
    assert task.intake.was_behind()
    assert not task.intake.was_behind()  # since then


async def test_what_comes_one_by_one_leaves_none_behind() -> None:
    task = Task()
    for number in range(100):
        taking = asyncio.ensure_future(task.take(1))
        await asyncio.sleep(0)
        task.core.come(number)
        assert await taking == [number]
    task.intake.was_behind()  # at first all is asked for
    for number in range(100):
        taking = asyncio.ensure_future(task.take(1))
        await asyncio.sleep(0)
        task.core.come(number)
        await taking
    assert not task.intake.was_behind()


async def test_who_comes_while_nothing_waits_is_served_at_once() -> None:
    task = Task()
    taking = asyncio.ensure_future(task.take(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.core.come("CRITICAL")
    assert await taking == ["CRITICAL"]


async def test_the_end_of_the_core_is_the_end() -> None:
    task = Task()
    task.core.come(1, 2, 3)
    assert await task.take(1) == [1]
    task.intake.close()
    assert len(task.intake) == 0
    task.core.come(4)
    task.core.end()
    with pytest.raises(ConnectionError):
        await task.take(1)
    assert task.intake.let_go == 3


async def test_a_core_that_ends_later_than_the_queue_is_heard() -> None:
    """All that it was asked for came in between."""
    task = Task()
    taking = asyncio.ensure_future(task.take(1))
    await asyncio.sleep(0)
    task.intake.close()
    task.core.come(*range(len(task.core.asked)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.core.end()
    with pytest.raises(ConnectionError):
        await taking
