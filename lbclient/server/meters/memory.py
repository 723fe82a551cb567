"""How much of the memory that it may have is in use.

Of a control group's limit: what the group uses without what the kernel would drop at
once, as that is when somebody is killed. Of RLIMIT_AS: the process's address space. On
systems without /proc the share of the machine's memory that psutil tells, if that is
installed; else nobody knows, and the log says so once.
"""

import os
from collections.abc import Callable
from importlib import import_module
from math import inf
from pathlib import Path
from typing import NamedTuple

from lbclient.log import Log
from lbclient.server.meters.cpu import cgroup_folders

# Version 1 has a number there even without a limit: the largest multiple of a page.
UNLIMITED = 2**62

STATM = "proc/self/statm"

# Readings, of which there is one a second, until limits of groups are looked for anew:
# those of a running container may be changed. That takes a millisecond.
RECHECK_AFTER = 10


class Files(NamedTuple):
    """The files of one version of control groups; `idle` is a line of `memory.stat`."""

    limit: str
    usage: str
    idle: str


FILES = (
    Files("memory.max", "memory.current", "inactive_file"),
    Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)

logger = Log(__name__)


def reader(root: Path = Path("/")) -> Callable[[], float]:
    """What reads the share on this system; 0.0 where there is no limit."""
    if (root / STATM).exists():
        return _UsedShare(root).read
    try:
        psutil = import_module("psutil")
    except ImportError:
        logger.info("memory is unknown: no /proc here; pip install 'lbclient[psutil]'")
        return lambda: 0.0

    def of_machine() -> float:
        return float(psutil.virtual_memory().percent) / 100.0

    try:
        of_machine()
    except Exception as error:  # on Linux it reads /proc, too, which is hidden here
        logger.info("memory is unknown: no /proc here: %s", error, reason=error)
        return lambda: 0.0
    return of_machine


class _UsedShare:
    """The used share of the nearest limit, from the groups that have a limit."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._readings = 0
        self._groups: list[tuple[Path, Files]] = []

    def read(self) -> float:
        if self._readings % RECHECK_AFTER == 0:
            groups = cgroup_folders(self._root, "memory")
            pairs = [(group, files) for group in groups for files in FILES]
            self._groups = [pair for pair in pairs if _limit(*pair) < UNLIMITED]
        self._readings += 1
        shares = [_of_group(*pair) for pair in self._groups]
        return max([_of_address_space(self._root), *shares])


def _limit(group: Path, files: Files) -> float:
    most = _number(group / files.limit)
    return most if most > 0.0 else inf


def _of_group(group: Path, files: Files) -> float:
    used = _number(group / files.usage)
    if used == inf:
        return 0.0
    idle = _field(group / "memory.stat", files.idle)
    return max(0.0, used - idle) / _limit(group, files)


def _of_address_space(root: Path) -> float:
    from resource import RLIM_INFINITY, RLIMIT_AS, getrlimit

    limit, _ = getrlimit(RLIMIT_AS)
    if limit == RLIM_INFINITY or limit <= 0:
        return 0.0
    pages = int((root / STATM).read_text().split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE") / limit


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

    def __init__(self, find: Callable[[], Callable[[], float]] = reader) -> None:
        self._find = find
        self._read: Callable[[], float] | None = None
        self._read_at = -inf
        self._share = 0.0

    def read(self, now: float) -> float:
        if now >= self._read_at + self.EVERY:
            self._read_at = now
            self._read = self._read or self._find()
            self._share = self._read()
        return self._share
