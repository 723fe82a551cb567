"""What a CPU second of this machine is worth, where `cpu_factor` is not set.

A short loop of plain Python is timed by the thread's CPU clock. The fastest of many
counts: a neighbour on the same physical core makes all slower, here by 1.7 times, for
seconds on end. So the loop is run at the start, and then now and then for a while.

Not by the capacity that load reports tell, requests per second over utilization: it
depends on what is asked as much as on the machine, and a server hears no reports.
"""

from collections.abc import Callable
from math import inf
from time import thread_time

# Seconds that `REFERENCE_ROUNDS` take where a CPU second is worth 1: an AMD EPYC with
# CPython 3.11 and nothing else on the core.
REFERENCE = 75e-6
REFERENCE_ROUNDS = 500  # of `loop`: long enough for a clock of 1 us

AT_START = 20  # measurements, which together take some 2 ms
LATER = 60  # more, one in `PAUSE` seconds: a neighbour is busy for seconds on end
PAUSE = 1.0  # seconds; a measurement takes 0.1 ms
HIGHEST = 100.0  # of the factor and its inverse: what is beyond is a broken clock


def loop(rounds: int) -> int:
    """Calls, attributes, numbers, a dict and texts: what handlers in Python do."""
    table: dict[int, int] = {}
    total = 0
    for i in range(rounds):
        key = i & 63
        total += table.get(key, i) ^ key
        table[key] = total & 0xFFFF
        total += len(str(key))
    return total


class MachineSpeed:
    """Shared by the servers of a process, and used on their loops."""

    def __init__(
        self,
        cpu_time: Callable[[], float] = thread_time,
        work: Callable[[int], object] = loop,
    ) -> None:
        self._cpu_time = cpu_time
        self._work = work
        self._best = inf  # seconds
        self._left = AT_START + LATER
        self._due_at = -inf

    def start(self) -> None:
        """Measures, if that was not done yet in this process."""
        while self._left > LATER:
            self._measure()

    def sample(self, now: float) -> None:
        """Measures once more now and then, some 60 times in all."""
        if self._left and now >= self._due_at:
            self._due_at = now + PAUSE
            self._measure()

    def _measure(self) -> None:
        self._left -= 1
        began_at = self._cpu_time()
        self._work(REFERENCE_ROUNDS)
        took = self._cpu_time() - began_at
        if took > 0.0:
            self._best = min(self._best, took)

    @property
    def factor(self) -> float:
        """What a CPU second is worth; 1.0 until it is known."""
        if self._best == inf:
            return 1.0
        return min(max(REFERENCE / self._best, 1.0 / HIGHEST), HIGHEST)

    def __repr__(self) -> str:
        return f"<a CPU second is worth {self.factor:.2f}, {self._left} looks to come>"


OF_PROCESS = MachineSpeed()
