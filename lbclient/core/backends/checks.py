"""Why a connection is in doubt, and when its next health check (CHECK) is due.

A connection is doubted when it has said nothing since it was made, when calls on it
miss their deadlines, and when calls on it are not answered. Then a CHECK goes over it.
Checks that are not answered come again.
"""

from enum import Enum

# Seconds; the longest pause between two checks of a connection on which calls are not
# answered, also beside a health stream that goes on. A server that is busy for minutes
# is not asked every health interval.
RAREST_CHECK = 30.0


class Doubt(Enum):
    """Why a connection is asked whether it lives. The order is that of strength."""

    NONE = 0
    CALLS_UNANSWERED = 1  # the state stays until a LOOK fails, too
    NEVER_HEARD = 2  # it has said nothing since it was made
    EXCLUDED = 3  # it gets no calls before it answers, whatever its health stream says


class Checks:
    """Says whether a connection is doubted, and when its next health check is due.
    Owned by a lifecycle. `cause` says in words why the connection is doubted.

    `is_unanswered` is set once the last check was not answered.
    """

    def __init__(self, interval: float) -> None:
        self.doubt = Doubt.NONE
        self.cause = ""
        self.is_unanswered = False
        self.due_at: float | None = None
        self._usual_interval = interval
        self._patience = self._pause = interval  # for one answer; until the next check

    def connected(self, now: float, patience: float) -> None:
        """A new connection owes a word; `patience` is how long one answer may take."""
        self._patience = self._pause = patience
        self.begin(Doubt.NEVER_HEARD, "connected; no health response yet")
        self.due_at = now + patience

    def begin(self, doubt: Doubt, cause: str) -> None:
        self.doubt, self.cause = doubt, cause

    def take_due(self, now: float) -> bool:
        """Whether a check is due; once for each."""
        if self.due_at is None or now < self.due_at:
            return False
        self.due_at = None
        return True

    def hurry(self, now: float) -> None:
        """Makes the first check of a new connection due at once."""
        if self.doubt is Doubt.NEVER_HEARD and not self.is_unanswered:
            self.due_at = now if self.due_at is None else min(now, self.due_at)

    def not_answered(self, now: float) -> None:
        """Comes again."""
        self.is_unanswered = True
        is_out = self.doubt is Doubt.EXCLUDED
        self.due_at = now + (self._usual_interval if is_out else self.slow_down())

    def answered_badly(self, now: float) -> None:
        """Goes on with checks of a backend that does not serve: nobody else tells when
        that changes."""
        self.is_unanswered = False
        self.due_at = now + self._usual_interval

    def slow_down(self) -> float:
        """The pause before the next check; each one is twice as long."""
        pause = self._pause
        self._pause = min(2 * pause, max(RAREST_CHECK, self._patience))
        return pause

    def calls_answered(self) -> None:
        self._pause = self._patience

    def is_late(self, since: float, now: float) -> bool:
        """Whether calls that were not answered since then are a reason to ask."""
        return now >= since + self._pause

    def end(self) -> None:
        """There is nothing to ask."""
        self.doubt, self.is_unanswered = Doubt.NONE, False
        self.due_at = None

    def clear(self) -> None:
        """The connection is gone."""
        self.end()
        self._patience = self._pause = self._usual_interval

    def __repr__(self) -> str:
        return f"<{self.doubt.name}: {self.cause!r}, due at {self.due_at}>"
