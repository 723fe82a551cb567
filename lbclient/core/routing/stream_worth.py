"""How many streams a backend is worth, by the work that its streams are.

Streams differ: one sends a message a second, another a thousand, and a third waits. So
a backend whose streams take more of it is worth fewer: what counts is its streams over
its utilization, both smoothed. It is not how long they are open.

This is no control loop: streams move slowly, and one that integrates would overshoot
meanwhile. What streams are worth is known only where there are several, and where they
are noticed: below a utilization of `LEAST_USED` they are counted alone.
"""

from collections.abc import Mapping
from typing import Generic, TypeVar

from lbclient.core.counting.median import median

K = TypeVar("K")

GAIN = 0.1  # of each look, one a second: some 10 s of reports
LOOKS = 10  # until a backend's streams are known
LEAST_USED = 0.1  # utilization; below it is noise, and what a process takes anyway
LEAST_STREAMS = 3.0  # on a backend; of fewer its use says nothing of a stream
# Within this factor of the median a difference is noise; beyond, what is more counts.
ALIKE = 1.25
BOUND = 2.0  # a backend is worth this many times the median at most, or at least 1/2


class _Work:
    __slots__ = ("looks", "streams", "used")

    def __init__(self) -> None:
        self.looks = 0
        self.streams = self.used = 0.0


class StreamWorth(Generic[K]):
    """What is known of the work of streams, by backend. Owned by one client."""

    def __init__(self) -> None:
        self._work: dict[K, _Work] = {}

    def observe(self, seen: Mapping[K, tuple[float, float]]) -> None:
        """Takes streams and utilization of each backend, once in each look."""
        self._work = {key: self._work.get(key) or _Work() for key in seen}
        for key, (streams, used) in seen.items():
            work = self._work[key]
            gain = max(GAIN, 1.0 / (work.looks + 1))
            work.looks += 1
            work.streams += gain * (streams - work.streams)
            work.used += gain * (used - work.used)

    def factors(self) -> dict[K, float]:
        """What each backend is worth, relative to the median; 1.0: nothing is known."""
        known = {
            key: work.streams / work.used
            for key, work in self._work.items()
            if work.looks >= LOOKS
            and work.used >= LEAST_USED
            and work.streams >= LEAST_STREAMS
        }
        if len(known) < 2:
            return {}
        usual = median(known.values())
        return {key: factor(streams / usual) for key, streams in known.items()}

    def __repr__(self) -> str:
        return f"<work of the streams of {len(self._work)} backends>"


def factor(ratio: float) -> float:
    """What of a ratio is no noise, and within the bound.

    >>> [factor(ratio) for ratio in (1.0, 1.2, 0.9, 2.0, 0.5, 9.0)]
    [1.0, 1.0, 1.0, 1.6, 0.625, 2.0]
    """
    if 1.0 / ALIKE <= ratio <= ALIKE:
        return 1.0
    beyond = ratio / ALIKE if ratio > 1.0 else ratio * ALIKE
    return max(1.0 / BOUND, min(BOUND, beyond))
