"""How much CPU time the task wanted: what it used, and what others kept from it.

A task's capacity is what it can have now. Beside a neighbor that takes half of a CPU, a
task that uses 0.4 of that CPU is nearly full. Three figures of Linux tell:

- how long the event loop's thread waited for a CPU: /proc/thread-self/schedstat. That
  thread limits an asyncio server, and one file is read, however many threads there are.
- how long a control group around us was throttled: cpu.stat.
- how much of the machine's CPU time the hypervisor gave to others: /proc/stat.

What cannot be read is unknown, and adds nothing to what was used. Without /proc, as on
macOS, only used time counts.
"""

import logging
import os
from collections.abc import Iterator
from math import inf
from pathlib import Path

from lbclient.core.ewma import Ewma
from lbclient.server.meters.cpu import (
    RECHECK_AFTER,
    CpuMeter,
    cgroup_folders,
    limited_folders,
)
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
    waited = (used * cpus + (seen.waiting or 0.0) * (1.0 - by_own)) / most
    # All in the group would use so much more of it, this process as much as others that
    # used up the quota. An idle task loses nothing by throttling.
    throttled = used * (1.0 + (seen.throttled or 0.0))
    # Some kernels count throttled time as waiting, too: so the larger, not the sum.
    got = 1.0 - min(0.99, seen.stolen or 0.0)
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
        self._waiting = _Figure(smoothing)
        self._throttled = _Figure(smoothing)
        self._stolen = _Figure(smoothing)
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

    def _read_thread(self, now: float) -> tuple[float, float | None]:
        """Seconds a second that the loop's thread ran, and that it waited for a CPU."""
        before, since = self._thread, self._read_at
        self._thread, self._read_at = _schedstat(self._schedstat), now
        if self._thread is None:
            if not self._has_complained:
                self._has_complained = True
                logger.info("no schedstat: time spent waiting for a CPU is unknown")
            return 0.0, None
        if before is None or since is None or now <= since:
            return 0.0, 0.0
        ran, waited = (
            min(1.0, max(0, after - count) * 1e-9 / (now - since))
            for after, count in zip(self._thread, before, strict=True)
        )
        return ran, waited

    def __repr__(self) -> str:
        seen = self.statistics()
        return (
            f"<{_said(seen.waiting)} waiting, {_said(seen.throttled)} throttled, "
            f"{_said(seen.stolen)} stolen, {seen.lag * 1e3:.1f} ms late>"
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


class _Throttling:
    """What the group that is throttled most lost by that, over its own quota.

    Seconds, as the kernel sums them over the CPUs that a group could not use, and a
    quota is CPU seconds a second, too. (The number of throttled periods is the same
    whether a period lost 1 ms or 90.) Only groups with a quota are read: in version 2
    the kernel sums a group up over all processors each time.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._recheck_at = self._due_at = -inf
        self._read_at = 0.0
        self._quotas: dict[str, float] = {}  # CPUs, by file
        self._is_told = False  # whether there are quotas, and what they cost
        self._lost: dict[str, float] = {}  # CPU seconds ever, by file
        self._share: float | None = None

    def read(self, now: float) -> float | None:
        if now < self._due_at:
            return self._share
        if now >= self._recheck_at:
            self._find()
            self._recheck_at = now + RECHECK_AFTER
        before, since = self._lost, self._read_at
        self._lost, self._read_at = dict(self._read_files()), now
        self._due_at = now + SLOW
        lost = [
            (seconds - before[file]) / self._quotas[file]
            for file, seconds in self._lost.items()
            if file in before
        ]
        is_told = self._is_told and len(self._lost) == len(self._quotas)
        self._share = max([0.0, *lost]) / max(SLOW, now - since) if is_told else None
        return self._share

    def _find(self) -> None:
        quotas = limited_folders(self._root)
        self._quotas = {str(one / "cpu.stat"): cpus for one, cpus in quotas.items()}
        # Without a mounted group to look into, nobody says that there is no quota.
        self._is_told = bool(quotas) or any(
            folder.is_dir() for folder in cgroup_folders(self._root, "cpu")
        )

    def _read_files(self) -> Iterator[tuple[str, float]]:
        for file in self._quotas:
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
        self._counts: tuple[int, int] | None = None  # busy and stolen
        self._share: float | None = None

    def read(self, now: float) -> float | None:
        if now < self._due_at:
            return self._share
        before, self._counts = self._counts, _busy(self._file)
        self._due_at = now + RECHECK_AFTER
        if self._counts is None:
            self._share = None
            return None
        busy, stolen = self._counts
        grown = busy - before[0] if before else 0
        if before and grown > 0:
            self._share = min(1.0, max(0.0, (stolen - before[1]) / grown))
        elif self._share is None:
            self._share = 0.0
        if stolen:
            self._due_at = now + SLOW
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


def _busy(file: str) -> tuple[int, int] | None:
    """Ticks of all processors that were not idle, and of those the stolen ones."""
    first, _, _ = _read(file).partition(b"\n")
    try:
        times = [int(ticks) for ticks in first.split()[1:9]]
        user, nice, system, _, _, irq, softirq, stolen = times
    except ValueError:
        return None
    if not any(times):
        return None  # of a sandbox that does not count
    return user + nice + system + irq + softirq + stolen, stolen
