"""How long answers to a method take, relative to what is usual of each backend.

A machine may be slow by nature, or far away, so each backend has a usual latency of its
own. How far single answers are from it is much alike on all backends, and kept in one
histogram: it tells how often a healthy backend is late by so much. Where all become
slow at once, all their answers are late, and being late is no longer rare.
"""

from math import log

WIDTH = log(1.25)  # of a bin, in logs of latencies
MIDDLE, BINS = 30, 80  # answers from 800 times faster to 70,000 times slower
MEMORY = 1000.0  # answers, of all backends
FADE = 0.8  # what is left of all counts once there are as many


class UsualLatencies:
    """The distances of answers from what is usual of their backends, as logarithms.
    Owned by a `MethodLatencies`."""

    __slots__ = ("_bins", "_sum", "total")

    def __init__(self) -> None:
        self._bins = [0.0] * BINS
        self._sum = 0.0
        self.total = 0.0

    def add(self, distance: float) -> None:
        self._bins[_bin(distance)] += 1.0
        self._sum += distance
        self.total += 1.0
        if self.total >= MEMORY:
            self._bins = [count * FADE for count in self._bins]
            self._sum *= FADE
            self.total *= FADE

    @property
    def mean(self) -> float:
        """0.0 or near it, while all backends are as usual."""
        return self._sum / self.total if self.total else 0.0

    def share_beyond(self, distance: float) -> float:
        """The share of answers that are as late, or later.

        As if there had been one more that is, and one that is not.
        """
        return (sum(self._bins[_bin(distance) :]) + 1.0) / (self.total + 2.0)

    def __repr__(self) -> str:
        return f"<{self.total:.0f} answers, {self.mean:+.2f} in the mean>"


def _bin(distance: float) -> int:
    return min(BINS - 1, max(0, MIDDLE + int(distance // WIDTH)))
