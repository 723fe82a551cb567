"""How many backends a client needs so that none has much of its traffic from it.

A subset that is large enough for most clients is too small for one that sends much: a
backend that is in the subsets of a few such clients has more to do than it can, and
each of them sees none that is idle. So a client's subset grows until no more than a
tenth of its backends' traffic is its own. SRE book, ch. 20, "Picking the Right Subset":
the size has to be larger where few clients send, or some send more than others.
"""

from collections.abc import Iterable
from math import ceil

from lbclient.core.load import Load

PAUSE = 10.0  # seconds between two looks; servers smooth reports over 2 s

# A fleet that has little to do needs no more connections.
LEAST_UTILIZATION = 0.2

SHARE = 0.1  # of what a backend serves, from one client: its neighbours even it out
FASTEST = 1.5  # times as many at a time; the next reports tell whether it is enough
LOW = 0.5  # of the share, below which it shrinks
SHRINKS = 0.9  # times as many at a time
SHRINK_PAUSE = 300.0  # seconds between two times, and after it grew


class SubsetSize:
    """Computes how many backends a channel's subset needs. Owned by a channel. `size`
    stays within the bounds that it was made with."""

    def __init__(self, least: int, most: int) -> None:
        self.size = least
        self._least, self._most = least, max(least, most)
        self._changed_at: float | None = None
        self._share = 0.0  # as of the last look

    def observe(
        self,
        own: float,
        loads: Iterable[Load],
        ready: int,
        backends: int,
        now: float,
    ) -> int:
        """Returns the new size.

        `own` are the requests of this client that its backends served, a second. So
        many of these are `ready`, and `loads` are those of them that speak for
        themselves alone. There are so many `backends` in all.
        """
        traffic = traffic_of(loads, ready)
        if traffic is None:
            return self.size
        served, utilization = traffic
        is_idle = utilization < LEAST_UTILIZATION
        return self.follow(0.0 if is_idle else own, served, backends, now)

    def follow(self, own: float, served: float, backends: int, now: float) -> int:
        """Returns the new size. `served` are the requests of all clients, a second."""
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

    def is_least(self) -> bool:
        """Whether it cannot shrink."""
        return self.size == self._least

    def _change(self, size: int, now: float) -> None:
        self.size = min(self._most, max(self._least, size))
        self._changed_at = now
        self._share = 0.0

    def __repr__(self) -> str:
        return f"<{self.size} of {self._least} to {self._most}>"


def traffic_of(loads: Iterable[Load], ready: int) -> tuple[float, float] | None:
    """Requests a second that ready backends serve together, and their mean utilization.

    As by those that report both; None where fewer than half of them do.
    """
    told = [
        (load.report.qps, load.utilization())
        for load in loads
        if load.report is not None and load.report.qps > 0.0
    ]
    if not told or 2 * len(told) < ready:
        return None
    rates, utilizations = zip(*told, strict=True)
    return sum(rates) * ready / len(told), sum(utilizations) / len(told)
