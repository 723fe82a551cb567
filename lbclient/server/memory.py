"""How much of the memory that it may have is in use.

Of a control group's limit: what the group uses without what the kernel would drop at
once, as that is when somebody is killed. Of RLIMIT_AS: the process's address space. On
other systems the share of the machine's memory that psutil tells, if that is there.
"""

import os
from collections.abc import Callable
from importlib import import_module
from math import inf
from pathlib import Path

from lbclient.server.cpu import cgroup_folders

# Version 1 has a number there even without a limit: the largest multiple of a page.
UNLIMITED = 2**62


def used_share(root: Path = Path("/")) -> float:
    """0.0 where there is no limit, or nobody tells."""
    if not (root / "proc/self/statm").exists():
        return _by_psutil()
    return max(_of_groups(root), _of_address_space(root))


def _of_groups(root: Path) -> float:
    shares = [_of_group(folder) for folder in cgroup_folders(root, "memory")]
    return max(shares, default=0.0)


def _of_group(folder: Path) -> float:
    for limit, usage, idle in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        most = _number(folder / limit)
        used = _number(folder / usage)
        if 0.0 < most < UNLIMITED and used < inf:
            return max(0.0, used - _field(folder / "memory.stat", idle)) / most
    return 0.0


def _of_address_space(root: Path) -> float:
    from resource import RLIM_INFINITY, RLIMIT_AS, getrlimit

    limit, _ = getrlimit(RLIMIT_AS)
    if limit == RLIM_INFINITY or limit <= 0:
        return 0.0
    pages = int((root / "proc/self/statm").read_text().split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE") / limit


def _by_psutil() -> float:
    try:
        return float(import_module("psutil").virtual_memory().percent) / 100.0
    except ImportError:
        return 0.0


def _number(file: Path) -> float:
    """inf for `max`, and for what is not there."""
    try:
        return float(file.read_text())
    except (OSError, ValueError):
        return inf


def _field(file: Path, name: str) -> float:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0.0
    found = [line.split()[1] for line in lines if line.split()[:1] == [name]]
    return float(found[0]) if found else 0.0


class MemoryMeter:
    """Reads it once a second: memory is slow, and so are a dozen small files."""

    EVERY = 1.0

    def __init__(self, read: Callable[[], float] = used_share) -> None:
        self._read = read
        self._read_at = -inf
        self._share = 0.0

    def read(self, now: float) -> float:
        if now >= self._read_at + self.EVERY:
            self._read_at = now
            self._share = self._read()
        return self._share
