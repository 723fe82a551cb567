"""Backends that answer as a function says, in virtual time, to Poisson arrivals.

What a balancer does around pickers, loads and outliers, without a wire.
"""

from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import NamedTuple

from lbclient.core.backends.pool import Limits, Pool
from lbclient.core.model import Endpoint, LoadReport, Outcome, State, Verdict
from lbclient.core.outliers.outlier_judgement import compared
from lbclient.core.outliers.outliers import Outliers
from lbclient.pickers import PICKERS
from lbclient.testing import FakeNode

OK = 0
CANCELLED, UNKNOWN, DEADLINE_EXCEEDED, NOT_FOUND = 1, 2, 4, 5
RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 8, 12, 13, 14
DATA_LOSS, UNAUTHENTICATED = 15, 16
STATUSES = range(1, 17)

# As `grpc_codes` has it, which knows grpc.
ALONE = dict.fromkeys(
    (UNKNOWN, DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE, DATA_LOSS), Verdict.FAILED
) | {RESOURCE_EXHAUSTED: Verdict.REJECTED, CANCELLED: Verdict.ABANDONED}

LATENCY = 0.1  # seconds of an OK
RECONNECTS_IN = 0.02  # seconds
METHOD = ("unary_unary", "/search.Search/Find")
KEY = 1


class Answer(NamedTuple):
    """`ends_connection`: the backend is lost, and back in `RECONNECTS_IN` seconds."""

    status: int = OK
    latency: float = LATENCY
    ends_connection: bool = False


Behaviour = Callable[[int, float, Random], Answer]
"""From the number of a backend, and the time, to what it answers."""


def sometimes(
    shares: "list[float]", status: int = NOT_FOUND, latency: float = LATENCY
) -> Behaviour:
    """Each backend gives this status to its share of the calls, so late."""

    def behave(backend: int, _: float, rng: Random) -> Answer:
        is_amiss = rng.random() < shares[backend]
        return Answer(status, latency) if is_amiss else Answer()

    return behave


def ending_connections(behaviour: Behaviour) -> Behaviour:
    """Each error ends the connection that it comes on."""

    def behave(backend: int, now: float, rng: Random) -> Answer:
        answer = behaviour(backend, now, rng)
        return answer._replace(ends_connection=answer.status != OK)

    return behave


def from_then_on(at: float, before: Behaviour, after: Behaviour) -> Behaviour:
    def behave(backend: int, now: float, rng: Random) -> Answer:
        return (before if now < at else after)(backend, now, rng)

    return behave


class Fleet:
    """`rate` is in calls a second. `got` and `failed` count calls by backend. Where
    there is a `utilization`, all backends report it, and answers are timed."""

    def __init__(
        self,
        behaviour: Behaviour,
        picker: str = "weighted_least_loaded",
        backends: int = 5,
        rate: float = 100.0,
        seed: int = 1,
        utilization: float = 0.0,
    ) -> None:
        self.now = 0.0
        self.utilization = utilization
        self.behaviour = behaviour
        self.pool: Pool[FakeNode] = Pool(
            lambda endpoint: FakeNode(endpoint, State.CONNECTING),
            lambda members: members,
            Limits(backends, 100, 1.0, 10.0, 0),
        )
        endpoints = tuple(Endpoint(f"b{number:03}:1") for number in range(backends))
        self.nodes = self.pool.reconcile(endpoints, 0.0).opened
        for node in self.nodes:
            self.pool.observe(node, State.READY, 0.0)
        self.outliers = Outliers(
            self.pool, Random(f"{seed}/outliers"), ejects_late=True
        )
        self.picker = PICKERS[picker](Random(f"{seed}/picker"))
        self.rate = rate
        self.got: Counter[int] = Counter()
        self.failed: Counter[int] = Counter()
        self.refused = 0  # calls for which there was nobody
        self._number = {node: number for number, node in enumerate(self.nodes)}
        self._rng = Random(f"{seed}/traffic")
        self._sent_at = 0.0
        self._order = count()
        self._pending: list[tuple[float, int, FakeNode, Answer | None, float]] = []

    def run(self, seconds: float) -> "Fleet":
        """Counts anew; what is in flight at its end stays there."""
        self.got.clear()
        self.failed.clear()
        end = self.now + seconds
        while True:
            due = self._pending[0][0] if self._pending else end
            if min(due, self._sent_at) >= end:
                self.now = end
                return self
            if due <= self._sent_at:
                self.now, _, node, answer, sent_at = heappop(self._pending)
                if answer is None:
                    self._observe(node, State.READY)
                else:
                    self._end(node, answer, sent_at)
            else:
                self.now = self._sent_at
                self._sent_at += self._rng.expovariate(self.rate)
                self.send()

    def send(self) -> FakeNode | None:
        """A call, now; where it goes."""
        outliers, now = self.outliers, self.now
        node: FakeNode | None
        if not self.pool.ready:
            node = None
        elif outliers.count:
            node = outliers.pick(self.picker, KEY, now)
        else:
            node = self.picker.pick(self.pool.ready, now)
        if node is None:
            self.refused += 1
            return None
        self._answer_probes()
        node.load.begin()
        number = self._number[node]
        answer = self.behaviour(number, now, self._rng)
        self.got[number] += 1
        self.failed[number] += answer.status != OK
        # Not all the same, or pickers go by what is left of the oldest error.
        answer = answer._replace(latency=answer.latency * self._rng.uniform(0.8, 1.2))
        due = now + answer.latency
        heappush(self._pending, (due, next(self._order), node, answer, now))
        return node

    def _answer_probes(self) -> None:
        probes: list[FakeNode] = getattr(self.picker, "probes", [])
        for node in probes:
            load = node.load
            latency = load.latency * self._rng.uniform(0.8, 1.2)
            report = LoadReport(active=load.in_flight, latency=latency)
            self.picker.probed(node, report, self.now)  # type: ignore[attr-defined]
        probes.clear()

    def _end(self, node: FakeNode, answer: Answer, sent_at: float) -> None:
        status, latency, ends_connection = answer
        outliers, now = self.outliers, self.now
        if status and KEY not in outliers.watching:
            outliers.watch(KEY, METHOD, now)
        judgement = None
        outcome = Outcome(ALONE.get(status, Verdict.SERVED), latency)
        if self.utilization:
            active, rate = node.load.in_flight - 1, self.rate / len(self.nodes)
            report = LoadReport(self.utilization, rate, 0.0, active)
            outcome = outcome._replace(report=report)
            judgement = outliers.judge(
                KEY, node, outcome, status, sent_at, now, lambda: METHOD
            )
        elif outliers.watching:
            judgement = outliers.answered(KEY, node, status, latency, sent_at, now)
        learned, owed = outcome, 0.0
        if judgement is not None:
            learned, owed = compared(outcome, judgement, node.load)
        node.load.finish(learned, now)
        if owed:
            node.load.owe(owed, now)
        if ends_connection and node.state is State.READY:
            self._lose(node)

    def restart(self, number: int) -> None:
        """Ends a connection for no fault of its own."""
        self._lose(self.nodes[number])

    def _lose(self, node: FakeNode) -> None:
        self._observe(node, State.CONNECTING)
        back_at = self.now + RECONNECTS_IN
        heappush(self._pending, (back_at, next(self._order), node, None, self.now))

    def _observe(self, node: FakeNode, state: State) -> None:
        self.pool.observe(node, state, self.now)
        self.outliers.changed(node, self.now)

    def shares(self) -> list[float]:
        """Of the calls, by backend; 1.0 is the mean."""
        mean = sum(self.got.values()) / len(self.nodes)
        return [self.got[number] / mean for number in range(len(self.nodes))]

    def ejected(self) -> list[int]:
        """The numbers of the backends that are."""
        return [self._number[node] for node in self.nodes if self.outliers.of(node)]
