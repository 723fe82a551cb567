"""Tells when a client wants no more than what backends accepted of it in an overload.

A throttle remembers two minutes of an overload. If the demand that caused it is gone,
most of what the client then refuses would be accepted. So what it wants now is compared
with what was accepted lately, of all criticalities together: they share the backends'
capacity, and the highest are served first.
"""

from math import exp

from lbclient.core.counting.ewma import DecayingCount
from lbclient.core.criticality import Criticality

# Ours; tests/laws/test_fallen_demand.py plays them.
NOW = 0.5  # seconds, of which what is wanted now is the mean
LATELY = 20.0  # seconds, likewise of what was accepted
# Seconds since the last refusal. At many requests a second so long a time has none only
# where the overload is over; at few one more must have been accepted since.
QUIET = 0.5


class FallenDemand:
    """Compares what a client wants with what was accepted of it. Owned by a throttle.

    `want` for each request that is to be sent; `accept` and `refuse` for each outcome.
    """

    __slots__ = ("_accepted", "_began_at", "_in_all", "_k", "_refused", "_wanted")

    def __init__(self, k: float) -> None:
        self._k = k
        self._began_at: float | None = None
        self._wanted = [DecayingCount(NOW) for _ in Criticality]
        self._accepted = DecayingCount(LATELY)
        self._in_all = 0  # accepted
        # By criticality: when it or a higher one was refused last, and what was
        # accepted in all by then.
        self._refused = [(0.0, 0) for _ in Criticality]

    def want(self, criticality: Criticality, now: float) -> None:
        self._wanted[criticality].add(now)

    def accept(self, now: float) -> None:
        self._accepted.add(now)
        self._in_all += 1

    def refuse(self, criticality: Criticality, now: float) -> None:
        if self._began_at is None:
            self._began_at = now
        at_last = now, self._in_all
        self._refused[: criticality + 1] = [at_last] * (criticality + 1)

    def fits(self, criticality: Criticality, now: float) -> bool:
        """Whether all that is wanted of this criticality and those above it is at most
        K times what was accepted of all, and none of them was refused since some time.
        """
        refused_at, accepted = self._refused[criticality]
        is_quiet = now >= refused_at + QUIET and self._in_all > accepted
        if self._began_at is None or not is_quiet:
            return False
        wanted = sum(count.read(now) for count in self._wanted[criticality:]) / NOW
        known = 1.0 - exp((self._began_at - now) / LATELY)  # of that mean
        return wanted <= self._k * self._accepted.read(now) / (LATELY * known)

    def __repr__(self) -> str:
        return f"<{self._in_all} were accepted>"
