"""Evidence from calls that a connection lives or is dead: answers, missed deadlines."""

# Deadlines in a row, with nothing served in between, until a backend must say how it
# is. With one in ten missed for other reasons, five in a row are one in 100,000.
MISSES = 5


class CallAnswers:
    """Counts missed deadlines in a row, and notes since when an answer is due. Owned by
    a lifecycle. While calls are in flight, an answer is due since `owed_since`."""

    def __init__(self) -> None:
        self._misses = 0
        self._served = 0  # when the last deadline was missed
        self._answered = 0  # when somebody last looked
        self.owed_since = 0.0

    def missed(self, served: int) -> int:
        """How many deadlines were missed in a row; `served` counts all calls that the
        backend ever served."""
        if served != self._served:
            self._served, self._misses = served, 0
        self._misses += 1
        return self._misses

    def forgive(self) -> None:
        self._misses = 0

    def heard(self, now: float) -> None:
        """The backend lives: an answer is owed from now on."""
        self.owed_since = now

    def are_owed(self, in_flight: int, answered: int, now: float) -> bool:
        """Whether calls wait, and none was answered since somebody last looked."""
        if in_flight and answered == self._answered:
            return True
        self._answered, self.owed_since = answered, now
        return False

    def __repr__(self) -> str:
        return f"<{self._misses} missed, answers owed since {self.owed_since}>"
