"""A backend's state for people: its reason, since when, and its last trouble."""

from lbclient.core.backends.pool import LOST
from lbclient.core.model import State


class Condition:
    """Keeps the reason of a backend's state and its last trouble, for display. Owned by
    a backend. Others read its fields; only its methods write them, but `last_failure`.

    `trouble` is why the connection was last lost. `last_failure` is the number of the
    last status that counts against the backend, and when a call ended with it; 0: none.
    """

    __slots__ = (
        "last_failure",
        "reason",
        "since",
        "trouble",
        "troubled_at",
    )

    def __init__(self, now: float) -> None:
        self.reason = "new"
        self.since = now
        self.trouble = ""
        self.troubled_at = 0.0
        self.last_failure = (0, 0.0)

    def changed(self, state: State, reason: str, now: float) -> None:
        """The backend is in another state."""
        self.reason, self.since = reason, now
        if state in LOST:
            self.trouble, self.troubled_at = reason, now

    def stays(self, reason: str) -> bool:
        """The state is the same, for this reason. Returns whether that is news."""
        is_news = reason != self.reason
        self.reason = reason
        return is_news

    def __repr__(self) -> str:
        return f"<{self.reason!r} since {self.since:.1f}>"
