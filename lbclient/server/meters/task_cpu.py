"""The CPU time of all workers of a task over the CPUs that the task may use.

A worker's own CPU time says little of a pod whose other workers have used its quota.
"""

import os
from collections.abc import Callable, Iterable
from math import inf

from lbclient.server.meters.cpu import available_cpus
from lbclient.server.meters.system_files import read_bytes

EVERY = 1.0  # seconds; Linux counts these times in hundredths
RECHECK_AFTER = 10.0  # seconds; quotas of a running container may be changed

USER, SYSTEM = 11, 12  # fields of /proc/PID/stat, from the state on


class TaskCpuMeter:
    """How much of its CPUs the whole task used lately. Owned by a worker's server.

    `processes` returns the numbers of the task's processes.
    """

    def __init__(
        self,
        processes: Callable[[], Iterable[int]],
        available: Callable[[], float] = available_cpus,
        proc: str = "/proc",
    ) -> None:
        self._processes = processes
        self._available = available
        self._proc = proc
        self._cpus, self._recheck_at = 1.0, -inf
        self._times: dict[int, float] = {}
        self._read_at = -inf
        self._last = 0.0

    def read(self, now: float) -> float:
        """As of the last whole second. A process counts from its second look on."""
        elapsed = now - self._read_at
        if elapsed < EVERY:
            return self._last
        if now >= self._recheck_at:
            self._cpus, self._recheck_at = self._available(), now + RECHECK_AFTER
        before, self._read_at = self._times, now
        self._times = {pid: self._time_of(pid) for pid in self._processes()}
        used = sum(
            max(0.0, time - before[pid])
            for pid, time in self._times.items()
            if pid in before
        )
        self._last = used / elapsed / self._cpus
        return self._last

    def _time_of(self, pid: int) -> float:
        """CPU seconds that it has used; 0.0 if it is gone."""
        # The name in parentheses may have any character in it.
        fields = read_bytes(f"{self._proc}/{pid}/stat").rpartition(b")")[2].split()
        try:
            ticks = int(fields[USER]) + int(fields[SYSTEM])
        except (IndexError, ValueError):
            return 0.0
        return ticks / os.sysconf("SC_CLK_TCK")

    def __repr__(self) -> str:
        return (
            f"<{len(self._times)} processes, {self._last:.2f} of {self._cpus:g} CPUs>"
        )
