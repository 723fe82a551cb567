"""What this task reports of itself: rates and utilization, smoothed by time.

A request counts when it finishes; until then it is active. One that its client gave
up is neither served nor failed, and so is in no rate.
"""

from lbclient.ewma import Ewma
from lbclient.latency import LatencyEstimate
from lbclient.model import LoadReport, Verdict

_SERVED = Verdict.SERVED  # looking a member up costs as much as all of `begin`


class LoadMonitor:
    """Owned by the server, written on its loop's thread only."""

    __slots__ = (
        "_application",
        "_cpu",
        "_eps",
        "_failed",
        "_finished",
        "_qps",
        "_sampled_at",
        "active",
        "begun",
        "latencies",
    )

    def __init__(self, smoothing: float) -> None:
        self.active = 0
        self.begun = 0
        self.latencies = LatencyEstimate()
        self._finished = 0  # both since the last sample
        self._failed = 0
        self._sampled_at: float | None = None
        self._cpu = Ewma(smoothing)
        self._application = Ewma(smoothing)
        self._qps = Ewma(smoothing)
        self._eps = Ewma(smoothing)

    def begin(self) -> None:
        self.begun += 1
        self.active += 1

    def served(self, took: float) -> None:
        """What `finish` does for SERVED, and cheaper; it took so many seconds."""
        self.active -= 1
        self._finished += 1
        self.latencies.note(self.active, took)

    def finish(self, verdict: Verdict) -> None:
        """Once for each `begin`, if `served` is not called."""
        self.active -= 1
        if verdict is _SERVED:
            self._finished += 1
        elif verdict is not Verdict.ABANDONED:
            self._finished += 1
            self._failed += 1

    def sample(self, now: float, cpu: float, application: float | None = None) -> None:
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
        )

    def __repr__(self) -> str:
        load = self.report()
        return (
            f"<{load.active} active, {load.qps:.1f} qps, {load.eps:.1f} eps, "
            f"utilization {load.utilization:.2f}>"
        )
