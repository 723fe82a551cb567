"""How much CPU time the task wanted: what it used, and what others kept from it.

A task's capacity is what it can have now. Beside a neighbor that takes half of a CPU, a
task that uses 0.4 of that CPU is nearly full. Three figures of Linux tell:

- how long the event loop's thread waited for a CPU: /proc/thread-self/schedstat. That
  thread limits an asyncio server, and one file is read, however many threads there are.
- how long a control group around us was throttled: cpu.stat.
- how much of the machine's CPU time the hypervisor gave to others: /proc/stat.

What cannot be read counts as none, so where there is no /proc only used time counts.
"""

import logging
import os
from collections.abc import Iterator
from math import inf
from pathlib import Path

from lbclient.ewma import Ewma
from lbclient.server.cpu import RECHECK_AFTER, CpuMeter, limited_folders
from lbclient.server.statistics import ContentionStatistics

# Seconds between two looks at throttling, whose period is 0.1 s, and at steal, which is
# counted in steps of 10 ms.
SLOW = 1.0
MOST = 65536  # bytes of a file; all that is wanted is in its first lines

logger = logging.getLogger(__name__)


def wanted(
    used: float, cpus: float, by_loop: float, seen: ContentionStatistics
) -> float:
    """The utilization, if what the task wanted and did not get had been used as well.

    `used` is the share of its `cpus` that the task used, and `by_loop` the CPU seconds
    a second of the loop's thread. Waiting adds nothing beyond 1.0: more is not to be
    had, and threads that wait for each other do not want more.
    """
    # One thread cannot use more than one CPU, nor all of one where it has to wait. That
    # is a limit beside a quota of less than a CPU, not one that comes on top.
    most = max(1.0, cpus)
    # The loop's thread also waits for threads of its own process. They are given the
    # part of its waiting that they have of the CPU time which it leaves.
    others = used * cpus - by_loop
    by_own = min(1.0, max(0.0, others / max(0.01, most - by_loop)))
    waited = (used * cpus + seen.waiting * (1.0 - by_own)) / most
    # Other processes may be in the group, and an idle task loses nothing by throttling.
    throttled = used * (1.0 + seen.throttled / cpus)
    # Some kernels count throttled time as waiting, too: so the larger, not the sum.
    got = 1.0 - min(0.99, seen.stolen)
    return max(used, min(1.0, max(waited, throttled) / got))


class ContentionMeter:
    """Owned by the server, and read on its loop's thread only."""

    def __init__(
        self, smoothing: float, cpu: CpuMeter | None = None, root: Path = Path("/")
    ) -> None:
        """`smoothing` seconds, of what is shown; what `read` returns has none."""
        self._cpu = CpuMeter() if cpu is None else cpu
        self._root = root
        self._schedstat = str(root / "proc/thread-self/schedstat")
        self._thread: tuple[int, int] | None = None  # ran and waited, nanoseconds
        self._read_at: float | None = None
        self._throttling = _Throttling(root)
        self._steal = _Steal(str(root / "proc/stat"))
        self._has_complained = False
        self._waiting = Ewma(smoothing)
        self._throttled = Ewma(smoothing)
        self._stolen = Ewma(smoothing)
        self._lag = Ewma(smoothing)

    def read(self, now: float) -> float:
        """What of its CPUs the process wanted since it was asked before."""
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
        return wanted(used, self._cpu.cpus, by_loop, seen)

    def note_lag(self, seconds: float, now: float) -> None:
        """A timer of the loop came so late."""
        self._lag.update(max(0.0, seconds), now)

    def statistics(self) -> ContentionStatistics:
        return ContentionStatistics(
            waiting=self._waiting.value,
            throttled=self._throttled.value,
            stolen=self._stolen.value,
            lag=self._lag.value,
        )

    def _read_thread(self, now: float) -> tuple[float, float]:
        """Seconds a second that the loop's thread ran, and that it waited for a CPU."""
        before, since = self._thread, self._read_at
        self._thread, self._read_at = _schedstat(self._schedstat), now
        if self._thread is None and not self._has_complained:
            self._has_complained = True
            logger.info("no schedstat here: time spent waiting for a CPU is not seen")
        if before is None or self._thread is None or since is None or now <= since:
            return 0.0, 0.0
        ran, waited = (
            min(1.0, max(0, after - count) * 1e-9 / (now - since))
            for after, count in zip(self._thread, before, strict=True)
        )
        return ran, waited

    def __repr__(self) -> str:
        seen = self.statistics()
        return (
            f"<{seen.waiting:.2f} waiting, {seen.throttled:.2f} throttled, "
            f"{seen.stolen:.2f} stolen, {seen.lag * 1e3:.1f} ms late>"
        )


class _Throttling:
    """How many CPU seconds a second the group that is throttled most lost by that.

    More than 1.0 where a group of several CPUs is throttled. Only groups with a quota
    are read: in version 2 the kernel sums a group up over all processors each time.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._recheck_at = self._due_at = -inf
        self._read_at = 0.0
        self._files: list[str] = []
        self._counts: dict[str, float] = {}
        self._share = 0.0

    def read(self, now: float) -> float:
        if now < self._due_at:
            return self._share
        if now >= self._recheck_at:
            folders = limited_folders(self._root)
            self._files = [str(folder / "cpu.stat") for folder in folders]
            self._recheck_at = now + RECHECK_AFTER
        before, since = self._counts, self._read_at
        self._counts, self._read_at = dict(self._read_files()), now
        self._due_at = now + SLOW
        growth = [
            count - before[file]
            for file, count in self._counts.items()
            if file in before
        ]
        self._share = max([0.0, *growth]) / max(SLOW, now - since)
        return self._share

    def _read_files(self) -> Iterator[tuple[str, float]]:
        for file in self._files:
            fields = _fields(file)
            if "throttled_usec" in fields:
                yield file, fields["throttled_usec"] * 1e-6
            elif "throttled_time" in fields:  # version 1
                yield file, fields["throttled_time"] * 1e-9


class _Steal:
    """The share of all processors' busy time that was the hypervisor's.

    Where there has been none since the machine started it is looked for seldom: with
    hundreds of processors the file takes the kernel a millisecond.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        self._due_at = -inf
        self._busy = self._stolen = 0
        self._share = 0.0

    def read(self, now: float) -> float:
        if now < self._due_at:
            return self._share
        busy, stolen = _busy(self._file)
        grown = busy - self._busy
        if self._due_at > -inf and grown > 0:
            self._share = min(1.0, max(0.0, (stolen - self._stolen) / grown))
        self._busy, self._stolen = busy, stolen
        self._due_at = now + (SLOW if stolen else RECHECK_AFTER)
        return self._share


def _read(file: str) -> bytes:
    """By system calls: `Path.read_text` takes three times as long."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, MOST)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _schedstat(file: str) -> tuple[int, int] | None:
    try:
        ran, waited, _ = _read(file).split()
        times = int(ran), int(waited)
    except ValueError:
        return None
    return times if times[0] > 0 else None  # a kernel that does not count says 0


def _fields(file: str) -> dict[str, int]:
    """Of lines with a name and a number."""
    pairs = [line.split() for line in _read(file).decode(errors="replace").splitlines()]
    return {
        pair[0]: int(pair[1])
        for pair in pairs
        if len(pair) == 2 and pair[1].isdecimal()
    }


def _busy(file: str) -> tuple[int, int]:
    """Ticks of all processors that were not idle, and of those the stolen ones."""
    first, _, _ = _read(file).partition(b"\n")
    try:
        user, nice, system, _, _, irq, softirq, stolen = map(int, first.split()[1:9])
    except ValueError:
        return 0, 0
    return user + nice + system + irq + softirq + stolen, stolen
