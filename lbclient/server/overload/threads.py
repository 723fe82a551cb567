"""Load of handlers in threads: the run queue of each processor, and the pool's queue.

The kernel adds up for each thread how long it ran and how long it was ready and did
not: /proc/PID/task/*/schedstat. Who waits for Python's own lock is not ready for the
kernel, so of handlers in threads the queue for a thread is looked at besides. Where
there is no such file that queue is all there is, and the log says so once.

What the kernel tells is a mean of 0.1 s as it is. It is not smoothed: tests/laws has
what that would cost. Bursts are let in by `Patience`, which decays instead
(lbclient.core.overload.overload_signals).
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from lbclient.core.criticality import DEFAULT, Criticality
from lbclient.core.overload.admission import LOAD
from lbclient.core.overload.deadlines import Deadlines
from lbclient.log import Log
from lbclient.server.meters.cpu import available_cpus
from lbclient.server.overload.run_queue import TUNING as RUN_QUEUE

logger = Log(__name__)

# Of the time that a request has until its deadline, what waiting for a thread may take
# until it counts as one request that wants to run. Beyond the target of the load each
# counts for `STEEP`: else requests would be too late, which ends them in their order,
# before the load is so high that only the most critical are let in.
SHARE = 1 / 32
STEEP = 4.0
# Where all requests are of one criticality there is nobody to leave time for. Then only
# whom a thread would find too late is refused: whoever waited 0.375 of its time, see
# `WAITS` of `lbclient.server.requests.handler`.
SHARE_ALIKE = 0.36 / LOAD.target
STEEP_ALIKE = 16.0
# Requests, of how soon one after the other begins: threads that began together end
# together, so the mean of few swings.
MEMORY = 64


def schedstat(tasks: Path = Path("/proc/self/task")) -> dict[str, int]:
    """Nanoseconds, by thread, that it ran or was ready to; empty where nobody tells."""
    times = {}
    try:
        for task in tasks.iterdir():
            try:
                ran, waited, _ = (task / "schedstat").read_text().split()
            except (OSError, ValueError):
                continue  # it has just ended, or this kernel does not count
            times[task.name] = int(ran) + int(waited)
    except OSError:
        return {}
    return times


class Threads:
    """Measures the load of handlers in threads. Owned by the server. `leave` is called
    in any thread, everything else on the loop's thread.

    `running` are requests that have a thread of `pool`. `pool` is None for the loop's
    default pool.
    """

    def __init__(
        self,
        read: Callable[[], dict[str, int]] = schedstat,
        cpus: Callable[[], float] = available_cpus,
        *,
        pool: Executor | None = None,
    ) -> None:
        self._read = read
        self._cpus = cpus
        self.waiting: dict[Any, float] = {}  # since when; threads may share it
        # The same ones, by criticality, the first one first.
        self._lines: list[dict[Any, None]] = [{} for _ in Criticality]
        self.running: set[object] = set()  # threads share it, too
        self._pool = pool
        self._wait = 0.0
        self._pace = 0.0  # seconds from one that begins to the next, while others wait
        self._began_at: float | None = None  # the last one, if others waited then
        self._deadlines = Deadlines()
        self._is_used = False
        self._runnable = 0.0
        self._times: dict[str, int] = {}
        self._read_at: float | None = None

    def queue(
        self, request: Any, now: float, criticality: Criticality = DEFAULT
    ) -> None:
        self.waiting[request] = now
        self._lines[criticality][request] = None
        self._is_used = True

    def leave(self, request: Any) -> bool:
        """A request got a thread, lost its place, or ended: whether it waited until
        now. Only one of several callers is told so."""
        for line in self._lines:
            line.pop(request, None)
        return self.waiting.pop(request, None) is not None

    def first_below(
        self, criticality: Criticality
    ) -> tuple[Any, Criticality] | tuple[None, None]:
        """Of those that wait the first one of the least critical, if it is less
        critical than that."""
        for lower in Criticality:
            if lower >= criticality:
                break
            try:
                first = next(iter(self._lines[lower]), None)
            except RuntimeError:  # it has just got its thread
                continue
            if first is not None:
                return first, lower
        return None, None

    def waited(self, wait: float, left: float | None) -> None:
        """A request waited this long for a thread, with `left` to its deadline."""
        self._wait = wait
        self._deadlines.observe(None if left is None else wait + left)

    def began(self, now: float) -> None:
        """A request that is to be served has its thread."""
        before, self._began_at = self._began_at, now if self.waiting else None
        if before is not None:
            self._pace += (max(0.0, now - before) - self._pace) / MEMORY

    def sample(self, now: float) -> None:
        """Reads the kernel's figures now and then; free until a request has queued."""
        if not self._is_used:
            return
        before, since = self._times, self._read_at
        self._times, self._read_at = self._read(), now
        if since is None:
            if not self._times:
                file = "/proc/self/task/*/schedstat"
                logger.info("cannot read %s: running threads are not counted", file)
            return
        if now <= since:
            return
        spent = sum(
            after - before[name]
            for name, after in self._times.items()
            if name in before
        )
        self._runnable = spent * 1e-9 / (now - since) / self._cpus()

    def used(self) -> float:
        """The share of the pool's threads that run requests; 0.0 if nobody knows how
        many it has."""
        running = len(self.running)
        if not running:
            return 0.0
        pool = self._pool
        if pool is None:
            pool = getattr(asyncio.get_running_loop(), "_default_executor", None)
        # No public name tells. An executor of another kind has none.
        size = getattr(pool, "_max_workers", 0)
        return min(1.0, running / size) if size else 0.0

    def are_busy(self) -> bool:
        """Whether none is idle, as far as is known."""
        return bool(self.running) and self.used() in (0.0, 1.0)

    def load(self, now: float, are_alike: Callable[[], bool] = lambda: False) -> float:
        """Requests that run or want to, for each processor. `are_alike`: whether all
        requests are of one criticality."""
        try:
            oldest = next(iter(self.waiting.values()), None)
        except RuntimeError:  # it has just got its thread
            oldest = now
        if oldest is None:
            return self._runnable
        # Where no thread comes free at all the last who got one says nothing.
        # And he did not wait behind those who have come since, as a new one will.
        waiting = len(self.waiting)
        wait = max(self._wait, now - oldest, waiting * self._pace)
        share, steep = (SHARE_ALIKE, STEEP_ALIKE) if are_alike() else (SHARE, STEEP)
        units = wait / max(RUN_QUEUE.unit, share * self._deadlines.typical)
        if units > LOAD.target:
            units = LOAD.target + steep * (units - LOAD.target)
        return max(self._runnable, min(waiting, units))

    def __repr__(self) -> str:
        runs = f"{self._runnable:.1f} for each processor run or want to"
        return f"<{len(self.waiting)} wait for a thread, {runs}>"
