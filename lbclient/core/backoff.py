"""Pauses that double from one failure to the next, up to the longest."""

from dataclasses import dataclass
from random import Random


def jittered(pause: float, rng: Random) -> float:
    """Varies a pause by up to a half to either side. Those that began together are then
    spread over a whole pause."""
    return pause * rng.uniform(0.5, 1.5)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses from `first` to `longest` seconds. By `jitter`, a part of a pause, each
    one varies to either side, so that many clients do not come together."""

    first: float
    longest: float
    jitter: float = 0.0

    def after(self, failures: int) -> float:
        """The pause after so many failures in a row.

        >>> trials = Backoff(1.0, 30.0)
        >>> [trials.after(failures) for failures in (1, 2, 3, 10, 10_000)]
        [1.0, 2.0, 4.0, 30.0, 30.0]
        """
        return min(self.longest, self.first * 2.0 ** min(failures - 1, 32))

    def longer(self, pause: float) -> float:
        """The pause that follows this one."""
        return min(self.longest, 2.0 * pause)

    def varied(self, pause: float, rng: Random) -> float:
        return pause * rng.uniform(1.0 - self.jitter, 1.0 + self.jitter)
