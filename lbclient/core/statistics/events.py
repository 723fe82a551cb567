"""The last events of a channel, which the status page shows first.

Kept always, as the page is opened after the trouble began. Events are rare, and few.
"""

from collections import deque
from typing import NamedTuple

MOST = 100  # events. Ours: `lbclient inspect` shows the last ten, the page all


class Event(NamedTuple):
    """`about` is a backend's address, or what else it happened to."""

    at: float
    about: str
    what: str
    why: str


class Events:
    """Keeps the last events of a channel, for the status page. Owned by the channel's
    balancer."""

    def __init__(self) -> None:
        self._last: deque[Event] = deque(maxlen=MOST)

    def __repr__(self) -> str:
        return f"<{len(self._last)} events>"

    def add(self, now: float, about: str, what: str, why: str) -> None:
        self._last.append(Event(now, about, what, why))

    def newest_first(self) -> list[Event]:
        # A copy, as another thread may look.
        return list(reversed(list(self._last)))
