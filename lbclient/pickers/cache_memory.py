"""What each backend has probably cached: the keys of calls that were sent there.

A key is forgotten as the backend forgets: how likely it is still there is a function of
how many other keys went there since its last call, `kept`. That function is learned,
for no backend tells the size of its cache: see `learn`.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

MOST_KNOWN = 65_536  # keys; with 40 characters and 4 backends each some 30 MB
STEPS = 20  # of distance, an octave each; 2^20 keys are more than are known
LEARNING = 0.1  # of what one call says of a distance, where nothing else is doubtful


class CachedOn(NamedTuple):
    """What one backend has of a call's keys: how many of them by expectation; of how
    many it had all once; and the distance of the most specific of these, as a step,
    with how many keys have the same."""

    expected: float
    once: int
    step: int
    alike: int


NOTHING = CachedOn(0.0, 0, 0, 0)


class CacheMemory:
    """Remembers which backend was sent which keys. Owned by a picker.

    Backends are known by their numbers. `clocks` counts the keys that each had to make.
    """

    def __init__(self) -> None:
        self._sent: OrderedDict[str, dict[int, float]] = OrderedDict()
        self.clocks: dict[int, float] = {}
        self.kept = [1.0] * (STEPS + 1)

    def find(self, keys: Sequence[str]) -> tuple[dict[int, CachedOn], int]:
        """By backend, what it has of these keys; and of how many any backend has all.

        A key counts only where all that are less specific were: as with the prefix of a
        prompt. O(keys x backends that have them).
        """
        sent, clocks, kept = self._sent, self.clocks, self.kept
        found: dict[int, list[float]] = {}
        count = 0
        for key in reversed(keys):
            holders = sent.get(key)
            if holders is None:
                break
            count += 1
            is_alive = False
            for number, at in holders.items():
                if number not in clocks:
                    continue
                if count == 1:
                    one = found[number] = [0.0, 0, -1, 0]
                else:
                    known = found.get(number)
                    if known is None or known[1] != count - 1:
                        continue
                    one = known
                is_alive = True
                step = min(STEPS, int(clocks[number] - at).bit_length())
                one[0] += kept[step]
                one[1] = count
                one[3] = one[3] + 1 if step == one[2] else 1
                one[2] = step
            if not is_alive:
                count -= 1
                break
        return {n: CachedOn(*one) for n, one in found.items()}, count  # type: ignore[arg-type]

    def note(self, keys: Sequence[str], number: int, missing: float) -> None:
        """A call with these keys goes there, which has to make so many of them."""
        clock = self.clocks[number] = self.clocks.get(number, 0.0) + missing
        sent = self._sent
        for key in keys:
            holders = sent.get(key)
            if holders is None:
                sent[key] = {number: clock}
            else:
                if number not in holders and len(holders) >= len(self.clocks):
                    holders = {n: at for n, at in holders.items() if n in self.clocks}
                    sent[key] = holders
                holders[number] = clock
                sent.move_to_end(key)
        while len(sent) > MOST_KNOWN:
            sent.popitem(last=False)

    def take_back(self, keys: Sequence[str], number: int) -> None:
        """A call with these keys, which were not there before, has failed."""
        for key in keys:
            holders = self._sent.get(key)
            if holders is not None:
                holders.pop(number, None)
                if not holders:
                    del self._sent[key]

    def learn(self, step: int, share: float, weight: float) -> None:
        """This share of the keys at a distance was there, as far as one call shows."""
        kept = self.kept
        kept[step] += LEARNING * weight * (min(1.0, max(0.0, share)) - kept[step])

    def forget(self, number: int) -> None:
        """The backend has restarted or left: it has nothing. Nobody gets its number."""
        self.clocks.pop(number, None)

    def __repr__(self) -> str:
        return f"<{len(self._sent)} keys on {len(self.clocks)} backends>"
