"""An emulated processor: work takes time in proportion to cost, and all is accounted.

Processor sharing: with n jobs each advances at `speed * min(1, cores / n)`. The
account is exact however late the event loop wakes, because time is walked from one
completion to the next, not from one wake-up to the next.
"""

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf


class Processor:
    """Jobs that share cores. Pure: every method is told the time.

    Virtual time is the work that each job present has been given so far, so a job
    is finished when virtual time reaches its cost plus that of its start.
    """

    def __init__(self, cores: int, speed: float, now: float) -> None:
        self.cores = cores
        self.speed = speed
        self.busy = 0.0  # core seconds in use since the start
        self._virtual = 0.0
        self.advanced_to = now
        self._numbers = count()
        self._jobs: list[tuple[float, int, Callable[[], None]]] = []

    @property
    def runnable(self) -> int:
        return len(self._jobs)

    def start(self, cost: float, done: Callable[[], None], now: float) -> int:
        """Adds a job of `cost` core seconds at speed 1; returns its number."""
        self.advance(now)
        number = next(self._numbers)
        heappush(self._jobs, (self._virtual + cost, number, done))
        return number

    def drop(self, number: int, now: float) -> None:
        """Takes a job away, if it is not finished by now."""
        self.advance(now)
        self._jobs = [job for job in self._jobs if job[1] != number]
        heapify(self._jobs)

    def next_at(self) -> float:
        """When the next job will be finished if none comes or goes before."""
        if not self._jobs:
            return inf
        return (
            self.advanced_to + max(0.0, self._jobs[0][0] - self._virtual) / self._rate()
        )

    def advance(self, now: float) -> None:
        """Runs until `now` and calls `done` of every job finished by then."""
        while (due := self.next_at()) <= now:
            self._account(due)
            self._virtual, _, done = heappop(self._jobs)
            done()
        if now > self.advanced_to:
            self._virtual += (
                (now - self.advanced_to) * self._rate() if self._jobs else 0.0
            )
            self._account(now)

    def _rate(self) -> float:
        return self.speed * min(1.0, self.cores / len(self._jobs))

    def _account(self, now: float) -> None:
        self.busy += (now - self.advanced_to) * min(self.cores, len(self._jobs))
        self.advanced_to = now


class Cpu:
    """A processor in real time, driven by the event loop it is made in."""

    def __init__(self, cores: int, speed: float) -> None:
        self.cores = cores
        self.speed = speed
        self._loop = asyncio.get_running_loop()
        self._started_at = self._loop.time()
        self._processor = Processor(cores, speed, self._started_at)
        self._timer: asyncio.TimerHandle | None = None
        self._read_at = self._started_at
        self._read_busy = 0.0
        self._utilization = 0.0

    async def run(self, cost: float) -> None:
        """Returns when the job is done; a cancelled one leaves the processor."""
        finished = self._loop.create_future()

        def done() -> None:
            if not finished.done():
                finished.set_result(None)

        number = self._processor.start(cost, done, self._loop.time())
        self._set_timer()
        try:
            await finished
        except asyncio.CancelledError:
            self._processor.drop(number, self._loop.time())
            self._set_timer()
            raise

    def usage(self) -> tuple[float, float]:
        """Core seconds in use and seconds passed since the start."""
        now = self._loop.time()
        self._processor.advance(now)
        return self._processor.busy, now - self._started_at

    def utilization(self) -> float:
        """The busy share of the cores since this was last asked."""
        busy, _ = self.usage()
        now = self._loop.time()
        if (elapsed := now - self._read_at) > 0:
            self._utilization = (busy - self._read_busy) / (elapsed * self.cores)
            self._read_at, self._read_busy = now, busy
        return self._utilization

    @property
    def runnable(self) -> int:
        return self._processor.runnable

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due = self._processor.next_at()
        self._timer = None if due == inf else self._loop.call_at(due, self._wake)

    def _wake(self) -> None:
        self._processor.advance(self._loop.time())
        self._set_timer()
