"""Counts of the last requests by kind, which fade with each request."""

from math import exp

STEP = 32  # requests between two looks at the counts


class Tally:
    """How many of the last requests were of each kind, fading with each request.

    By requests, not seconds: in a spike the past must be forgotten faster. It begins
    with one of each kind.
    """

    __slots__ = ("_kept", "_new", "_step", "counts")

    def __init__(self, kinds: int, memory: int) -> None:
        self.counts = [1.0] * kinds
        self._new = [0] * kinds
        self._step = 0
        self._kept = exp(-STEP / memory)

    def add(self, kind: int) -> bool:
        """True: `counts` are new."""
        self._new[kind] += 1
        self._step += 1
        if self._step < STEP:
            return False
        pairs = zip(self.counts, self._new, strict=True)
        self.counts = [count * self._kept + new for count, new in pairs]
        self._new = [0] * len(self.counts)
        self._step = 0
        return True

    def add_many(self, kind: int, times: int) -> None:
        """What so many calls of `add` come to, at the cost of one."""
        kept = self._kept ** (times / STEP)
        most = STEP / (1.0 - self._kept)
        self.counts = [count * kept for count in self.counts]
        self.counts[kind] += most * (1.0 - kept)
