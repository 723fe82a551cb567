"""Lowers an adaptive concurrency limit briefly, to measure latency without a queue.

Sustained overload leaves no place free, so nobody would see the baseline latency. A
probe lowers the limit until the queue has drained and some have been measured,
which began with few others in flight.
BBR and Envoy's adaptive_concurrency filter do the same, for the same reason.
"""

REQUESTS = 16  # measured in a probe; 16 exponential latencies have a mean within 1/4

# Time between two probes: seconds, or baselines if that is longer. 16 requests on seven
# of 8 places every 40 baselines take about 1 % of the throughput.
PERIOD, PERIOD_BASELINES = 2.0, 40.0

# A probe that lasts longer is given up: the queue does not drain, or nobody comes.
TIMEOUT, TIMEOUT_LATENCIES = 2.0, 12.0  # the sum of both; seconds and latencies


class LatencyProbe:
    """The probe of a limit, and the time of the next one."""

    __slots__ = ("_ends_at", "_measured", "_next_at", "limit")

    def __init__(self, limit: int) -> None:
        # Requests in flight. What begins with fewer is measured, probe or not.
        self.limit = limit
        self._measured = 0  # since the last probe
        self._ends_at = 0.0  # 0.0: there is none
        self._next_at = 0.0

    @property
    def is_running(self) -> bool:
        return self._ends_at > 0.0

    @property
    def has_all(self) -> bool:
        return self._measured >= REQUESTS

    def is_due(self, now: float) -> bool:
        return now >= self._next_at

    def is_over(self, now: float) -> bool:
        return self.has_all or now >= self._ends_at

    def begin(self, now: float, latency: float) -> None:
        """`latency`: of the requests in flight, which have to end first."""
        self._ends_at = now + TIMEOUT + TIMEOUT_LATENCIES * latency

    def measure(self) -> None:
        self._measured += 1

    def end(self, now: float, baseline: float) -> None:
        self._measured = 0
        self._ends_at = 0.0
        self._next_at = now + max(PERIOD, PERIOD_BASELINES * baseline)
