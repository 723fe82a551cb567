"""How many of a server's requests wait for something else than its processors.

Handlers that wait for seconds, such as long polls, are in flight all the time and cost
nothing. Where a few in a hundred do, most requests in flight are theirs, and their
number says by chance more than by load. No server sees which handlers wait: it knows
how many requests are in flight and how busy its processors are. Of m processors that
are busy for a share u of the time, fewer than about

    m u + 3 u / (1 - u)

requests run or want to, three times the queue of Poisson arrivals. The others wait. At
a utilization near 1 that is none of the first 300, so no usual queue for processors
counts as waits.

A backend whose requests begin to take long for no processor time, as beside a disk that
fails, must not look idle at once. So the number may grow to half more than it was in
the mean of the last 20 s: those beyond are told as if they ran, for some 20 s.
"""

from lbclient.core.counting.ewma import Ewma

QUEUES = 3.0  # of Poisson arrivals; with 1, bursts were taken for waits
SOON = 2.0  # seconds; waits of some seconds come and go in them
LONG = 20.0  # seconds; others that compare latencies need 5
GROWTH = 1.5  # times the mean of the last `LONG`, at most
HIGHEST = 0.99  # utilization; then 300 requests want a processor


class Waiting:
    """Estimates how many requests wait. Owned by who reports them. `count` is 0.0 where
    there is less than one."""

    __slots__ = ("_active", "_long", "_utilization", "count")

    def __init__(self) -> None:
        self.count = 0.0
        self._active = Ewma(SOON)
        self._utilization = Ewma(SOON)
        self._long = Ewma(LONG)

    def sample(self, now: float, active: int, utilization: float, cpus: float) -> None:
        """`utilization` is of all `cpus` since the sample before."""
        self._active.update(active, now)
        self._utilization.update(utilization, now)
        used = min(HIGHEST, max(0.0, self._utilization.value))
        computing = cpus * used + QUEUES * used / (1.0 - used)
        waiting = max(0.0, self._active.value - computing)
        self._long.update(waiting, now)
        waiting = min(waiting, GROWTH * self._long.value)
        self.count = waiting if waiting >= 1.0 else 0.0

    def runnable(self, active: int) -> int | None:
        """Of so many requests in flight those that run or want to; None: all of them,
        as far as is known."""
        if not self.count:
            return None
        return max(0, round(active - self.count))

    def __repr__(self) -> str:
        return f"<{self.count:.1f} of {self._active.value:.1f} requests wait>"
