"""How much CPU time the task wanted: what it used, and what others kept from it.

A task's capacity is what it can have now. Beside a neighbor that takes half of a CPU, a
task that uses 0.4 of that CPU is nearly full. Three figures of Linux tell:

- how long the event loop's thread waited for a CPU: /proc/thread-self/schedstat. That
  thread limits an asyncio server, and one file is read, however many threads there are.
- how long a control group around us was throttled: cpu.stat.
- how much of the machine's CPU time the hypervisor gave to others: /proc/stat.

What cannot be read is unknown, and adds nothing to what was used. Without /proc, as on
macOS, only used time counts.

An event loop runs on one CPU, however many the task has. So the task is as full as its
loop, if that is fuller than its CPUs: see `event_loop`.
"""

import time
from collections.abc import Callable
from pathlib import Path

from lbclient.core.counting.ewma import Ewma
from lbclient.log import Log
from lbclient.server.meters.cgroup_throttling import CgroupThrottling
from lbclient.server.meters.cpu import CpuMeter
from lbclient.server.meters.steal import Steal
from lbclient.server.meters.system_files import read_bytes
from lbclient.server.statistics import ContentionStatistics

logger = Log(__name__)


def wanted(
    used: float, cpus: float, by_loop: float, seen: ContentionStatistics
) -> float:
    """The utilization, if what the task wanted and did not get had been used as well.

    `used` is the share of its `cpus` that the task used, and `by_loop` the CPU seconds
    a second of the loop's thread, which can have one CPU. Waiting adds nothing beyond
    1.0: more is not to be had, and threads that wait for each other do not want more.
    """
    # One thread cannot use more than one CPU, nor all of one where it has to wait. That
    # is a limit beside a quota of less than a CPU, not one that comes on top.
    most = max(1.0, cpus)
    # The loop's thread also waits for threads of its own process. They are given the
    # part of its waiting that they have of the CPU time which it leaves.
    others = used * cpus - by_loop
    by_own = min(1.0, max(0.0, others / max(0.01, most - by_loop)))
    waiting = (seen.waiting or 0.0) * (1.0 - by_own)
    waited = max(by_loop + waiting, (used * cpus + waiting) / most)
    # All in the group would use so much more of it, this process as much as others that
    # used up the quota. An idle task loses nothing by throttling.
    throttled = used * (1.0 + (seen.throttled or 0.0))
    # Some kernels count throttled time as waiting, too: so the larger, not the sum.
    got = 1.0 - min(0.99, seen.stolen or 0.0)
    return max(used, min(1.0, max(waited, throttled) / got))


class ContentionMeter:
    """Measures how much CPU time the task wanted and did not get. Owned by the server,
    read on its loop's thread only."""

    def __init__(
        self,
        smoothing: float,
        cpu: CpuMeter | None = None,
        root: Path = Path("/"),
        busy: Callable[[], float | None] = lambda: None,
        thread_time: Callable[[], float] = time.thread_time,
    ) -> None:
        """`smoothing` seconds, of what is shown; what `read` returns has none.

        `busy` is the share of time, since it was asked before, in which the loop did
        not wait for events; None where nobody knows.
        """
        self._cpu = CpuMeter() if cpu is None else cpu
        self._busy = busy
        self._thread_time = thread_time
        self._root = root
        self._schedstat = str(root / "proc/thread-self/schedstat")
        self._ran = 0.0  # CPU seconds of the loop's thread
        self._waited: int | None = None  # nanoseconds
        self._read_at: float | None = None
        self._throttling = CgroupThrottling(root)
        self._steal = Steal(str(root / "proc/stat"))
        self._has_complained = False
        self._waiting = _Figure(smoothing)
        self._throttled = _Figure(smoothing)
        self._stolen = _Figure(smoothing)
        self._loop = Ewma(smoothing)
        self._lag = Ewma(smoothing)

    def read(self, now: float) -> float:
        """What of its CPUs the process wanted since it was asked before, or how busy
        its loop was, the larger of both."""
        used = self._cpu.read(now)
        by_loop, waiting = self._read_thread(now)
        seen = ContentionStatistics(
            waiting=waiting,
            throttled=self._throttling.read(now),
            stolen=self._steal.read(now),
        )
        self._waiting.update(seen.waiting, now)
        self._throttled.update(seen.throttled, now)
        self._stolen.update(seen.stolen, now)
        cpu = wanted(used, self._cpu.cpus, by_loop, seen)
        busy = max(self._busy() or 0.0, by_loop)
        self._loop.update(busy, now)
        return max(cpu, busy)

    @property
    def cpus(self) -> float:
        return self._cpu.cpus

    def note_lag(self, seconds: float, now: float) -> None:
        """A timer of the loop came so late."""
        self._lag.update(max(0.0, seconds), now)

    def statistics(self) -> ContentionStatistics:
        return ContentionStatistics(
            waiting=self._waiting.value,
            throttled=self._throttled.value,
            stolen=self._stolen.value,
            loop=self._loop.value,
            lag=self._lag.value,
        )

    def _read_thread(self, now: float) -> tuple[float, float | None]:
        """Seconds a second that the loop's thread ran, and that it waited for a CPU."""
        since, self._read_at = self._read_at, now
        spent, self._ran = -self._ran, self._thread_time()
        before, self._waited = self._waited, _waited(self._schedstat)
        if self._waited is None and not self._has_complained:
            self._has_complained = True
            file, what = "/proc/thread-self/schedstat", "time spent waiting for a CPU"
            logger.info("cannot read %s: %s is not counted", file, what)
        if since is None or now <= since:
            return 0.0, None if self._waited is None else 0.0
        ran = _share(spent + self._ran, now - since)
        if self._waited is None:
            return ran, None
        known = self._waited if before is None else before
        return ran, _share((self._waited - known) * 1e-9, now - since)

    def __repr__(self) -> str:
        seen = self.statistics()
        return (
            f"<{_said(seen.waiting)} waiting, {_said(seen.throttled)} throttled, "
            f"{_said(seen.stolen)} stolen, {seen.loop:.2f} busy, "
            f"{seen.lag * 1e3:.1f} ms late>"
        )


class _Figure:
    """A smoothed figure, or None while it cannot be read."""

    def __init__(self, smoothing: float) -> None:
        self._ewma = Ewma(smoothing)
        self.value: float | None = None

    def update(self, value: float | None, now: float) -> None:
        if value is not None:
            self._ewma.update(value, now)
        self.value = None if value is None else self._ewma.value


def _said(figure: float | None) -> str:
    return "unknown" if figure is None else f"{figure:.2f}"


def _share(seconds: float, elapsed: float) -> float:
    return min(1.0, max(0.0, seconds) / elapsed)


def _waited(file: str) -> int | None:
    try:
        ran, waited, _ = map(int, read_bytes(file).split())
    except ValueError:
        return None
    return waited if ran > 0 else None  # a kernel that does not count says 0
