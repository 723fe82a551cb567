"""Latencies as counts per bucket: constant memory, and sums over tasks stay true.

Quantiles of many tasks cannot be averaged, bucket counts can be added; hence the
bounds are the same everywhere.
"""

from bisect import bisect_left

# Seconds. Two or three buckets a decade, from the cost of a call on loopback to the
# longest deadline that anybody sets on a unary call.
# fmt: off
DEFAULT_BOUNDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
    0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)
# fmt: on


class Histogram:
    """Counts what was observed up to each bound.

    `counts[i]` is of the bucket that ends at `bounds[i]`, that bound included; the
    last count is of all that was longer. They do not accumulate.

    >>> h = Histogram((0.1, 1.0))
    >>> for seconds in (0.1, 0.2, 7.0): h.observe(seconds)
    >>> h.counts, round(h.sum, 1)
    ([1, 1, 1], 7.3)
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...] = DEFAULT_BOUNDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds

    def __repr__(self) -> str:
        return f"<{sum(self.counts)} observed, {self.sum:.3f} s in all>"
