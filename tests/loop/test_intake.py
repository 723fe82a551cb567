"""What waits before anybody has looked at it; time, and gRPC's core, are ours."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from lbclient import wire
from lbclient.server.intake import FEW, LONGEST, MOST, STANDING, STEP, UNIT, Intake

NEW = "CRITICAL"


class Core:
    """Hands over requests, which are criticalities, as fast as it is asked."""

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

    def metadata(self, request: Any) -> list[tuple[str, str]]:
        return [(wire.CRITICALITY_KEY, request)] if isinstance(request, str) else []


class Task:
    def __init__(self) -> None:
        self.now = 100.0
        self.core = Core()
        self.intake = Intake(lambda: self.now)
        self.intake.take_from(self.core)
        self.intake.be_eager(1e9)

    async def take(self, times: int, every: float = 0.0) -> list[Any]:
        taken = []
        for _ in range(times):
            taken.append(await self.intake.next())
            self.now += every
        return taken

    async def stand(self) -> None:
        """One waits, as always for that long."""
        for _ in range(round(STANDING / STEP) + 1):
            self.core.come(NEW, NEW)
            await self.take(1 if self.intake else 2)
            self.now += STEP
            self.core.come(NEW)
            while len(self.intake) > 1:
                await self.take(1)


async def test_all_that_comes_is_taken_at_once_and_served_in_its_order() -> None:
    task = Task()
    task.core.come(*range(3 * FEW))
    assert await task.take(1) == [0]
    assert await task.take(1) == [1]
    await asyncio.sleep(0)
    assert not task.core.waiting
    assert len(task.intake) == 3 * FEW - 2
    assert await task.take(3 * FEW - 2) == list(range(2, 3 * FEW))


async def test_no_more_is_asked_for_than_came_at_once() -> None:
    task = Task()
    for _ in range(100):
        task.core.come(NEW)
        await task.take(1)
    assert len(task.core.asked) <= FEW
    task.core.come(*[NEW] * 10 * MOST)
    await task.take(10 * MOST)
    await asyncio.sleep(0)
    assert len(task.core.asked) <= MOST


async def test_where_handlers_are_quick_few_are_taken_at_once() -> None:
    """Beside hundreds that have begun their events would come late."""
    task = Task()
    task.intake.be_eager(0.0)  # for a second, long ago
    task.core.come(*range(10 * FEW))
    for number in range(9 * FEW):
        assert await task.take(1) == [number]
        assert len(task.intake) <= FEW


async def test_who_comes_while_nothing_waits_is_served_at_once() -> None:
    task = Task()
    taking = asyncio.ensure_future(task.take(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.core.come("CRITICAL")
    assert await taking == ["CRITICAL"]


async def test_what_waits_is_a_load_by_how_long_it_has() -> None:
    task = Task()
    assert task.intake.load(task.now) == 0.0
    task.core.come(*range(FEW))
    await task.take(1)
    assert task.intake.load(task.now) == 0.0
    assert task.intake.load(task.now + 10 * UNIT) == pytest.approx(10.0)
    assert task.intake.load(task.now + 1000 * UNIT) == FEW - 1  # requests


async def test_a_burst_is_served_however_long_it_waits() -> None:
    """As after a stall of the whole process."""
    task = Task()
    task.core.come(*["SHEDDABLE"] * 60)
    await task.take(1)
    task.now += 100 * LONGEST
    few = round(STANDING / STEP) - 2
    assert len(await task.take(few, STEP)) == few
    assert len(await task.take(59 - few)) == 59 - few
    assert task.intake.let_go == 0


async def test_of_a_queue_that_stands_the_old_and_unimportant_are_let_go() -> None:
    task = Task()
    await task.stand()
    task.core.come("SHEDDABLE", "CRITICAL", "SHEDDABLE", "CRITICAL_PLUS", "SHEDDABLE")
    before = task.intake.let_go
    task.now += 1.2 * LONGEST
    task.core.come("SHEDDABLE")  # which is fresh
    served = [NEW, "CRITICAL", "CRITICAL_PLUS", "SHEDDABLE"]  # one was there before
    assert await task.take(4) == served
    assert task.intake.let_go == before + 3


async def test_whatever_it_is_nobody_waits_for_ever() -> None:
    task = Task()
    await task.stand()
    task.core.come("CRITICAL_PLUS", "CRITICAL", "new")
    task.now += 10 * LONGEST
    assert await task.take(1) == ["new"]


async def test_the_last_one_is_never_let_go() -> None:
    """There is nothing better to do."""
    task = Task()
    await task.stand()
    task.now += 10 * LONGEST
    assert len(task.intake) == 1
    assert len(await task.take(1)) == 1


async def test_an_empty_queue_does_not_stand_any_more() -> None:
    task = Task()
    await task.stand()
    await task.take(len(task.intake))
    taking = asyncio.ensure_future(task.take(1))
    await asyncio.sleep(0)
    task.core.come(*["SHEDDABLE"] * 5)
    task.now += 10 * LONGEST
    assert await taking == ["SHEDDABLE"]
    assert len(await task.take(4)) == 4


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
