"""Averages and counts in which the past fades with time.

Reads never write: asking twice gives the same number, and a scrape of the metrics
cannot change a pick. `tau` is the time constant in seconds: after `tau` without
news a count has fallen to 1/e = 37 %.
"""

from math import exp


class Ewma:
    """A time-weighted mean of a signal that holds its value between samples.

    Corrected for its start: the first sample is the mean, not a fraction of it.
    """

    __slots__ = ("_mass", "_sum", "_updated_at", "tau")

    def __init__(self, tau: float) -> None:
        self.tau = tau
        self._sum = 0.0
        self._mass = 0.0
        self._updated_at: float | None = None

    @property
    def value(self) -> float:
        """The mean, 0.0 before the first sample."""
        return self._sum / self._mass if self._mass else 0.0

    def update(self, sample: float, now: float) -> None:
        """Takes `sample` as the signal's value since the update before."""
        if self._updated_at is None:
            self._updated_at = now
            # Enough to be the value until a sample with a duration comes.
            self._sum, self._mass = sample * 1e-9, 1e-9
            return
        elapsed = max(0.0, now - self._updated_at)
        self._updated_at = now
        kept = exp(-elapsed / self.tau)
        self._sum = self._sum * kept + sample * (1.0 - kept)
        self._mass = self._mass * kept + (1.0 - kept)


class DecayingCount:
    """How many happened lately: each one counts 1 at first, 1/e after `tau`."""

    __slots__ = ("_count", "_updated_at", "tau")

    def __init__(self, tau: float) -> None:
        self.tau = tau
        self._count = 0.0
        self._updated_at = 0.0

    def add(self, now: float, amount: float = 1.0) -> None:
        self._count = self.read(now) + amount
        self._updated_at = now

    def read(self, now: float) -> float:
        if self._count == 0.0:
            return 0.0
        return self._count * exp(min(0.0, self._updated_at - now) / self.tau)
