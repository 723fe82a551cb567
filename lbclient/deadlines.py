"""How much time requests have until their deadline."""

ASSUMED = 1.0  # seconds that requests have, as long as none had a deadline
MEMORY = 16  # requests


class Deadlines:
    """The harmonic mean of late: that of a second and an hour is two seconds.

    Another mean would be no use to those who have a second.
    """

    def __init__(self) -> None:
        self._hurry = 1.0 / ASSUMED
        self._known = 0  # up to MEMORY

    def observe(self, seconds: float) -> None:
        if seconds > 0.0:
            self._known = min(self._known + 1, MEMORY)
            self._hurry += (1.0 / seconds - self._hurry) / self._known

    @property
    def typical(self) -> float:
        return 1.0 / self._hurry

    def __repr__(self) -> str:
        return f"<{self.typical:.3g} s>"
