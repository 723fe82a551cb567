"""Which backends a client leaves because too many clients are connected to them.

Subsets that clients choose by chance, each for itself, are uneven: of 200 clients with
20 of 305 backends each, the busiest backend has 1.8 times as many as the mean, and the
idlest 0.4 times. A client cannot know the numbers of all backends, but those in its
subset tell theirs. So each leaves the crowded ones of its own, with a probability by
which just the excess goes, for the next in its order of preference.
"""

from collections.abc import Iterable, Mapping
from random import Random

from lbclient.core.backoff import Backoff
from lbclient.core.counting.median import median

# A backend is crowded from this many times the mean number of clients on, and from this
# many clients more than the mean. After a minute 200 clients of 305 backends have at
# most 1.22 times the mean. With 1.12 more connections move, as clients differ in what
# they take for the mean.
SLACK, FEW = 1.17, 2.0

# Times the median of the subset: a backend with fewer clients has just started, and is
# about to get more. By chance one of a hundred has as few.
NEWCOMER = 0.4

# Seconds between two looks, each at new reports. Longer after each look that finds no
# crowd.
LOOKS = Backoff(2.0, 60.0, jitter=0.25)
SOON = 1.0  # seconds until a client that left a crowd looks at the backends instead

# Backends that a client may leave for each one that it connects to for another reason:
# so a resize opens less than half as many connections again.
LEAVES = 0.3

# Backends that it may leave beyond that, if it came to them by leaving others.
DEBT = 2.0


class Crowding:
    """Chooses which crowded backends a client leaves. Owned by one client, which looks
    at intervals."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._pause = LOOKS.first
        self._may_leave = 0.0
        self._left = 0  # and not seen replaced yet
        self._untried = frozenset[str]()  # where it has come to since the last look

    def look_soon(self) -> None:
        """There are other backends, which soon tell their clients."""
        self._pause = LOOKS.first

    def pause(self) -> float:
        """Seconds until the next look. They vary, so that clients look in turn."""
        pause = SOON if self._untried else self._pause
        return LOOKS.varied(pause, self._rng)

    def replaced_by(self, addresses: Iterable[str]) -> None:
        """Connects to these instead of those that it has left."""
        self._untried = frozenset(addresses)

    def to_leave(self, clients: Mapping[str, int], connected: int) -> list[str]:
        """The addresses to leave, of those of the subset.

        `clients` says how many are connected to each that tells it, and `connected` to
        how many backends this one has connected since the last look.
        """
        others = connected - self._left
        self._left = max(0, -others)
        self._may_leave += LEAVES * max(0, others)
        untried, self._untried = self._untried, frozenset()
        if not clients:
            if not untried:
                self._pause = LOOKS.longer(self._pause)
            return []
        self._may_leave = min(self._may_leave, LEAVES * len(clients))
        most = _most(clients)
        crowded = {a: count for a, count in clients.items() if count > most}
        if not crowded:
            # Most probably all crowds are gone.
            self._may_leave = min(self._may_leave, self._may_leave / 2.0)
            self._left = 0  # also where a replacement was connected all the time
            self._pause = LOOKS.longer(self._pause)
            return []
        self._pause = LOOKS.first
        # By chance: if all clients of a crowd left, it would have none.
        chance = self._rng.random
        leaving = [
            address
            for address, count in crowded.items()
            if address not in untried and chance() * count < count - most
        ]
        del leaving[max(0, int(self._may_leave + chance())) :]
        # A crowd that this client has just joined by leaving another one it leaves.
        if self._may_leave > -DEBT:
            leaving += [address for address in crowded if address in untried]
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
