"""A ranking of many candidates, which finds the one of the lowest score in a heap.

With a thousand backends a look at all scores takes longer than everything else that a
client does for a call. Here a candidate is looked at when something happens to it, or
when it is first in the heap. Its key there may be too low: it is put right when it gets
to the top. It must not be too high for long. What others have there fades towards the
mean, and a score that falls for this reason is ranked again now and then.
"""

from collections import deque
from heapq import heapify, heappop, heappush, heapreplace
from math import exp, inf

from lbclient.pickers.candidate import ABSENT, Candidate

NEAR = 0.02  # of a request: so much too low does not matter
OLD = 8.0  # horizons: a hundred requests would count 0.03
# A score that falls is ranked again after so many horizons, if by so much or more.
AGAIN, FAR = 1.5, 0.25
ENTRIES = 3  # for each candidate; with more the heap is made anew
MOST_AGAIN = 4  # ranked again at one pick; each pick leads to one at most
MOST_TRIES = 64  # at one pick; the best of so many will do if all keys are too low


class Ranking:
    """Ranks the candidates of one picker. `horizon` is written by the picker."""

    __slots__ = ("_again", "_candidates", "_heap", "_keys", "_most", "horizon")

    def __init__(self, candidates: list[Candidate], horizon: float) -> None:
        self._candidates = candidates
        self._keys = [inf] * len(candidates)
        self._most = ENTRIES * len(candidates)
        self._heap: list[tuple[float, int]] = []
        self._again: deque[tuple[float, Candidate]] = deque()
        self.horizon = horizon
        for each in candidates:
            each.waits = False

    def score(self, candidate: Candidate, now: float) -> float:
        """Forgets what was told of others when it is old."""
        age = (now - candidate.told_at) / self.horizon
        if age > OLD:
            candidate.extra = 0.0
        elif age > 0.0:
            return candidate.base + candidate.extra * exp(-age)
        return candidate.base + candidate.extra

    def put(self, candidate: Candidate, now: float) -> None:
        """Ranks a candidate with a new score, or that is compared no more, or again."""
        slot = candidate.slot
        if slot == ABSENT:
            if candidate.index != ABSENT:
                self._keys[candidate.index] = inf  # which is none in the heap
            return
        score = candidate.base
        if candidate.extra:
            score = self.score(candidate, now)
            if score - candidate.base <= FAR:
                score = min(score, candidate.base)  # as it will be soon
            elif not candidate.waits:
                candidate.waits = True
                self._again.append((now + AGAIN * self.horizon, candidate))
        if score < self._keys[slot]:
            self._keys[slot] = score
            heappush(self._heap, (score, slot))

    def least(self, now: float) -> int:
        """The index of the candidate of the lowest score."""
        if self._again and self._again[0][0] <= now:
            self._rank_again(now)
        heap, keys, candidates = self._heap, self._keys, self._candidates
        if len(heap) > self._most:
            heap[:] = [(key, i) for i, key in enumerate(keys) if key < inf]
            heapify(heap)
        least, found = inf, 0
        for _ in range(MOST_TRIES):
            while heap[0][0] != keys[heap[0][1]]:
                heappop(heap)  # there is one with a lower key
            key, slot = heap[0]
            candidate = candidates[slot]
            score = candidate.base
            if candidate.extra:
                score = self.score(candidate, now)
            if score < least:
                least, found = score, slot
            if least <= key + NEAR:
                break
            keys[slot] = score
            heapreplace(heap, (score, slot))
        return found

    def lowest(self, now: float) -> float:
        """The score of that candidate."""
        return self.score(self._candidates[self.least(now)], now)

    def _rank_again(self, now: float) -> None:
        again = self._again
        for _ in range(MOST_AGAIN):
            if not again or again[0][0] > now:
                return
            candidate = again.popleft()[1]
            candidate.waits = False
            self.put(candidate, now)

    def __repr__(self) -> str:
        return f"<ranking of {len(self._candidates)}>"
