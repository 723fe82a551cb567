"""A simulated backend: processors that all its requests share, and what it reports.

Of n requests that want a processor each gets min(1, cores / n) of one. So all of them
get on equally fast, and who finishes first is known when they come: `work` is what each
of them has had since the beginning, and a request is finished when it reaches the
`work` of its arrival plus its cost. A pause, a slow neighbour or a longer queue only
changes how fast `work` grows.

With event loops each processor has one request at a time, and the others wait before
anybody has looked at them: see `arrivals`.
"""

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from random import Random
from typing import Any

from lbclient.core.model import LoadReport, Verdict
from lbclient.core.overload.late_binding import LateBinding
from lbclient.core.refusal import Refusal
from lbclient.core.report.latency import LatencyEstimate
from lbclient.sim.admission import SimulatedAdmission
from lbclient.sim.arrivals import Arrival, Arrivals
from lbclient.sim.client import SimulatedNode
from lbclient.sim.faults import SimulatedFaults
from lbclient.sim.reports import SimulatedReports
from lbclient.sim.scenario import Scenario

# What comes next: when, a number that settles ties, what to call, and with what.
Heap = list[tuple[float, int, Callable[..., None], Any]]
# On its way back: when it arrives, from where, its number, how it went.
Answer = tuple[float, SimulatedNode, int, Verdict, LoadReport | None, Refusal | None]

DONE = 1e-9  # seconds of work that rounding may leave
FAILING = 5e-5  # seconds of processor time that a sinkhole takes to fail

_NEW = tuple.__new__  # of a NamedTuple, without the call that its own name takes
NO_METRICS = LoadReport().metrics

SERVED, FAILED, REJECTED = Verdict.SERVED, Verdict.FAILED, Verdict.REJECTED
DECLINED = Refusal.DECLINED


class SimulatedBackend:
    """Simulates one backend: its processors, its queue and its refusals. Owned by the
    simulation, whose heap and answers it writes.

    `busy` is in seconds of all its processors together, `received` in requests;
    `refusals` are counted by reason. `admission` is None where nobody is refused for
    load and there is one attempt at most.
    """

    __slots__ = (
        "_active",
        "_answers",
        "_arrivals",
        "_arrived",
        "_at",
        "_binding",
        "_cores",
        "_due",
        "_failed",
        "_far",
        "_finished",
        "_full",
        "_given",
        "_half_trip",
        "_heap",
        "_latencies",
        "_mean_cost",
        "_pace",
        "_paces",
        "_refusal_cost",
        "_refused",
        "_running",
        "_sampled",
        "_shares",
        "_waiting",
        "_work",
        "admission",
        "busy",
        "faults",
        "received",
        "refusals",
        "reports",
    )

    def __init__(
        self,
        scenario: Scenario,
        pace: float,
        smoothing: float,
        heap: Heap,
        answers: "deque[Answer]",
        rng: Random,
        size: int = 1,
        farther: float = 0.0,
    ) -> None:
        """`farther`: seconds beyond the scenario's `round_trip`."""
        self._cores = self._given = scenario.cores * size
        self._far = farther / 2.0
        self.busy = 0.0
        self.received = 0
        self.faults = SimulatedFaults()
        self._waiting: dict[int, SimulatedNode] = {}  # that do not run yet
        self.refusals = dict.fromkeys(Refusal, 0)
        self.reports = SimulatedReports(scenario, smoothing, rng)
        self._full = scenario.full
        self._mean_cost = scenario.cost
        self._half_trip = scenario.round_trip / 2.0
        self._heap = heap
        self._answers = answers
        self._arrivals = Arrivals(scenario.timeout) if scenario.event_loop else None
        delay = None if self._arrivals is None else self._arrivals.delay
        self.admission: SimulatedAdmission | None = None
        if scenario.is_careful:
            is_on = scenario.admission
            self.admission = SimulatedAdmission(rng, delay, is_on=is_on)
        self._binding = LateBinding() if scenario.late_binding else None
        self._refusal_cost = scenario.refusal_cost * scenario.cost
        self._refused: dict[int, Refusal] = {}  # those of `_running` that will be
        self._running: list[tuple[float, int, SimulatedNode]] = []
        self._active = 0
        self._work = self._at = self._sampled = 0.0
        self._due = inf  # of the event in the heap that is ours
        self._finished = self._failed = 0  # since the last sample
        self._latencies: LatencyEstimate | None = None  # until the first probe
        self._arrived: dict[int, tuple[float, int]] = {}  # when, and how many were here
        self._set_pace(pace)

    # --- requests ------------------------------------------------------------

    def accept(
        self, node: SimulatedNode, number: int, cost: float, wait: float, now: float
    ) -> None:
        """A request has come over the network, or to where all are equally far."""
        if self._far:
            given = node, number, cost, wait
            heappush(self._heap, (now + self._far, number, self._arrive, given))
        else:
            self._begin(node, number, cost, wait, now)

    def _arrive(
        self, now: float, given: tuple[SimulatedNode, int, float, float]
    ) -> None:
        self._begin(*given, now)

    def _begin(
        self, node: SimulatedNode, number: int, cost: float, wait: float, now: float
    ) -> None:
        self.received += 1
        if self.faults.is_gone:
            self._active += 1
            self._lose(node, number, now)
            return
        if self._arrivals is not None:
            self._queue(self._arrivals, Arrival(node, number, cost), now)
            return
        if self._latencies is not None or self.reports.waiting is not None:
            self._arrived[number] = now, self._active
        self._active += 1
        refusal = None
        if self.admission is not None:
            refusal = self._refusal(self.admission, node, number, now)
        if refusal is not None or len(self._running) >= self._full:
            self._refuse(node, number, refusal or Refusal.OVERLOADED, now)
        elif wait := wait + self.faults.delay:
            self._waiting[number] = node
            given = node, number, cost
            heappush(self._heap, (now + wait, number, self._wake, given))
        else:
            self._run(node, number, cost, now)

    def _queue(self, arrivals: Arrivals, arrival: Arrival, now: float) -> None:
        """gRPC's core keeps it, or ends it: then nobody here has seen it."""
        if len(arrivals) >= self._full:
            self._active += 1
            self.refusals[Refusal.OVERLOADED] += 1
            self._answer(*arrival[:2], REJECTED, Refusal.OVERLOADED, now)
            return
        arrivals.add(arrival)
        self._take(arrivals, now)

    def _take(self, arrivals: Arrivals, now: float) -> None:
        """Decides on the requests whose turn it is, one for each idle processor."""
        while len(arrivals) and len(self._running) < self._cores:
            node, number, cost = arrivals.take()
            if self._latencies is not None or self.reports.waiting is not None:
                self._arrived[number] = now, self._active
            self._active += 1
            refusal = None
            if self.admission is not None:
                refusal = self._refusal(self.admission, node, number, now)
            if refusal is None:
                arrivals.let_in += 1
                self._run(node, number, cost, now)
            else:
                self._refuse(node, number, refusal, now)

    def _refusal(
        self,
        admission: SimulatedAdmission,
        node: SimulatedNode,
        number: int,
        now: float,
    ) -> Refusal | None:
        load = self._load()
        refusal = admission.refusal(node.attempt_of(number), load, now)
        binding = self._binding
        if refusal is not None or binding is None or not node.may_decline(number):
            return refusal
        return Refusal.DECLINED if binding.declines(load) else None

    def _load(self) -> float:
        """Requests that run or want to, for each processor."""
        return (len(self._running) - len(self._refused)) / self._cores

    def _refuse(
        self, node: SimulatedNode, number: int, refusal: Refusal, now: float
    ) -> None:
        """At once, or after some work: if there is no room for that, at once too."""
        self.refusals[refusal] += 1
        if self._refusal_cost and len(self._running) < self._full:
            self._refused[number] = refusal
            self._run(node, number, self._refusal_cost, now)
        else:
            self._answer(node, number, REJECTED, refusal, now)

    def _wake(self, now: float, given: tuple[SimulatedNode, int, float]) -> None:
        node, number, cost = given
        if self._waiting.pop(number, None) is None:
            return  # it was lost
        if len(self._running) >= self._full:
            self._answer(node, number, REJECTED, Refusal.OVERLOADED, now)
        else:
            self._run(node, number, cost, now)

    def _run(self, node: SimulatedNode, number: int, cost: float, now: float) -> None:
        """Begins to run a request, which wants a processor from now on."""
        running = self._running
        count = len(running)
        elapsed = now - self._at  # what `advance` does; a call costs as much
        self._at = now
        self.busy += elapsed * self._shares[count]
        work = self._work = self._work + elapsed * self._paces[count]
        faults = self.faults
        if (faults.is_sinkhole or faults.fails is not None) and faults.dooms(number):
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
        done, faults = work + DONE, self.faults
        while running and running[0][0] <= done:
            _, number, node = heappop(running)
            if self._refused and number in self._refused:
                refusal = self._refused.pop(number)
                self._answer(node, number, REJECTED, refusal, now)
            else:
                verdict = SERVED
                if (faults.is_sinkhole or faults.doomed) and faults.fails_now(number):
                    verdict = FAILED
                self._answer(node, number, verdict, None, now)
        if running:
            due = now + (running[0][0] - work) / self._paces[len(running)]
            self._due = due
            heappush(self._heap, (due, running[0][1], self._answer_done, due))
        if self._arrivals is not None:
            self._take(self._arrivals, now)

    def crash(self, now: float) -> None:
        """Loses what it has, and what comes until somebody says that it is back."""
        self.advance(now)
        self.faults.crash()
        lost = [(number, node) for _, number, node in self._running]
        lost += self._waiting.items()
        self._running.clear()
        self._waiting.clear()
        self._refused.clear()
        self._due = inf
        for number, node in lost:
            self._lose(node, number, now)

    def _lose(self, node: SimulatedNode, number: int, now: float) -> None:
        """Its client sees the connection end."""
        self._active -= 1
        self._arrived.pop(number, None)
        self._send((now + self._half_trip, node, number, FAILED, None, None), now)

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

    def set_cores(self, cores: int, now: float) -> None:
        """From now on it may use so many, more or fewer than its own."""
        if cores != self._given:
            self.advance(now)
            self._given = cores
            self.set_pace(self._pace, now)

    def _set_pace(self, pace: float) -> None:
        self._pace = pace
        own, cores = self._cores, self._given
        # By how many are running: what each gets, and how busy its own processors are.
        crowds = range(1, self._full + 1)
        self._paces = [0.0, *(pace * min(1.0, cores / count) for count in crowds)]
        self._shares = [0.0, *(min(cores, count) / own for count in crowds)]

    def _answer(
        self,
        node: SimulatedNode,
        number: int,
        verdict: Verdict,
        refusal: Refusal | None,
        now: float,
    ) -> None:
        self._active -= 1
        if refusal is not DECLINED:
            self._finished += 1
            if verdict is not SERVED:
                self._failed += 1
                if refusal is not None and self.admission is not None:
                    self.admission.overloads += 1
        if number in self._arrived:
            arrived_at, others = self._arrived.pop(number)
            if verdict is SERVED:
                self._learn(now - arrived_at, others)
        reports = self.reports
        if reports.is_exact:
            waiting, active = reports.waiting, self._active
            told = None
            if waiting is not None and waiting.count:
                told = waiting.runnable(active)
            rest = 0.0, 0, reports.refused, NO_METRICS
            said = *reports.said, active, told, None, *rest
            report: LoadReport | None = _NEW(LoadReport, said)
        else:
            report = reports.report_with_answer(self._active, len(self._running))
        answer = now + self._half_trip, node, number, verdict, report, refusal
        if self._far:
            self._send(answer, now)
        else:
            self._answers.append(answer)

    def _learn(self, took: float, others: int) -> None:
        """Served one that took so many seconds, while `others` were there."""
        if self._latencies is not None:
            self._latencies.note(others, took)
        if self.reports.waiting is not None:
            self.reports.waiting.served(took)

    def _send(self, answer: Answer, now: float) -> None:
        """On its way back, which may be farther than others'."""
        if self._far:
            at = now + self._far
            heappush(self._heap, (at, answer[2], self._pass_on, answer))
        else:
            self._answers.append(answer)

    def _pass_on(self, now: float, answer: Answer) -> None:
        self._answers.append((now + self._half_trip, *answer[1:]))

    def outlook(self, more: int) -> tuple[float, float]:
        """For who knows all, with so many on their way: how many seconds one more of
        mean cost would take from its client on and back, and requests a processor."""
        count = len(self._running) + more
        pace = self._paces[min(count + 1, self._full)]
        return self._mean_cost / pace + 2.0 * self._far, count / self._cores

    # --- reports -------------------------------------------------------------

    def sample(self, now: float) -> None:
        """Every `TICK`: smooths what is reported, as a server does."""
        self.advance(now)
        if self._arrivals is not None:
            self._arrivals.sample()
        if self.admission is not None:
            load, active = self._load(), self._active
            refused = self.admission.sample(now, load, self.received, active)
            self.reports.refused = refused
        used, self._sampled = self.busy - self._sampled, self.busy
        active, runnable = self._active, len(self._running)
        self.reports.sample(
            used, self._finished, self._failed, now, active, runnable, self._cores
        )
        self._finished = self._failed = 0
        if self._binding is not None:
            utilization, qps, _ = self.reports.said
            self._binding.sample(now, self._load(), utilization, qps, self._cores)

    def report(self) -> LoadReport | None:
        """What it says now, to whoever asks."""
        return self.reports.report(self._active, len(self._running))

    def answer_probe(self) -> LoadReport | None:
        """What it says now, with how long requests take; it looks from the first on."""
        if self._latencies is None:
            self._latencies = LatencyEstimate()
        latency = self._latencies.at(self._active)
        reports = self.reports
        if reports.is_exact:
            waiting, active = reports.waiting, self._active
            told = None if waiting is None else waiting.runnable(active)
            rest = latency, 0, reports.refused, NO_METRICS
            said = *reports.said, active, told, None, *rest
            return _NEW(LoadReport, said)
        report = self.report()
        return report and report._replace(latency=latency)

    def __repr__(self) -> str:
        return f"<{self._active} active, {len(self._running)} runnable>"
