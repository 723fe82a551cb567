"""Which backends a client leaves because more clients are connected to them than to
others.

Subsets that clients choose by chance, each for itself, are uneven: of 200 clients with
20 of 305 backends each, the busiest backend has 1.8 times as many as the mean, and the
idlest 0.4 times. A client cannot know the numbers of all backends, but those in its
subset tell theirs. So each leaves the crowded ones of its own, with a probability by
which just the excess goes, for the next in its order of preference.
"""

from collections.abc import Mapping
from random import Random

from lbclient.core.median import median

# So many clients, in means, and so many more than the mean, are no crowd. Of 32 fleets
# of 200 clients and 305 backends one has 1.3 times the mean after a minute; with 1.2 a
# quarter have. With 1.12 more connections move, as clients differ in what they take for
# the mean.
SLACK, FEW = 1.17, 2.0

# Whoever has fewer, in medians of the subset, has just started: clients are about to
# come to it. By chance one of a hundred has as few.
NEWCOMER = 0.4

# Seconds between two looks, of which each is at new reports. Twice as many after each
# look that finds no crowd.
PAUSE, LONGEST_PAUSE = 2.0, 60.0

# Backends that a client may leave for each that it connects to for another reason: what
# a resize opens is half as many again, at most, and then there is rest.
LEAVES = 0.5


class Crowding:
    """Owned by one client, which looks every so often."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._pause = PAUSE
        self._may_leave = 0.0
        self._left = 0  # and not seen replaced yet

    def look_soon(self) -> None:
        """There are other backends, which soon tell their clients."""
        self._pause = PAUSE

    def pause(self) -> float:
        """Seconds until the next look. They vary, so that clients look in turn."""
        return self._pause * self._rng.uniform(0.75, 1.25)

    def to_leave(self, clients: Mapping[str, int], connected: int) -> list[str]:
        """The addresses to leave, of those of the subset.

        `clients` says how many are connected to each that tells it, and `connected` to
        how many backends this one has connected since the last look.
        """
        others = connected - self._left
        self._left = max(0, -others)
        self._may_leave += LEAVES * max(0, others)
        if not clients:
            self._pause = min(2.0 * self._pause, LONGEST_PAUSE)
            return []
        self._may_leave = min(self._may_leave, LEAVES * len(clients))
        most = _most(clients)
        crowded = {a: count for a, count in clients.items() if count > most}
        if not crowded:
            self._may_leave /= 2.0  # what was to be done is done, most probably
            self._pause = min(2.0 * self._pause, LONGEST_PAUSE)
            return []
        self._pause = PAUSE
        # If all left who know of a crowd nobody would stay.
        chance = self._rng.random
        leaving = [a for a, count in crowded.items() if chance() * count < count - most]
        del leaving[max(0, int(self._may_leave + chance())) :]
        self._may_leave -= len(leaving)
        self._left += len(leaving)
        return leaving

    def __repr__(self) -> str:
        return f"<looks every {self._pause:g} s, may leave {self._may_leave:g}>"


def _most(clients: Mapping[str, int]) -> float:
    """How many clients a backend may have and be no crowd.

    A backend with many clients is in many subsets. The harmonic mean makes up for
    that: on average it is that of all backends. One that has just started has nearly
    none, and would make the mean too small: it counts as 0.4 of the median.

    >>> _most({"a": 20, "b": 20}), _most({"a": 2, "b": 2})
    (23.4, 4.0)
    """
    least = max(1.0, NEWCOMER * median(clients.values()))
    mean = len(clients) / sum(1.0 / max(least, count) for count in clients.values())
    return max(SLACK * mean, mean + FEW)
