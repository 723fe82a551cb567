"""How much time requests have, from when they come to this task to their deadline."""

ASSUMED = 1.0  # seconds that a request without a deadline has
MEMORY = 16  # requests: one counts e times less when as many more have come


class Deadlines:
    """The harmonic mean of the time that the last requests had.

    The harmonic mean of a second and an hour is two seconds: requests that have an hour
    must not make those wait that have a second. A request without a deadline counts as
    if it had one second. Otherwise a few requests with deadlines, or some that came an
    hour ago, would decide alone how long all others may wait.
    """

    def __init__(self) -> None:
        self._hurry = 1.0 / ASSUMED  # the mean of 1 / seconds
        self._known = 0  # up to MEMORY

    def observe(self, seconds: float | None) -> None:
        """Takes the time that one request has; None: it has no deadline."""
        if seconds is None:
            seconds = ASSUMED
        if seconds > 0.0:
            self._known = min(self._known + 1, MEMORY)
            self._hurry += (1.0 / seconds - self._hurry) / self._known

    @property
    def typical(self) -> float:
        return 1.0 / self._hurry

    def __repr__(self) -> str:
        return f"<{self.typical:.3g} s>"
