"""What waits inside of gRPC is a load; time, and what gRPC does, are numbers."""

import asyncio

import pytest

from lbclient.server.backlog import FEW, PERIOD, STEADY, UNIT, Backlog
from lbclient.server.run_queue import RunQueue

SAMPLE = 0.1  # seconds
MOST = 1000
TURN = 0.0005  # seconds


class Task:
    """A server that takes in one request in every `cost` seconds, if any waits."""

    def __init__(self, cost: float) -> None:
        self.free_at = self.cpu = 0.0
        self.queue = RunQueue(self.clock)
        self.backlog = Backlog(self.queue, self.clock, lambda: self.cpu)
        self.backlog.count_by(self.read, MOST)
        self.cost = cost
        self.began = self.looks = 0
        self.lost = 0  # that the core has ended
        self.is_refusing = False

    def clock(self) -> float:
        return asyncio.get_running_loop().time()

    def read(self) -> int | None:
        self.looks += 1
        return self.began

    @property
    def waiting(self) -> int:
        return self.began - self.lost - self.queue.arrived

    async def run(self, seconds: float, rate: float) -> None:
        """So many come, a second."""
        now = self.clock()
        until, sample_at, came = now + seconds, now + SAMPLE, 0.0
        while (now := self.clock()) < until:
            came += rate * TURN
            self.began, came = self.began + int(came), came % 1
            self.lost += max(0, self.waiting - MOST)
            if self.waiting and now >= self.free_at:
                self.queue.arrived += 1
                self.cpu += self.cost
                self.backlog.refused += self.is_refusing
                self.free_at = now + self.cost - TURN / 2
            if now >= sample_at:
                self.backlog.sample(now)
                sample_at += SAMPLE
            await asyncio.sleep(TURN)

    @property
    def load(self) -> float:
        return self.backlog.load(self.clock())


async def test_what_waits_counts_by_the_time_that_it_takes() -> None:
    task = Task(cost=0.001)
    await task.run(0.5, rate=1500)
    assert task.waiting == pytest.approx(250, abs=5)
    assert task.load == pytest.approx(task.waiting * 0.001 / UNIT, rel=0.2)


async def test_no_load_without_a_queue() -> None:
    task = Task(cost=0.001)
    await task.run(1.0, rate=500)
    assert task.load < 1.0


async def test_what_the_core_ends_of_short_requests_is_told_while_it_goes_on() -> None:
    task = Task(cost=0.0005)
    await task.run(5.0, rate=6000)
    assert task.lost > 10_000
    assert task.lost - 8000 < task.backlog.ended <= task.lost
    assert task.looks <= 6, "one a second"


async def test_an_idle_task_is_not_looked_at() -> None:
    task = Task(cost=0.001)
    await task.run(1.0, rate=0.9 * FEW / SAMPLE)
    assert task.looks == 0


async def test_looks_are_bounded_in_a_flood() -> None:
    task = Task(cost=0.001)
    await task.run(1.0, rate=50_000)
    assert task.looks <= 1.0 / PERIOD + 1


async def test_the_load_is_gone_with_the_queue() -> None:
    task = Task(cost=0.001)
    await task.run(0.5, rate=1500)
    await task.run(0.7, rate=300)
    assert task.waiting <= 1
    assert task.load < 1.0


async def test_calls_that_the_core_has_ended_do_not_wait() -> None:
    task = Task(cost=0.001)
    await task.run(0.5, rate=10_000)
    assert task.lost > 3000
    assert task.load <= MOST * 0.001 / UNIT * 1.2
    seen = task.backlog.ended
    assert seen == pytest.approx(task.lost, abs=MOST)
    await task.run(2.0, rate=100)
    assert task.waiting <= 1
    assert task.load == 0.0
    assert seen <= task.backlog.ended == pytest.approx(task.lost, abs=FEW)


@pytest.mark.parametrize("rate", [0.0, 500.0])
async def test_a_number_that_never_changes_is_no_queue(rate: float) -> None:
    """Whatever we count wrong must not refuse anybody for ever."""
    task = Task(cost=0.001)
    await task.run(0.5, rate=500)
    task.began += 500
    task.lost += 500
    await task.run(SAMPLE + 1.5 * PERIOD, rate=500)
    assert task.load > 5.0
    await task.run(1.5 * STEADY * PERIOD, rate=rate)
    assert task.load < 1.0


async def test_no_more_is_refused_than_leaves_something_to_serve() -> None:
    task = Task(cost=0.001)
    await task.run(0.5, rate=10_000)
    before = task.load
    task.is_refusing = True
    await task.run(0.5, rate=10_000)
    assert task.load < before / 2
    task.is_refusing = False
    await task.run(1.0, rate=10_000)
    assert task.load > before / 2


async def test_requests_that_are_as_cheap_as_refusals_are_left_alone() -> None:
    task = Task(cost=0.001)
    await task.run(0.5, rate=5000)
    assert task.load > 10.0
    cheap = Task(cost=0.0005)
    await cheap.run(0.5, rate=5000)
    assert cheap.waiting == pytest.approx(task.waiting, abs=1)
    assert cheap.load == 0.0


async def test_without_a_count_there_is_no_load() -> None:
    def unknown() -> int | None:
        return None

    task = Task(cost=0.001)
    task.backlog.count_by(unknown, MOST)
    await task.run(0.5, rate=10_000)
    assert task.load == 0.0
