"""What a simulated backend reports of itself, and in which ways that is wrong."""

from collections import deque
from random import Random

from lbclient.core.counting.ewma import Ewma
from lbclient.core.model import LoadReport
from lbclient.core.report.waiting import Waiting
from lbclient.sim.scenario import Scenario

TICK = 0.1  # seconds between two samples of what is reported; as servers do
LIE = 0.01  # utilization that a liar reports


class SimulatedReports:
    """Simulates the load reports of a backend, and the ways in which they can be wrong.
    Owned by a simulated backend. Others read `said` and `is_exact`.

    `said` are utilization, requests and errors a second, as last sampled. `is_exact`:
    reports have just these values, immediately and always. `refused` is the share that
    the backend refuses, by criticality, which the backend writes; None: unknown.
    `waiting` estimates who waits, as a server does; None: this one does not.
    """

    __slots__ = (
        "_eps",
        "_history",
        "_liar",
        "_qps",
        "_rng",
        "_scale",
        "_scenario",
        "_silent",
        "_utilization",
        "is_exact",
        "refused",
        "said",
        "waiting",
    )

    def __init__(self, scenario: Scenario, smoothing: float, rng: Random) -> None:
        self.said = (0.0, 0.0, 0.0)
        self.refused: tuple[float, ...] | None = None
        self.is_exact = not (
            scenario.report_delay
            or scenario.rates_delay
            or scenario.report_loss
            or scenario.report_noise
            or scenario.told == "runnable"
        )
        self.waiting: Waiting | None = (
            Waiting() if scenario.told == "estimate" else None
        )
        self._scenario = scenario
        self._rng = rng
        self._utilization = Ewma(smoothing)
        self._qps = Ewma(smoothing)
        self._eps = Ewma(smoothing)
        self._history: deque[LoadReport] = deque()
        self._silent = False
        self._liar = False
        self._scale = 1.0

    def mislead(self, *, silent: bool, scale: float, liar: bool) -> None:
        """How they are wrong from now on."""
        self._silent, self._scale, self._liar = silent, scale, liar
        self.is_exact = self.is_exact and not silent and not liar and scale == 1.0

    def fall_silent(self) -> None:
        """From now on there are none."""
        self._silent, self.is_exact = True, False

    def sample(
        self,
        used: float,
        finished: int,
        failed: int,
        now: float,
        active: int,
        runnable: int,
        cores: int = 1,
    ) -> None:
        """Every `TICK`: smooths what is reported, as a server does. `used` is in
        seconds of all processors; `finished` and `failed` count since the last time."""
        used *= self._scenario.seen
        if self.waiting is not None:
            self.waiting.sample(now, active, used / TICK, cores)
        self._utilization.update(used / TICK, now)
        self._qps.update(finished / TICK, now)
        self._eps.update(failed / TICK, now)
        self.said = self._utilization.value, self._qps.value, self._eps.value
        if delay := self._scenario.report_delay or self._scenario.rates_delay:
            self._history.append(self._honest(active, runnable))
            while len(self._history) > max(1, round(delay / TICK)):
                self._history.popleft()

    def report(self, active: int, runnable: int) -> LoadReport | None:
        """What it says now, to whoever asks; in flight are `active`, and `runnable` of
        them run or want to."""
        if self._silent:
            return None
        honest = self._honest(active, runnable)
        report = self._history[0] if self._history else honest
        if self._scenario.rates_delay:
            report = honest._replace(
                utilization=report.utilization, qps=report.qps, eps=report.eps
            )
        utilization = report.utilization * self._scale
        if noise := self._scenario.report_noise:
            utilization *= 1.0 + noise * (2.0 * self._rng.random() - 1.0)
        return report._replace(utilization=LIE if self._liar else utilization)

    def report_with_answer(self, active: int, runnable: int) -> LoadReport | None:
        """The same, unless it gets lost."""
        loss = self._scenario.report_loss
        if loss > 0.0 and self._rng.random() < loss:
            return None
        return self.report(active, runnable)

    def _honest(self, active: int, runnable: int) -> LoadReport:
        if self.waiting is not None:
            told = self.waiting.runnable(active)
        else:
            told = runnable if self._scenario.told == "runnable" else None
        return LoadReport(*self.said, active, told, refused=self.refused)

    def __repr__(self) -> str:
        return f"<{'exact' if self.is_exact else 'inexact'}: {self.said}>"
