"""How often one kind of line may be logged. A line that comes thousands of times a
second fills a disk, and hides all others."""

from math import inf

PERIOD = 60.0  # seconds. Ours: who looks sees it soon, and a day has 1,440 lines


class LineLimit:
    """Allows one line in `PERIOD`, and counts those that are left out.

    >>> limit = LineLimit()
    >>> [limit.take(now) for now in (5.0, 5.1, 64.9, 65.0)]
    [0, None, None, 2]
    """

    __slots__ = ("_left_out", "_next_at")

    def __init__(self) -> None:
        self._next_at = -inf
        self._left_out = 0

    def take(self, now: float) -> int | None:
        """How many lines were left out since the last one that was logged; None: this
        one is left out, too."""
        if now < self._next_at:
            self._left_out += 1
            return None
        self._next_at = now + PERIOD
        left_out, self._left_out = self._left_out, 0
        return left_out

    def __repr__(self) -> str:
        return f"<{self._left_out} left out>"
