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

# So many clients, in means, and so many more than the mean, are no crowd. With 1.15
# twice as many connections move, as clients differ in what they take for the mean.
SLACK, FEW = 1.2, 2.0

# Seconds between two looks, of which each is at new reports. Twice as many after each
# look that finds no crowd.
PAUSE, LONGEST_PAUSE = 3.0, 60.0

# Backends that a client may leave for each that it connects to for another reason: a
# resize opens half as many connections more, at most, and then there is rest.
LEAVES = 0.5


class Crowding:
    """Owned by one client, which looks every so often."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._pause = PAUSE
        self._may_leave = 0.0

    def connected(self, backends: int) -> None:
        """To so many more, not because of a crowd. They soon tell their clients."""
        self._may_leave += LEAVES * backends
        self._pause = PAUSE

    def pause(self) -> float:
        """Seconds until the next look. They vary, so that clients look in turn."""
        return self._pause * self._rng.uniform(0.75, 1.25)

    def to_leave(self, clients: Mapping[str, int]) -> list[str]:
        """The addresses to leave, of those of the subset.

        `clients` says how many are connected to each that tells it.
        """
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
        del leaving[int(self._may_leave) :]
        self._may_leave -= len(leaving)
        return leaving

    def __repr__(self) -> str:
        return f"<looks every {self._pause:g} s, may leave {self._may_leave:g}>"


def _most(clients: Mapping[str, int]) -> float:
    """How many clients a backend may have and be no crowd.

    A backend with many clients is in many subsets. The harmonic mean makes up for
    that: on average it is that of all backends.

    >>> _most({"a": 20, "b": 20}), _most({"a": 2, "b": 2})
    (24.0, 4.0)
    """
    mean = len(clients) / sum(1.0 / max(1, count) for count in clients.values())
    return max(SLACK * mean, mean + FEW)
