"""Ten times a second reads the CPU, and has gate and reporter read all else."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from random import Random
from types import FrameType
from typing import Any

from lbclient import wire
from lbclient.background.tasks import Tasks
from lbclient.core.protocols import Clock
from lbclient.server.meters.blocked_loop import LOOPS, LoopWatch
from lbclient.server.meters.contention import ContentionMeter
from lbclient.server.meters.event_loop import LoopMeter
from lbclient.server.report.streams import TICK
from lbclient.server.statistics import ContentionStatistics

SAMPLE_INTERVAL = TICK  # seconds; how often reports change in lbclient's simulations


class Sampler:
    """Reads the CPU utilization ten times a second, and passes it on. Owned by the
    server, used on its loop's thread only.

    Each function in `each` is called in order, with the time and the CPU utilization.
    """

    def __init__(
        self,
        clock: Clock,
        smoothing: float,
        each: Sequence[Callable[[float, float], None]],
        read_cpu: Callable[[float], float] | None = None,
        guard: AbstractContextManager[Any] | None = None,
        read: Callable[[float], None] | None = None,
    ) -> None:
        self._clock = clock
        self._each = each
        self._read = read  # before `guard`, within which `each` is called
        self._guard = nullcontext() if guard is None else guard
        self._loop = LoopMeter(clock)
        self._contention = ContentionMeter(smoothing, busy=self._loop.read)
        self._read_cpu = self._contention.read if read_cpu is None else read_cpu
        self._tasks = Tasks("server", Random())
        self._timer: asyncio.TimerHandle | None = None
        self._due_at: float | None = None  # that timer
        self._watch: LoopWatch | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Samples from now on, until `stop`."""
        self._loop.watch(loop)
        now = self._clock()
        if self._due_at is not None:
            self._contention.note_lag(now - self._due_at, now)
        self._due_at = now + SAMPLE_INTERVAL
        if self._watch is not None:
            self._watch.beat()
        self._timer = loop.call_later(SAMPLE_INTERVAL, self.start, loop)
        self._tasks.attempt(self.sample)

    def warn_if_blocked(
        self,
        loop: asyncio.AbstractEventLoop,
        find_method: Callable[[FrameType], str],
    ) -> None:
        """Warns of what blocks the loop, until `stop`. `find_method` finds the method
        that is served in a stack."""
        self._watch = LOOPS.enter(loop, find_method)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        watch, self._watch = self._watch, None
        if watch is not None:
            LOOPS.leave(watch)
        self._loop.ignore()

    def sample(self) -> None:
        now = self._clock()
        cpu = wire.sound(self._read_cpu(now))
        if self._read is not None:
            self._read(now)
        with self._guard:
            for sample in self._each:
                sample(now, cpu)

    @property
    def cpus(self) -> float:
        """That the process may use, as last read."""
        return self._contention.cpus

    @property
    def failures(self) -> int:
        """Samples that failed."""
        return self._tasks.failures

    def statistics(self) -> ContentionStatistics:
        return self._contention.statistics()

    def __repr__(self) -> str:
        return repr(self._contention)
