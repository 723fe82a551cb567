"""Estimates from latency how many requests handlers can have at once, as in a pool.

Little's law: requests in flight = throughput * latency. While every place of the
pool is taken, throughput does not depend on the queue, so

    places = throughput * baseline latency
           = in flight * baseline latency / latency

The baseline is the latency of requests that find a free place. It is kept for each
method, because a change in the mix of methods must not look like a queue.
"""

from collections import Counter
from typing import Any

MEMORY = 80  # latencies in a baseline, which is a moving mean: those of some six probes

# A window is long enough for a mean: 64 exponential latencies have a mean within 1/8.
# Requests that end in step, as at the start of a flood, need several latencies.
LEAST_ENDS = 64  # requests
LEAST_LATENCIES = 4.0  # baselines
LEAST_SECONDS = 0.4  # seconds; ours

COLLAPSED = 0.1  # the share of requests that are served, below which a queue is likely


class MethodBaseline:
    """The baseline latency of one method. Seconds; 0.0 if nothing is known."""

    __slots__ = ("baseline", "early", "samples", "sampling")

    def __init__(self) -> None:
        self.baseline = 0.0
        self.samples = 0
        # Requests in flight that take no place, and how many of them are measured.
        self.early: dict[Any, None] = {}
        self.sampling = 0

    def observe(self, latency: float) -> None:
        self.samples = min(self.samples + 1, MEMORY)
        self.baseline += (latency - self.baseline) / self.samples


class LatencyWindow:
    """Requests in flight and their latencies, while the pool is full."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._request_seconds = 0.0  # the integral of requests in flight
        self._ends = 0
        self._latencies = 0.0  # the sum over all that ended
        self._served: Counter[MethodBaseline] = Counter()
        self._served_latencies = self._served_baselines = 0.0

    def pass_time(self, seconds: float, in_flight: int) -> None:
        self._seconds += seconds
        self._request_seconds += in_flight * seconds

    def end(self, method: MethodBaseline, latency: float, was_served: bool) -> None:
        self._ends += 1
        self._latencies += latency
        if was_served:
            self._served[method] += 1
            self._served_latencies += latency
            self._served_baselines += method.baseline

    @property
    def is_complete(self) -> bool:
        if self._ends < LEAST_ENDS or self._seconds < LEAST_SECONDS:
            return False
        return self._seconds * self._ends >= LEAST_LATENCIES * self._served_baselines

    @property
    def in_flight(self) -> float:
        return self._request_seconds / self._seconds

    @property
    def rate(self) -> float:
        """Requests served in a second."""
        return self._served.total() / self._seconds

    @property
    def latency(self) -> float:
        """The mean, queueing included."""
        return self._latencies / self._ends

    @property
    def slowdown(self) -> float:
        """Latency / baseline, of what was served."""
        return self._served_latencies / max(self._served_baselines, 1e-9)

    @property
    def has_collapsed(self) -> bool:
        """Hardly anybody was served before giving up."""
        return self._served.total() < COLLAPSED * self._ends

    @property
    def places(self) -> float:
        """By the baselines as they are now, which may differ from those of the time.

        At most what was in flight: there may be more places, but nobody can know.
        Requests that were given up are no throughput: most of them never had a place.
        """
        return self.in_flight * min(1.0, self._busy() / max(self._latencies, 1e-9))

    @property
    def busy_places(self) -> float:
        """The places by throughput alone. Too few if requests failed that had taken a
        place.

        For a flood that has just begun: latencies lag behind the requests in flight.
        """
        return self._busy() / self._seconds

    def _busy(self) -> float:
        """Seconds in which one place or another served somebody."""
        return sum(method.baseline * ends for method, ends in self._served.items())
