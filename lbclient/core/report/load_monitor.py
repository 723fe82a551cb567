"""A server's own load, smoothed, for its load reports: rates and utilization.

A request counts when it finishes; until then it is active. One that its client gave
up is neither served nor failed, and so is in no rate.
"""

from collections import deque
from typing import Any

from lbclient.core.counting.ewma import Ewma
from lbclient.core.model import LoadReport, Verdict
from lbclient.core.report.latency import LatencyEstimate
from lbclient.core.report.named_metrics import NamedMetrics
from lbclient.core.report.waiting import Waiting

Sizes = tuple[int, int]
"""Bytes of all messages of a request: received, and sent."""

ServedRequest = tuple[Any, int, float, Sizes | None]
"""An object of the caller's, how many other requests were active, the seconds that it
took, and the sizes of its messages if these are measured."""


class LoadMonitor:
    """Measures a server's request rates, utilization and requests in flight. Owned by
    the server. Other threads use only `uncounted` and `counted`."""

    __slots__ = (
        "_application",
        "_cpu",
        "_ended",
        "_eps",
        "_failed",
        "_finished",
        "_qps",
        "_sampled_at",
        "active",
        "counted",
        "latencies",
        "memory",
        "signals",
        "uncounted",
        "waiting",
    )

    def __init__(self, smoothing: float, *, estimates_runnable: bool = True) -> None:
        # Written by who begins requests: a method would be a function more for each.
        self.active = 0
        self.memory = 0.0  # the share of its limit in use, as last read; 0.0: unknown
        self.signals = NamedMetrics(smoothing)
        # Served requests that are in no number below yet. To count many at once takes
        # a fifth of the time, as a request runs with cold caches. The caller moves
        # them from the first to the second, and counts them.
        self.uncounted: deque[ServedRequest] = deque()
        self.counted: deque[ServedRequest] = deque()
        self.latencies = LatencyEstimate()
        self.waiting = Waiting() if estimates_runnable else None
        self._ended = 0
        self._finished = 0  # both since the last sample
        self._failed = 0
        self._sampled_at: float | None = None
        self._cpu = Ewma(smoothing)
        self._application = Ewma(smoothing)
        self._qps = Ewma(smoothing)
        self._eps = Ewma(smoothing)

    @property
    def begun(self) -> int:
        return self.active + len(self.uncounted) + len(self.counted) + self._ended

    def finish(self, verdict: Verdict) -> None:
        """Ends an active request that does not go into `uncounted`."""
        self.active -= 1
        self._ended += 1
        if verdict is Verdict.ABANDONED:
            return
        self._finished += 1
        self._failed += verdict is not Verdict.SERVED

    def take_counted(self) -> list[ServedRequest]:
        """Takes what the caller has counted into the rates, and returns it.

        To be called before each sample.
        """
        counted = [self.counted.popleft() for _ in range(len(self.counted))]
        self._ended += len(counted)
        self._finished += len(counted)
        note = self.latencies.note
        for _, active, took, _ in counted:
            note(active, took)
        return counted

    def sample(
        self,
        now: float,
        cpu: float,
        application: float | None = None,
        cpus: float = 1.0,
    ) -> None:
        """Takes the utilization since the last sample, and the rates.

        The first sample only starts the clock.
        """
        elapsed = 0.0 if self._sampled_at is None else now - self._sampled_at
        if self._sampled_at is not None and elapsed <= 0.0:
            return
        self._sampled_at = now
        self._qps.update(self._finished / elapsed if elapsed else 0.0, now)
        self._eps.update(self._failed / elapsed if elapsed else 0.0, now)
        self._finished = self._failed = 0
        self._cpu.update(cpu, now)
        used = cpu if application is None else application
        if self.waiting is not None:
            self.waiting.sample(now, self.active, used, cpus)
        if application is not None:
            self._application.update(application, now)

    @property
    def cpu(self) -> float:
        return self._cpu.value

    @property
    def application(self) -> float:
        """0.0 where the application does not measure itself."""
        return self._application.value

    def report(self) -> LoadReport:
        """The application's utilization goes before the CPU's (gRFC A58)."""
        return LoadReport(
            self.application or self.cpu,
            self._qps.value,
            self._eps.value,
            self.active,
            self.runnable(self.active),
        )

    def runnable(self, active: int) -> int | None:
        """Of so many requests in flight those that want a processor, by estimate; None:
        it is not estimated, or all of them do."""
        return None if self.waiting is None else self.waiting.runnable(active)

    def __repr__(self) -> str:
        load = self.report()
        return (
            f"<{load.active} active, {load.qps:.1f} qps, {load.eps:.1f} eps, "
            f"utilization {load.utilization:.2f}>"
        )
