"""A simulated backend: processors that all its requests share, and what it reports.

Of n requests that want a processor each gets min(1, cores / n) of one. So all of them
get on equally fast, and who finishes first is known when they come: `work` is what each
of them has had since the beginning, and a request is finished when it reaches the
`work` of its arrival plus its cost. A pause, a slow neighbour or a longer queue only
changes how fast `work` grows.
"""

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from random import Random
from typing import Any

from lbclient.core.admission import LOAD
from lbclient.core.criticality import Criticality
from lbclient.core.ewma import Ewma
from lbclient.core.latency import LatencyEstimate
from lbclient.core.model import LoadReport, Verdict
from lbclient.core.overload_signals import Pressure
from lbclient.core.retry import ATTEMPTS, Refusal
from lbclient.sim.client import SimulatedNode
from lbclient.sim.scenario import Scenario

# What comes next: when, a number that settles ties, what to call, and with what.
Heap = list[tuple[float, int, Callable[..., None], Any]]
# On its way back: when it arrives, from where, its number, how it went.
Answer = tuple[float, SimulatedNode, int, Verdict, LoadReport | None, Refusal | None]

TICK = 0.1  # seconds between two samples of what is reported; as servers do
DONE = 1e-9  # seconds of work that rounding may leave
FAILING = 5e-5  # seconds of processor time that a sinkhole takes to fail
LIE = 0.01
HOPELESS = 1e6  # a load of which nothing gets in

_NEW = tuple.__new__  # of a NamedTuple, without the call that its own name takes

SERVED, FAILED, REJECTED = Verdict.SERVED, Verdict.FAILED, Verdict.REJECTED


class SimulatedBackend:
    """Owned by the simulation, whose heap and answers it writes.

    `busy` is in seconds of all its processors together, `received` in requests;
    `attempts` are counted only where there can be several.
    """

    __slots__ = (
        "_active",
        "_answers",
        "_arrived",
        "_at",
        "_cores",
        "_due",
        "_eps",
        "_failed",
        "_finished",
        "_full",
        "_half_trip",
        "_heap",
        "_history",
        "_is_careful",
        "_is_exact",
        "_latencies",
        "_liar",
        "_paces",
        "_pressure",
        "_qps",
        "_refusal_cost",
        "_refused",
        "_rng",
        "_running",
        "_said",
        "_sampled",
        "_scale",
        "_scenario",
        "_shares",
        "_silent",
        "_utilization",
        "_work",
        "attempts",
        "busy",
        "is_sinkhole",
        "received",
        "refuses_all",
    )

    def __init__(
        self,
        scenario: Scenario,
        pace: float,
        smoothing: float,
        heap: Heap,
        answers: "deque[Answer]",
        rng: Random,
    ) -> None:
        self._cores = scenario.cores
        self.busy = 0.0
        self.received = 0
        self.attempts = [0] * ATTEMPTS  # of those received, by their number
        self.is_sinkhole = False
        self.refuses_all = False
        self._scenario = scenario
        self._full = scenario.full
        self._half_trip = scenario.round_trip / 2.0
        self._heap = heap
        self._answers = answers
        self._rng = rng
        self._pressure = Pressure(LOAD.target, rng) if scenario.admission else None
        self._is_careful = scenario.is_careful
        self._refusal_cost = scenario.refusal_cost * scenario.cost
        self._refused: dict[int, Refusal] = {}  # those of `_running` that will be
        self._running: list[tuple[float, int, SimulatedNode]] = []
        self._active = 0
        self._work = self._at = self._sampled = 0.0
        self._due = inf  # of the event in the heap that is ours
        self._finished = self._failed = 0  # since the last sample
        self._utilization = Ewma(smoothing)
        self._qps = Ewma(smoothing)
        self._eps = Ewma(smoothing)
        self._said = (0.0, 0.0, 0.0)
        self._history: deque[LoadReport] = deque()
        self._latencies: LatencyEstimate | None = None  # until the first probe
        self._arrived: dict[int, tuple[float, int]] = {}  # when, and how many were here
        self._silent = False
        self._liar = False
        self._scale = 1.0
        self._is_exact = not (
            scenario.report_delay
            or scenario.rates_delay
            or scenario.report_loss
            or scenario.report_noise
            or scenario.runnable
        )
        self._set_pace(pace)

    def mislead(self, *, silent: bool, scale: float, liar: bool) -> None:
        """How its reports are wrong from now on."""
        self._silent, self._scale, self._liar = silent, scale, liar
        self._is_exact = self._is_exact and not silent and not liar and scale == 1.0

    def fall_silent(self) -> None:
        """From now on it reports nothing."""
        self._silent, self._is_exact = True, False

    # --- requests ------------------------------------------------------------

    def accept(
        self, node: SimulatedNode, number: int, cost: float, wait: float, now: float
    ) -> None:
        """A request has come over the network."""
        self.received += 1
        if self._latencies is not None:
            self._arrived[number] = now, self._active
        self._active += 1
        refusal = self._refusal(number, node, now) if self._is_careful else None
        if refusal is not None or len(self._running) >= self._full:
            self._refuse(node, number, refusal or Refusal.OVERLOADED, now)
        elif wait:
            given = node, number, cost
            heappush(self._heap, (now + wait, number, self._wake, given))
        else:
            self._run(node, number, cost, now)

    def _refusal(self, number: int, node: SimulatedNode, now: float) -> Refusal | None:
        attempt = node.attempt_of(number)
        self.attempts[attempt] += 1
        if self._pressure is None:
            return Refusal.OVERLOADED if self.refuses_all else None
        self._pressure.look(self._load(), now)
        return self._pressure.refuses(Criticality.CRITICAL, attempt, now)

    def _load(self) -> float:
        """Requests that run or want to, for each processor."""
        if self.refuses_all:
            return HOPELESS
        return (len(self._running) - len(self._refused)) / self._cores

    def _refuse(
        self, node: SimulatedNode, number: int, refusal: Refusal, now: float
    ) -> None:
        """At once, or after some work: if there is no room for that, at once too."""
        if self._refusal_cost and len(self._running) < self._full:
            self._refused[number] = refusal
            self._run(node, number, self._refusal_cost, now)
        else:
            self._answer(node, number, REJECTED, refusal, now)

    def _wake(self, now: float, given: tuple[SimulatedNode, int, float]) -> None:
        node, number, cost = given
        if len(self._running) >= self._full:
            self._answer(node, number, REJECTED, Refusal.OVERLOADED, now)
        else:
            self._run(node, number, cost, now)

    def _run(self, node: SimulatedNode, number: int, cost: float, now: float) -> None:
        """It wants a processor from now on."""
        running = self._running
        count = len(running)
        elapsed = now - self._at  # what `advance` does; a call costs as much
        self._at = now
        self.busy += elapsed * self._shares[count]
        work = self._work = self._work + elapsed * self._paces[count]
        if self.is_sinkhole:
            cost = FAILING
        heappush(running, (work + cost, number, node))
        if running[0][1] == number:
            self._schedule(number, now)

    def _schedule(self, number: int, now: float) -> None:
        """Sees to it that the heap has an event at the next finish or before it.

        Before it: who is slowed down by others is not scheduled anew, only looked at
        too early.
        """
        running = self._running
        due = now + (running[0][0] - self._work) / self._paces[len(running)]
        if due < self._due:
            self._due = due
            heappush(self._heap, (due, number, self._answer_done, due))

    def _answer_done(self, now: float, due: float) -> None:
        if due != self._due:
            return  # another came first
        self._due = inf
        running = self._running
        count = len(running)
        elapsed = now - self._at
        self._at = now
        self.busy += elapsed * self._shares[count]
        work = self._work = self._work + elapsed * self._paces[count]
        done = work + DONE
        while running and running[0][0] <= done:
            _, number, node = heappop(running)
            if self._refused and number in self._refused:
                refusal = self._refused.pop(number)
                self._answer(node, number, REJECTED, refusal, now)
            else:
                verdict = FAILED if self.is_sinkhole else SERVED
                self._answer(node, number, verdict, None, now)
        if running:
            due = now + (running[0][0] - work) / self._paces[len(running)]
            self._due = due
            heappush(self._heap, (due, running[0][1], self._answer_done, due))

    def advance(self, now: float) -> None:
        """Brings `busy`, and what everybody has had, up to date."""
        elapsed = now - self._at
        self._at = now
        count = len(self._running)
        self.busy += elapsed * self._shares[count]
        self._work += elapsed * self._paces[count]

    def set_pace(self, pace: float, now: float) -> None:
        """From now on a request with a processor for itself is that fast."""
        self.advance(now)
        self._set_pace(pace)
        if self._running:
            self._schedule(self._running[0][1], now)

    def _set_pace(self, pace: float) -> None:
        cores = self._cores
        # By how many are running: what each gets, and how busy the processors are.
        crowds = range(1, self._full + 1)
        self._paces = [0.0, *(pace * min(1.0, cores / count) for count in crowds)]
        self._shares = [0.0, *(min(1.0, count / cores) for count in crowds)]

    def _answer(
        self,
        node: SimulatedNode,
        number: int,
        verdict: Verdict,
        refusal: Refusal | None,
        now: float,
    ) -> None:
        self._active -= 1
        self._finished += 1
        if verdict is not SERVED:
            self._failed += 1
        if self._latencies is not None and number in self._arrived:
            arrived_at, others = self._arrived.pop(number)
            if verdict is SERVED:
                self._latencies.note(others, now - arrived_at)
        if self._is_exact:
            said = *self._said, self._active, None, None, 0.0
            report: LoadReport | None = _NEW(LoadReport, said)
        else:
            report = None if self._is_lost() else self.report()
        self._answers.append(
            (now + self._half_trip, node, number, verdict, report, refusal)
        )

    # --- reports -------------------------------------------------------------

    def _is_lost(self) -> bool:
        loss = self._scenario.report_loss
        return loss > 0.0 and self._rng.random() < loss

    def sample(self, now: float) -> None:
        """Every `TICK`: smooths what is reported, as a server does."""
        self.advance(now)
        if self._pressure is not None:
            self._pressure.sample(now, self._load())
        used, self._sampled = self.busy - self._sampled, self.busy
        self._utilization.update(used / TICK, now)
        self._qps.update(self._finished / TICK, now)
        self._eps.update(self._failed / TICK, now)
        self._finished = self._failed = 0
        self._said = self._utilization.value, self._qps.value, self._eps.value
        if delay := self._scenario.report_delay or self._scenario.rates_delay:
            self._history.append(self._honest())
            while len(self._history) > max(1, round(delay / TICK)):
                self._history.popleft()

    def report(self) -> LoadReport | None:
        """What it says now, to whoever asks."""
        if self._silent:
            return None
        report = self._history[0] if self._history else self._honest()
        if self._scenario.rates_delay:
            utilization, qps, eps = report[:3]
            report = self._honest()._replace(utilization=utilization, qps=qps, eps=eps)
        utilization = report.utilization * self._scale
        if noise := self._scenario.report_noise:
            utilization *= 1.0 + noise * (2.0 * self._rng.random() - 1.0)
        return report._replace(utilization=LIE if self._liar else utilization)

    def answer_probe(self) -> LoadReport | None:
        """What it says now, with how long requests take; it looks from the first on."""
        if self._latencies is None:
            self._latencies = LatencyEstimate()
        latency = self._latencies.at(self._active)
        if self._is_exact:
            said = *self._said, self._active, None, None, latency
            return _NEW(LoadReport, said)
        report = self.report()
        return report and report._replace(latency=latency)

    def _honest(self) -> LoadReport:
        runnable = len(self._running) if self._scenario.runnable else None
        return LoadReport(*self._said, self._active, runnable)

    def __repr__(self) -> str:
        return f"<{self._active} active, {len(self._running)} runnable>"
