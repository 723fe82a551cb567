"""How much of the machine's CPU time the hypervisor gives to other machines."""

from math import inf

from lbclient.server.meters.cpu import RECHECK_AFTER
from lbclient.server.meters.system_files import read_bytes

PAUSE = 1.0  # seconds between two readings; the kernel counts in steps of 10 ms


class Steal:
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
            self._due_at = now + PAUSE
        return self._share


def _busy(file: str) -> tuple[int, int] | None:
    """Ticks of all processors that were not idle, and of those the stolen ones."""
    first, _, _ = read_bytes(file).partition(b"\n")
    try:
        times = [int(ticks) for ticks in first.split()[1:9]]
        user, nice, system, _, _, irq, softirq, stolen = times
    except ValueError:
        return None
    if not any(times):
        return None  # of a sandbox that does not count
    return user + nice + system + irq + softirq + stolen, stolen
