"""Handlers take turns where each has the loop for long; time is a number."""

import asyncio
from collections.abc import Callable

import pytest

from lbclient.server.run_queue import (
    CLEAR,
    FLOOD,
    SLICE,
    STALL,
    TOUCHY,
    UNIT,
    RunQueue,
)

LONG = SLICE / 2  # seconds; two of those, and arrivals are looked for


class Task:
    """What a server does with its queue. A look at the clock takes ten microseconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.queue = RunQueue(self.clock)
        self.began: list[int] = []
        self.tasks: list[asyncio.Task[None]] = []

    def clock(self) -> float:
        self.now += 1e-5
        return self.now

    def request(self, number: int, cost: float) -> None:
        self.queue.arrived += 1
        self.tasks.append(asyncio.ensure_future(self._serve(number, cost)))

    async def _serve(self, number: int, cost: float) -> None:
        turn = self.queue.enter(self.clock())
        if turn is not None:
            await turn
        self.began.append(number)
        self.now += cost

    async def close(self) -> None:
        """Two that are long make the queue look for arrivals."""
        self.request(-2, LONG)
        self.request(-1, LONG)
        await turns_until(lambda: self.began == [-2, -1])
        await asyncio.sleep(0)  # the turn is over

    async def end(self) -> None:
        await asyncio.gather(*self.tasks, return_exceptions=True)
        # A look that has begun goes on until nothing has come for a while.
        await turns_until(lambda: not self.queue.is_closed)
        await asyncio.sleep(0)


async def turns_until(condition: Callable[[], bool], turns: int = 10_000) -> None:
    for _ in range(turns):
        if condition():
            return
        await asyncio.sleep(0)
    pytest.fail("it never came true")


async def test_quick_handlers_never_wait() -> None:
    task = Task()
    for number in range(1000):
        task.request(number, SLICE / 10_000)
        assert len(task.queue) == 0
        await asyncio.sleep(0)
    await task.end()
    assert task.began == list(range(1000))


async def test_after_long_handlers_all_that_has_arrived_is_counted_first() -> None:
    task = Task()
    await task.close()
    for number in range(20):
        task.request(number, LONG)
        await asyncio.sleep(0)  # two turns each, as grpcio takes
        await asyncio.sleep(0)
    assert task.began == [-2, -1]
    assert len(task.queue) == 20
    await task.end()


async def test_nobody_passes_a_queue_that_has_just_been_closed() -> None:
    """By handlers that are just long enough, whose turns leave the next ones alone."""
    task = Task()
    for number in range(100):
        task.now += 2 * CLEAR
        task.request(number, 0.9 * TOUCHY)
        for _ in range(4):
            await asyncio.sleep(0)
        if task.queue.is_closed:
            break
        assert task.queue.clear_until > task.now
    assert task.queue.is_closed
    assert task.queue.clear_until < task.now
    await task.end()


async def test_those_who_wait_begin_one_by_one_in_their_order() -> None:
    task = Task()
    await task.close()
    for number in range(20):
        task.request(number, LONG)
    await turns_until(lambda: 5 in task.began)
    assert task.began == [-2, -1, *range(6)]
    await task.end()
    assert task.began == [-2, -1, *range(20)]


async def test_long_requests_count_one_each() -> None:
    task = Task()
    await task.close()
    for number in range(200):
        task.request(number, LONG)
    await turns_until(lambda: len(task.queue) == 100)
    assert task.queue.load(task.now, active=100) == pytest.approx(100, rel=0.01)
    await task.end()


async def test_a_crowd_of_quick_requests_is_no_load() -> None:
    """What waits then is less than what is done in a hundredth of a second."""
    task, cost = Task(), UNIT / 1000
    await task.close()
    for number in range(400):
        task.request(number, cost)
    await turns_until(lambda: len(task.queue) == 100)
    seen = task.queue.load(task.now, active=100)
    await task.end()
    lag = LONG / UNIT  # of the two long ones, which still counts a little
    assert seen < 1.0 + lag


async def test_whoever_gives_up_is_left_out() -> None:
    task = Task()
    await task.close()
    for number in range(3):
        task.request(number, LONG)
    await turns_until(lambda: len(task.queue) == 3)
    task.tasks[-2].cancel()
    await task.end()
    assert task.began == [-2, -1, 0, 2]


async def test_who_has_given_up_is_no_load() -> None:
    task = Task()
    await task.close()
    for number in range(100):
        task.request(number, LONG)
    await turns_until(lambda: len(task.queue) == 50)
    for gone in task.tasks[-30:]:
        gone.cancel()
    await turns_until(lambda: len(task.queue) <= 20)
    seen = task.queue.load(task.now, active=100)
    assert seen <= 20
    await task.end()
    assert len(task.queue) == 0


async def test_a_stall_is_not_followed_by_as_long_a_look_for_arrivals() -> None:
    task = Task()
    task.request(0, 100 * STALL)
    await turns_until(lambda: task.queue.is_closed)
    began_at = task.now
    while task.queue.is_closed:
        task.queue.arrived += 1
        task.now += 5e-5
        await asyncio.sleep(0)
    assert task.now - began_at <= 1.1 * FLOOD * STALL
    await task.end()


async def test_a_flood_to_refuse_leaves_some_time_to_those_let_in() -> None:
    """Requests arrive in each turn, and none of them gets as far as a handler."""
    task = Task()
    await task.close()
    for number in range(10):
        task.request(number, LONG)
    refusing = 0.0
    while len(task.began) < 12:
        task.queue.arrived += 1
        task.now += 5e-5
        refusing += 5e-5
        await asyncio.sleep(0)
    await task.end()
    assert refusing <= 1.2 * FLOOD * 12 * LONG


async def test_load_is_forgotten_where_nothing_comes() -> None:
    task = Task()
    for number in range(50):
        task.request(number, 3 * UNIT)
        await asyncio.sleep(0)
    await task.end()
    before = task.queue.load(task.now, active=50)
    assert before > 1.0
    assert task.queue.load(task.now + 10.0, active=50) < 0.01 * before
