"""Tells when a client's demand has fallen to what backends accepted in an overload.

A throttle remembers two minutes of an overload. If the demand that caused it is gone,
most of what the client still refuses would be accepted. So the present demand is
compared with what was accepted lately, of all criticalities together: they share the
backends' capacity, and the highest are served first.
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
# Backends that are not overloaded may refuse some all the same, as a limit of requests
# at a time does. Once the client holds nothing back, it goes on so while at most this
# part of the share of its requests is refused that would be if demand were K times what
# is accepted.
TOLERATED = 0.7
SPARE = 16.0  # refusals; how many more than that may come at once


class FallenDemand:
    """Compares what a client wants with what was accepted of it. Owned by a throttle.

    Call `want` for each request that is to be sent, and `accept` or `refuse` for each
    outcome.
    """

    __slots__ = ("_accepted", "_began_at", "_gain", "_in_all", "_k", "_refused",
                 "_spare", "_wanted")  # fmt: skip

    def __init__(self, k: float) -> None:
        self._k = k
        self._began_at: float | None = None
        self._wanted = [DecayingCount(NOW) for _ in Criticality]
        self._accepted = DecayingCount(LATELY)
        self._in_all = 0  # accepted
        # By criticality: when it or a higher one was refused last, and what was
        # accepted in all by then.
        self._refused = [(0.0, 0) for _ in Criticality]
        # By criticality: so many more, of it or higher ones, may be refused before it
        # is held back.
        self._spare = [0.0 for _ in Criticality]
        tolerated = TOLERATED * (1.0 - 1.0 / k)
        self._gain = tolerated / (1.0 - tolerated)  # refusals for one that is accepted

    def want(self, criticality: Criticality, now: float) -> None:
        self._wanted[criticality].add(now)

    def accept(self, criticality: Criticality, now: float) -> None:
        self._accepted.add(now)
        self._in_all += 1
        spare = self._spare[criticality]
        if spare or now >= self._refused[criticality][0] + QUIET:
            self._spare[criticality] = min(SPARE, spare + self._gain)

    def refuse(self, criticality: Criticality, now: float) -> None:
        if self._began_at is None:
            self._began_at = now
        for lower in range(criticality + 1):  # which come after it
            self._spare[lower] = max(0.0, self._spare[lower] - 1.0)
        at_last = now, self._in_all
        self._refused[: criticality + 1] = [at_last] * (criticality + 1)

    def fits(self, criticality: Criticality, now: float) -> bool:
        """Whether nothing of this criticality needs to be held back any more.

        The demand of it and of higher ones is at most K times what was accepted of all,
        and either none of them was refused for a while, or few were (see TOLERATED).
        """
        if self._began_at is None or now <= self._began_at:
            return False
        refused_at, accepted = self._refused[criticality]
        is_quiet = now >= refused_at + QUIET and self._in_all > accepted
        if not (is_quiet or self._spare[criticality]):
            return False
        wanted = sum(count.read(now) for count in self._wanted[criticality:]) / NOW
        known = 1.0 - exp((self._began_at - now) / LATELY)  # of that mean
        return wanted <= self._k * self._accepted.read(now) / (LATELY * known)

    def __repr__(self) -> str:
        return f"<{self._in_all} were accepted>"
