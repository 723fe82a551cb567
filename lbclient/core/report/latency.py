"""The latency to expect, by the number of requests in flight, as Prequal estimates it.

Prequal's estimate (NSDI 2024): what is answered to a probe is the median of recent
latencies of requests that met about as many others as there are now. Counts are told
apart as exactly as matters: each below 8, and then in eighths of an octave.
"""

from collections import deque
from math import log2

KEPT = 8  # latencies for each count; ours: few, so that they are recent
EXACT = 8  # requests; smaller counts have a step each
MOST = 256  # steps; 2^32 requests are step 8 + 8 * 29 = 240


class LatencyEstimate:
    """Estimates latency from the number of requests in flight. Owned by a server.
    Written at the end of each request, read at each probe."""

    __slots__ = ("_by_step", "_medians")

    def __init__(self) -> None:
        self._by_step: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}  # of those that were asked for since

    def note(self, active: int, latency: float) -> None:
        """Takes the latency of a request that was served while `active` others were
        there."""
        step = active if active < EXACT else _step(active)  # the hot path
        kept = self._by_step.get(step)
        if kept is None:
            kept = self._by_step[step] = deque(maxlen=KEPT)
        kept.append(latency)
        if step in self._medians:
            del self._medians[step]

    def at(self, active: int) -> float:
        """The median where there were about as many; 0.0 before the first."""
        step = active if active < EXACT else _step(active)
        median = self._medians.get(step)
        if median is not None:
            return median
        near = self._by_step.get(step)
        if near is None:
            if not self._by_step:
                return 0.0
            nearest = min(self._by_step, key=lambda it: abs(it - step))
            near = self._by_step[nearest]
            return sorted(near)[len(near) // 2]
        median = self._medians[step] = sorted(near)[len(near) // 2]
        return median

    def __repr__(self) -> str:
        return f"<latencies at {len(self._by_step)} counts>"


def _step(active: int) -> int:
    if active < EXACT:
        return active
    return min(MOST, int(8.0 * log2(active)) - 16)
