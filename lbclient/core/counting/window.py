"""Counts what happened within the last minutes, and not a bucket longer.

A ring of buckets with running totals, so memory and the cost of a count are constant.
The oldest bucket goes as a whole: the window's true length is between `span` and one
bucket less.
"""

from math import inf

BUCKETS = 60  # in a window: of two minutes each bucket has two seconds


class Window:
    """Several counts over the last `span` seconds. Its owner alone writes.

    `totals` is as of the last write; `turn` brings it up to date once `now` has come
    to `ends_at`, and whoever counts at every call asks for that first. Time that goes
    back stands still.
    """

    __slots__ = ("_at", "_open", "_ring", "_width", "ends_at", "totals")

    def __init__(self, span: float, counts: int, buckets: int = BUCKETS) -> None:
        self._width = span / buckets
        self._ring = [[0] * counts for _ in range(buckets)]
        self._at = 0
        self._open = self._ring[0]
        self.totals = [0] * counts
        self.ends_at = -inf  # of the open bucket

    def add(self, which: int, now: float) -> None:
        if now >= self.ends_at:
            self.turn(now)
        self._open[which] += 1
        self.totals[which] += 1

    def turn(self, now: float) -> None:
        """Opens the bucket of `now`, and drops those that are too old for it."""
        steps = self._steps(now)
        for _ in range(min(steps, len(self._ring))):
            self._at = (self._at + 1) % len(self._ring)
            bucket = self._ring[self._at]
            for which, count in enumerate(bucket):
                self.totals[which] -= count
                bucket[which] = 0
        self._open = self._ring[self._at]
        if steps >= len(self._ring):
            self.ends_at = now + self._width
        else:
            self.ends_at += steps * self._width

    def read(self, now: float) -> list[int]:
        """The totals at `now`, for people to look at: changes nothing."""
        totals = list(self.totals)
        for step in range(min(self._steps(now), len(self._ring))):
            bucket = self._ring[(self._at + 1 + step) % len(self._ring)]
            totals = [total - gone for total, gone in zip(totals, bucket, strict=True)]
        return totals

    def clear(self) -> None:
        for bucket in self._ring:
            bucket[:] = [0] * len(bucket)
        self.totals = [0] * len(self.totals)

    def _steps(self, now: float) -> int:
        if now < self.ends_at:
            return 0
        return int(min((now - self.ends_at) / self._width, len(self._ring))) + 1

    def __repr__(self) -> str:
        return f"<{self.totals} in {self._width * len(self._ring):g} s>"
