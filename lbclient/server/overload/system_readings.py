"""What the system tells of this task, read now and then: memory and processors."""

from collections.abc import Callable

from lbclient.server.meters.cpu import available_cpus
from lbclient.server.meters.memory import MemoryMeter


class SystemReadings:
    """Keeps the system's last readings. Owned by the gate. `memory` is the share in
    use, `read_at` when all were read."""

    def __init__(
        self, counts_cpus: bool, read_memory: Callable[[float], float] | None = None
    ) -> None:
        """`counts_cpus`: the number of CPUs is read, too."""
        self.cpus = 1.0
        self.memory = 0.0
        self.read_at: float | None = None
        self._counts_cpus = counts_cpus
        self._read_memory = MemoryMeter().read if read_memory is None else read_memory

    def read(self, now: float) -> None:
        if self._counts_cpus:
            self.cpus = available_cpus()
        self.memory = self._read_memory(now)
        self.read_at = now

    def __repr__(self) -> str:
        return f"<{self.memory:.0%} of memory, {self.cpus:.1f} CPUs>"
