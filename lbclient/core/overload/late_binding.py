"""Whether a backend declines a request whose client can pick once more: late binding.

A client picks by reports that are older than the request. A client that sends little
has the oldest reports, and picks backends that happen to be busy. Such a backend
declines the request at once, with a report, and the client picks again. This pays while
other backends are idle. It does not pay if all are busy, or if a request takes little
more than declining it.

Prequal (Wydrowski et al., NSDI 2024) probes some backends before it sends; late binding
asks the backend that the request would go to anyway.
"""

from lbclient.core.counting.ewma import Ewma

MEMORY = 10.0  # seconds, of the means. Ours: 100 samples, and shorter than a swing
LEAST_LOAD = 1.0  # requests for each processor; below that one is idle
# Utilization, from which on nothing is declined. Ours: above it all backends are busy,
# and `benchmarks.late_binding --most 2 --declining 0.05` doubles the p99 of one core.
MOST_UTILIZATION = 0.9
# Seconds of processor time that a request takes in the mean, at least. Ours: a server
# in Python takes 0.2 ms to decline one, and at 4 % of a request it still pays.
LEAST_COST = 0.005


class LateBinding:
    """Decides what one backend declines. Owned by the backend, which samples it."""

    __slots__ = ("_is_open", "_load", "_utilization")

    def __init__(self) -> None:
        self._load = Ewma(MEMORY)
        self._utilization = Ewma(MEMORY)
        self._is_open = False

    def sample(
        self, now: float, load: float, utilization: float, qps: float, cpus: float
    ) -> None:
        """Takes the present load (requests that run or want to, for each of `cpus`
        processors), the processors' utilization and the requests served a second."""
        self._load.update(load, now)
        self._utilization.update(utilization, now)
        cost = utilization * cpus / qps if qps > 0.0 else 0.0
        is_free = self._utilization.value < MOST_UTILIZATION
        self._is_open = is_free and cost >= LEAST_COST

    def declines(self, load: float) -> bool:
        """Whether to decline a request that may be declined, at the present load."""
        return self._is_open and load >= LEAST_LOAD and load > self._load.value

    def __repr__(self) -> str:
        state = "open" if self._is_open else "closed"
        return f"<{state}, {self._load.value:.2f} requests a processor in the mean>"
