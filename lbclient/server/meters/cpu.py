"""The process's CPU time over the CPUs that it may use.

May use: the CPUs of its affinity mask, and no more than the smallest quota of the
control groups around it, since any of them throttles. A quota of half a CPU makes a
process that burns half a CPU fully utilized.
"""

import os
import time
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path

RECHECK_AFTER = 10.0  # seconds; quotas of a running container may be changed


def parse_cpu_max(text: str) -> float | None:
    """cgroup v2, `cpu.max`; None without a limit.

    >>> parse_cpu_max("150000 100000"), parse_cpu_max("max 100000")
    (1.5, None)
    """
    quota, _, period = text.strip().partition(" ")
    return parse_cfs(quota, period or "100000")  # "The default is max 100000"


def parse_cfs(quota: str, period: str) -> float | None:
    """cgroup v1, `cpu.cfs_quota_us` and `cpu.cfs_period_us`; None without a limit.

    >>> parse_cfs("50000", "100000"), parse_cfs("-1", "100000")
    (0.5, None)
    """
    try:
        cpus = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return None
    return cpus if cpus > 0 else None


def cgroup_limit(root: Path = Path("/")) -> float | None:
    """The smallest CPU quota on the way up from this process's control groups."""
    return min(limited_folders(root).values(), default=None)


def limited_folders(root: Path) -> dict[Path, float]:
    """The control groups around this process that have a CPU quota, and that quota."""
    return {
        folder: limit
        for folder in cgroup_folders(root, "cpu")
        if (limit := _folder_limit(folder)) is not None
    }


def available_cpus(root: Path = Path("/")) -> float:
    """How many CPUs' time this process can get; a fraction is possible."""
    try:
        cpus = float(len(os.sched_getaffinity(0)))
    except AttributeError:  # Linux alone has it
        cpus = float(os.cpu_count() or 1)
    limit = cgroup_limit(root)
    return cpus if limit is None else min(cpus, limit)


def cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """Each control group around us, from the innermost out, as mounted here.

    Inside a container the listed path is often the host's and does not exist; the
    mount's root is then our own group, and it is always the last of the walk.
    """
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            mounts = ["sys/fs/cgroup", "sys/fs/cgroup/unified"]
        elif controller in controllers.split(","):
            mounts = [f"sys/fs/cgroup/{controllers}", f"sys/fs/cgroup/{controller}"]
        else:
            continue
        inner = Path(path.lstrip("/"))
        for mount in mounts:
            for group in (inner, *inner.parents):
                yield root / mount / group


def _folder_limit(folder: Path) -> float | None:
    text = _read(folder / "cpu.max")
    if text is not None:
        return parse_cpu_max(text)
    quota = _read(folder / "cpu.cfs_quota_us")
    period = _read(folder / "cpu.cfs_period_us")
    return parse_cfs(quota, period) if quota and period else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return None


class CpuMeter:
    """How much of its CPUs the process used since it was asked before."""

    def __init__(
        self,
        cpu_time: Callable[[], float] = time.process_time,
        available: Callable[[], float] = available_cpus,
    ) -> None:
        self._cpu_time = cpu_time
        self._available = available
        self.cpus = 1.0  # available ones, as last read
        self._recheck_at = -inf
        self._read_at: float | None = None
        self._used = 0.0

    def read(self, now: float) -> float:
        """0.0 the first time. May exceed 1.0: quotas are enforced by the period."""
        if now >= self._recheck_at:
            self.cpus = self._available()
            self._recheck_at = now + RECHECK_AFTER
        before, self._read_at = self._read_at, now
        spent, self._used = -self._used, self._cpu_time()
        spent += self._used
        if before is None or now <= before:
            return 0.0
        return spent / (now - before) / self.cpus
