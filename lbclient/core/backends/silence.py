"""Whether a backend that owes health reports has been silent for too long.

A stream that never carried a load owes no reports: servers that are not ours speak when
something changes. Silence first costs a backend its calls. If it lasts, a new
connection replaces the old one.
"""

from random import Random

from lbclient.core.backoff import Backoff

# Health intervals from silence to a new connection, which replaces the old one. A
# healed network carries on with the old one only when TCP tries again, which after a
# minute's silence may take another. Of a backend that each time is silent again the
# pauses grow; by the jitter not all clients of one that woke come together.
REDIAL_AFTER = 2
LONGEST = 16
JITTER = 0.25

# Of an interval: how long an overdue report is waited for before the backend counts as
# silent. If our event loop stood still until now, the report has come and is read in
# the loop's next turns.
UNREAD = 1 / 20


class Silence:
    """Detects a backend whose health reports are overdue. Owned by a lifecycle.
    `interval` is how long the backend may be silent."""

    def __init__(self, interval: float, rng: Random) -> None:
        self.interval = self._usual_interval = interval
        self._pauses = Backoff(REDIAL_AFTER * interval, LONGEST * interval, JITTER)
        self._pause = self._pauses.first
        self._rng = rng
        self._judge_at: float | None = None
        self._redial_at: float | None = None
        self._is_overdue = False

    def heard(self, has_report: bool, now: float) -> None:
        """A word on the health stream, with a load or without."""
        if not has_report:
            self._judge_at = self._redial_at = None
        elif self._judge_at is None:
            self._redial_at = None
            self._expect(now + self.interval)

    def answered(self, now: float) -> None:
        """A health check was answered, perhaps while the stream is silent."""
        if self._redial_at is not None:
            self._redial_at = None
            self._expect(now + self.interval)

    def owes_nothing(self) -> None:
        self._judge_at = None

    def expect_every(self, interval: float, now: float) -> None:
        self.interval = interval
        if self._judge_at is not None:
            self._expect(now + interval)

    def _expect(self, judge_at: float) -> None:
        self._judge_at, self._is_overdue = judge_at, False

    def is_judged(self) -> bool:
        """Whether reports are owed, or overdue."""
        return self._judge_at is not None or self._redial_at is not None

    def due_at(self) -> float | None:
        """When a report is overdue or a new connection is; never both."""
        return self._redial_at if self._judge_at is None else self._judge_at

    def is_due(self, now: float) -> bool:
        """Whether a report is overdue, so that `judge` is wanted."""
        return self._judge_at is not None and now >= self._judge_at

    def judge(self, now: float, reported_at: float) -> float | None:
        """How long the backend has been silent, if that is too long: frozen,
        overloaded or cut off. `reported_at` is when it last told its load."""
        due, self._judge_at = self._judge_at, None
        assert due is not None
        if now < reported_at + self.interval:
            self._expect(reported_at + self.interval)
            if now < reported_at + self.interval * 3 / 4:
                self._pause = self._pauses.first  # it said more than its first word
            return None
        if now - due > self.interval / 4:
            # It was us who stood still; its word may lie unread.
            self._judge_at, self._is_overdue = now + self.interval / 2, True
            return None
        if not self._is_overdue:
            self._judge_at, self._is_overdue = now + self.interval * UNREAD, True
            return None
        self._redial_at = now + self._pauses.varied(self._pause, self._rng)
        self._pause = self._pauses.longer(self._pause)
        return now - reported_at

    def is_too_long(self, now: float) -> bool:
        """Whether a new connection is due."""
        return self._redial_at is not None and now >= self._redial_at

    def clear(self) -> None:
        """The connection is gone."""
        self._judge_at = self._redial_at = None
        self.interval = self._usual_interval

    def __repr__(self) -> str:
        return f"<judged at {self._judge_at}, redials at {self._redial_at}>"
