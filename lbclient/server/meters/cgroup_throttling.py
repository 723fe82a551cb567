"""How much CPU time control groups around the process lose because of their quota."""

from collections.abc import Iterator
from math import inf
from pathlib import Path

from lbclient.server.meters.cpu import RECHECK_AFTER, cgroup_folders, limited_folders
from lbclient.server.meters.system_files import fields

PAUSE = 1.0  # seconds between two readings; the kernel's own period is 0.1 s


class CgroupThrottling:
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
        self._due_at = now + PAUSE
        lost = [
            (seconds - before[file]) / self._quotas[file]
            for file, seconds in self._lost.items()
            if file in before
        ]
        is_told = self._is_told and len(self._lost) == len(self._quotas)
        self._share = max([0.0, *lost]) / max(PAUSE, now - since) if is_told else None
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
            found = fields(file)
            if "throttled_usec" in found:
                yield file, found["throttled_usec"] * 1e-6
            elif "throttled_time" in found:  # version 1
                yield file, found["throttled_time"] * 1e-9
