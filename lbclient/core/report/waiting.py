"""How many of a server's requests wait for something else than its processors.

Handlers that wait for seconds, such as long polls, are in flight all the time and cost
nothing. Where a few in a hundred do, most requests in flight are theirs, and their
number says by chance more than by load. No server sees which handlers wait. But it
knows two bounds on their number, and the smaller one counts as waiting:

- How many requests are in flight and how busy its processors are. Of m processors that
  are busy for a share u of the time, fewer than about m u + 3 u / (1 - u) requests run
  or want to, three times the queue of Poisson arrivals. The others wait. At a
  utilization near 1 that is none of the first 300, so no usual queue for processors
  counts as waits.
- How many were in flight, in the mean, of those that took ten times as long as most:
  the sum of their seconds, for each second (Little's law). A queue for a GPU, a disk or
  another service delays all requests, so none of it counts as waits. Where processors
  are full nothing is learned, as requests take long for want of one.
"""

from lbclient.core.counting.ewma import Ewma

QUEUES = 3.0  # of Poisson arrivals; with 1, bursts were taken for waits
SOON = 2.0  # seconds; waits of some seconds come and go in them
LONG = 20.0  # seconds; others that compare latencies need 5
TIMES = 10.0  # the usual latency: a request that takes longer waits
MOST = 2.0  # times the mean of those that wait: as many as chance makes them
BUSY = 0.9  # utilization; from here on requests take long in a queue for processors
HIGHEST = 0.99  # utilization; then 300 requests want a processor
STEP = 1.05  # of the median latency with each request
# Seconds, of that: where a clock tells 0.0 it would fall to the least number that there
# is, from which no step leads up.
LEAST = 1e-4


class Waiting:
    """Estimates how many requests wait. Owned by who reports them. `count` is 0.0 where
    there is less than one."""

    __slots__ = (
        "_active", "_long", "_sampled_at", "_usual", "_utilization", "_waited", "count",
    )  # fmt: skip

    def __init__(self) -> None:
        self.count = 0.0
        self._active = Ewma(SOON)
        self._utilization = Ewma(SOON)
        self._long: Ewma | None = None  # from the first that took long on
        self._usual = 1.0  # seconds, a median; so at first nothing takes long
        self._waited = 0.0  # seconds of requests that took long, since the last sample
        self._sampled_at: float | None = None

    def served(self, took: float) -> None:
        """A request whose duration is the handler's own took so many seconds."""
        if took <= self._usual:
            self._usual = max(LEAST, self._usual / STEP)
            return
        self._usual *= STEP
        if took > TIMES * self._usual:
            self._waited += took

    def sample(self, now: float, active: int, utilization: float, cpus: float) -> None:
        """`utilization` is of all `cpus` since the sample before."""
        self._active.update(active, now)
        self._utilization.update(utilization, now)
        used = min(HIGHEST, max(0.0, self._utilization.value))
        waited = self._mean_of_those_that_waited(now, used)
        computing = cpus * used + QUEUES * used / (1.0 - used)
        waiting = min(self._active.value - computing, MOST * waited)
        self.count = waiting if waiting >= 1.0 else 0.0

    def _mean_of_those_that_waited(self, now: float, used: float) -> float:
        if self._long is None and self._waited:
            self._long = Ewma(LONG)  # how many waited before is not known
            self._sampled_at = None
        if self._long is None:
            return 0.0
        mean = self._long.value
        if self._sampled_at is not None and now > self._sampled_at and used < BUSY:
            mean = self._waited / (now - self._sampled_at)
        self._long.update(mean, now)
        self._sampled_at, self._waited = now, 0.0
        return self._long.value

    def runnable(self, active: int) -> int | None:
        """Of so many requests in flight those that run or want to; None: all of them,
        as far as is known."""
        if not self.count:
            return None
        return max(0, round(active - self.count))

    def __repr__(self) -> str:
        return f"<{self.count:.1f} of {self._active.value:.1f} requests wait>"
