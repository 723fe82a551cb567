"""A token bucket: how often something may be done."""


class Allowance:
    """Allows `most` at once, and `rate` a second after that. It begins full.

    >>> answers = Allowance(most=2, rate=4.0)
    >>> [answers.take(now) for now in (5.0, 5.0, 5.0, 5.25, 5.25)]
    [True, True, False, True, False]
    """

    __slots__ = ("_filled_at", "_left", "_most", "_rate")

    def __init__(self, most: float, rate: float) -> None:
        self._left = self._most = float(most)
        self._rate = rate
        self._filled_at = 0.0

    def has_one(self, now: float) -> bool:
        left = self._left + (now - self._filled_at) * self._rate
        self._left, self._filled_at = min(self._most, left), now
        return self._left >= 1.0

    def spend(self) -> None:
        """Takes one token, whether there is one or not."""
        self._left -= 1.0

    def take(self, now: float) -> bool:
        """Takes one token if there is one; returns whether there was."""
        if not self.has_one(now):
            return False
        self.spend()
        return True

    def __repr__(self) -> str:
        return f"<{self._left:.1f} of {self._most:g}, {self._rate:g} a second>"
