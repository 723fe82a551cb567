"""How many backends a client needs so that none has much of its traffic from it.

A subset that is large enough for most clients is too small for one that sends much: a
backend that is in the subsets of a few such clients has more to do than it can, and
each of them sees none that is idle. So a client's subset grows until no more than a
tenth of its backends' traffic is its own. SRE book, ch. 20, "Picking the Right Subset":
the size has to be larger where few clients send, or some send more than others.
"""

from math import ceil

SHARE = 0.1  # of what a backend serves, from one client: its neighbours even it out
FASTEST = 1.5  # times as many at a time; the next reports tell whether it is enough
LOW = 0.5  # of the share, below which it shrinks
SHRINKS = 0.9  # times as many at a time
SHRINK_PAUSE = 300.0  # seconds between two times, and after it grew


class SubsetSize:
    """Owned by a channel. `size` is within the bounds that it was made with."""

    def __init__(self, least: int, most: int) -> None:
        self.size = least
        self._least, self._most = least, max(least, most)
        self._changed_at: float | None = None
        self._share = 0.0  # as of the last look

    def observe(self, own: float, served: float, backends: int, now: float) -> int:
        """Returns the new size.

        `own` are the requests of this client that its backends served, a second, and
        `served` those of all clients. There are so many `backends` in all.
        """
        if self._changed_at is None:
            self._changed_at = now
        before, self._share = self._share, min(1.0, own / served) if served else 0.0
        # Reports are smoothed otherwise than what is counted here: once may be chance.
        share = min(before, self._share)
        if share > SHARE:
            wanted = min(ceil(self.size * share / SHARE), ceil(self.size * FASTEST))
            self._change(max(self.size, min(wanted, backends)), now)
        elif self._share < LOW * SHARE and now >= self._changed_at + SHRINK_PAUSE:
            self._change(int(self.size * SHRINKS), now)
        return self.size

    def _change(self, size: int, now: float) -> None:
        self.size = min(self._most, max(self._least, size))
        self._changed_at = now
        self._share = 0.0

    def __repr__(self) -> str:
        return f"<{self.size} of {self._least} to {self._most}>"
