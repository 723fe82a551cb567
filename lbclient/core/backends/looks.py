"""When to look at a backend (LOOK): to check its health over a new, short connection.

A backend without a connection is looked at seldom, and one that cannot be reached less
and less often. If a connection does not answer a health check, a look tells whether the
connection or the backend is at fault.
"""

from random import Random

LOOK_PERIOD = 120.0  # seconds between looks over TCP, at least; as the slowest by UDP
FIRST_LOOK = 5.0  # seconds: between the first looks at one that cannot be reached
LOOK_SPREAD = 0.25  # of such a time, on top: clients that lost UDP together look apart


class Looks:
    """Says when the next LOOK at a backend is due. Owned by a lifecycle."""

    def __init__(self, rng: Random) -> None:
        self.due_at: float | None = None
        self._rng = rng
        self._period = FIRST_LOOK
        self._began_at: float | None = None  # of the look under way

    def take_due(self, now: float) -> bool:
        """Whether a look is due, which has then begun."""
        if self.due_at is None or now < self.due_at:
            return False
        self.due_at, self._began_at = None, now
        return True

    def put_off(self) -> None:
        """None is due, though one may be under way."""
        self.due_at = None

    def restart(self) -> None:
        """The next looks are as close to each other as the first ones."""
        self._period = FIRST_LOOK

    def clear(self) -> None:
        """The connection is gone."""
        self.due_at = self._began_at = None

    # --- without a connection -------------------------------------------------

    def soon(self, now: float) -> None:
        """Makes a look due soon if none is due; clients look at different times."""
        if self.due_at is None:
            self.due_at = now + self._rng.random() * FIRST_LOOK

    def later(self, now: float, is_gone: bool = False) -> None:
        """Puts the next look off: far, or for a backend that is gone less far, but
        further each time."""
        period = LOOK_PERIOD
        if is_gone:
            period = min(self._period, LOOK_PERIOD)
            self._period = 2 * period
        self.due_at = now + period * (1 + LOOK_SPREAD * self._rng.random())

    # --- beside a connection --------------------------------------------------

    def at_once(self, now: float) -> None:
        """Unless one is due or under way."""
        if self.due_at is None and self._began_at is None:
            self.due_at = now

    def end(self) -> float | None:
        """When the look that is over began; None if nobody wants to know any more."""
        began_at, self._began_at = self._began_at, None
        return began_at

    def again(self, began_at: float, now: float, is_there: bool) -> None:
        """After one without an answer. `is_there`: but the connection was made."""
        if not is_there:
            self._period = FIRST_LOOK
        self.due_at = max(now, began_at + self._period)
        self.due_at += FIRST_LOOK * LOOK_SPREAD * self._rng.random()
        if is_there:
            self._period = min(2 * self._period, LOOK_PERIOD)

    def __repr__(self) -> str:
        return f"<due at {self.due_at}, every {self._period:.0f} s>"
