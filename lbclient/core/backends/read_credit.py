"""How many messages of a health or load stream are read: no more than are of use."""

# Messages a second, and how many at once. One of lbclient's servers reports 10 times a
# second at most. A client that stood still for 20 s finds what came meanwhile.
RATE, BURST = 20.0, 200.0


class ReadCredit:
    """Counts what may be read of one method's streams. Owned by the streams of a
    connection. `is_spent`: the last message that was asked for may not be read yet.

    >>> credit = ReadCredit()
    >>> sum(credit.take(now=0.0) for _ in range(1000)), credit.is_spent
    (200, True)
    >>> sum(credit.take(now=0.25) for _ in range(1000))
    5
    """

    __slots__ = ("_at", "_left", "is_spent")

    def __init__(self) -> None:
        self.is_spent = False
        self._left = BURST
        self._at = 0.0

    def take(self, now: float) -> bool:
        """Returns whether a message may be read, which then counts."""
        self._left = min(BURST, self._left + (now - self._at) * RATE)
        self._at = now
        self.is_spent = self._left < 1.0
        if not self.is_spent:
            self._left -= 1.0
        return not self.is_spent

    def __repr__(self) -> str:
        return f"<{self._left:.0f} messages may be read>"
