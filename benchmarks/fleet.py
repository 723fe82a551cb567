"""Pickers against each other on a fleet in virtual time, all on the same requests.

    python -m benchmarks.fleet --load 0.85 --clients 10 --backends 20
    python -m benchmarks.fleet --returning 2 --cold 4 --slow_start 0

Poisson arrivals, lognormal costs; backends share their processors among all requests
they have, every second one is faster; responses carry reports smoothed over 2 s.
Compare rows: absolute numbers belong to the model. Those that return are there from the
warm-up's end on, and cold: a request costs `cold` times as much, which passes with the
time constant `thaw`.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from heapq import heappop, heappush
from itertools import count
from math import exp
from random import Random
from typing import Any, NamedTuple

from benchmarks.harness.options import exit_with, parser_of
from lbclient.core.counting.ewma import Ewma
from lbclient.core.model import LoadReport, Outcome, Verdict
from lbclient.core.protocols import PickerFactory
from lbclient.pickers import PICKERS, picker_factory
from lbclient.pickers.slow_start import SLOW_START
from lbclient.testing import FakeNode, fake_nodes

HALF_ROUND_TRIP = 0.0005
TICK = 0.1  # between two samples of a backend's rates
FULL = 200  # requests at which a backend rejects
PENALTY = 5.0  # seconds that a failed request counts as


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What is simulated. Times in seconds; `load` is a share of all capacity."""

    backends: int = 20
    clients: int = 10
    load: float = 0.7
    fast: float = 2.5
    cores: int = 4
    cost: float = 0.02
    silent: int = 0  # backends that report nothing
    failing: int = 0  # those of them that fail at once from the warm-up's end
    returning: int = 0  # backends that were away until the warm-up's end
    cold: float = 4.0
    thaw: float = 5.0
    slow_start: float = SLOW_START
    warm_up: float = 15.0
    seconds: float = 20.0
    seed: int = 1


class Result(NamedTuple):
    spread: float  # the largest utilization over the mean, of those that work
    p50: float
    p99: float
    errors: float  # as a share of all requests


class Request(NamedTuple):
    node: FakeNode
    cost: float
    sent_at: float


class Simulation:
    """A heap of what happens next."""

    def __init__(self, fleet: Fleet, factory: PickerFactory) -> None:
        self.fleet, self.now = fleet, 0.0
        self._order = count()
        self._heap: list[tuple[float, int, Callable[..., None], Any]] = []
        self._rng = Random(fleet.seed)  # of the requests: the same for every picker
        self.backends = [Backend(self, i) for i in range(fleet.backends)]
        self._clients = [
            (factory(Random(f"{fleet.seed}/{i}")), fake_nodes(fleet.backends))
            for i in range(fleet.clients)
        ]
        self._ready = [nodes[fleet.returning :] for _, nodes in self._clients]
        capacity = fleet.cores * sum(backend.speed for backend in self.backends)
        self._rate = fleet.load * capacity / fleet.cost
        self._latencies: list[float] = []

    def after(self, delay: float, act: Callable[..., None], *given: Any) -> None:
        heappush(self._heap, (self.now + delay, next(self._order), act, given))

    def run(self) -> Result:
        self._arrive()
        self.after(self.fleet.warm_up, self._measure)
        for backend in self.backends:
            backend.tick()
        while self._heap[0][0] < self.fleet.warm_up + self.fleet.seconds:
            self.now, _, act, given = heappop(self._heap)
            act(*given)
        used = [b.used - b.used_before for b in self.backends[self.fleet.failing :]]
        spread = max(used) * len(used) / sum(used)
        latencies = sorted(self._latencies)
        total, failed = len(latencies), latencies.count(PENALTY)
        p50, p99 = latencies[total // 2], latencies[total * 99 // 100]
        return Result(spread, p50, p99, failed / total)

    def _measure(self) -> None:
        self._latencies.clear()
        for backend in self.backends:
            backend.used_before = backend.used
        for _, nodes in self._clients:
            for node in nodes[: self.fleet.returning]:
                node.load.enter_ready(self.now)
        self._ready = [nodes for _, nodes in self._clients]

    def _arrive(self) -> None:
        rng = self._rng
        self.after(rng.expovariate(self._rate), self._arrive)
        client = rng.randrange(self.fleet.clients)
        picker, nodes = self._clients[client]
        cost = self.fleet.cost * rng.lognormvariate(-0.5, 1.0)
        node = picker.pick(self._ready[client], self.now)
        node.load.begin()
        backend = self.backends[nodes.index(node)]
        self.after(HALF_ROUND_TRIP, backend.accept, Request(node, cost, self.now))

    def respond(self, request: Request, ok: bool, report: LoadReport | None) -> None:
        latency = self.now - request.sent_at
        verdict = Verdict.SERVED if ok else Verdict.FAILED
        request.node.load.finish(Outcome(verdict, latency, report), self.now)
        self._latencies.append(latency if ok else PENALTY)


class Backend:
    """Processor sharing: of n requests each gets min(1, cores / n) of a core."""

    def __init__(self, sim: Simulation, index: int) -> None:
        self.sim, self.cores = sim, sim.fleet.cores
        self.speed = sim.fleet.fast if index % 2 else 1.0
        self.silent = index < max(sim.fleet.silent, sim.fleet.failing)
        self.returns = index < sim.fleet.returning
        self.fails_at = sim.fleet.warm_up if index < sim.fleet.failing else 1e9
        self.running: list[tuple[float, int, Request]] = []
        self.work = self.at = self.used = self.used_before = self.used_at_tick = 0.0
        self.version = self.accepted = self.finished = self.failed = 0
        self.utilization, self.qps, self.eps = Ewma(2.0), Ewma(2.0), Ewma(2.0)

    def pace(self) -> float:
        return self.speed * min(1.0, self.cores / len(self.running))

    def advance(self) -> None:
        elapsed, self.at = self.sim.now - self.at, self.sim.now
        if self.running:
            self.work += elapsed * self.pace()
            self.used += elapsed * min(1.0, len(self.running) / self.cores)

    def slowness(self) -> float:
        """What a request costs now, as a multiple of what it will cost."""
        fleet = self.sim.fleet
        if not self.returns:
            return 1.0
        return 1.0 + (fleet.cold - 1.0) * exp(
            (fleet.warm_up - self.sim.now) / fleet.thaw
        )

    def accept(self, request: Request) -> None:
        self.advance()
        self.accepted += 1
        if len(self.running) >= FULL or self.sim.now >= self.fails_at:
            self.answer(request, ok=False)
        else:
            cost = request.cost * self.slowness()
            heappush(self.running, (self.work + cost, id(request), request))
            self.schedule()

    def schedule(self) -> None:
        self.version += 1
        if self.running:
            left = max(0.0, self.running[0][0] - self.work)
            self.sim.after(left / self.pace(), self.complete, self.version)

    def complete(self, version: int) -> None:
        if version == self.version:
            self.advance()
            self.answer(heappop(self.running)[2], ok=True)
            self.schedule()

    def answer(self, request: Request, ok: bool) -> None:
        self.finished += 1
        self.failed += not ok
        rates = self.utilization.value, self.qps.value, self.eps.value
        report = None if self.silent else LoadReport(*rates, len(self.running))
        self.sim.after(HALF_ROUND_TRIP, self.sim.respond, request, ok, report)

    def tick(self) -> None:
        self.advance()
        now, used = self.sim.now, self.used - self.used_at_tick
        self.utilization.update(used / TICK, now)
        self.qps.update(self.finished / TICK, now)
        self.eps.update(self.failed / TICK, now)
        self.used_at_tick, self.finished, self.failed = self.used, 0, 0
        self.sim.after(TICK, self.tick)


def main() -> None:
    parser = parser_of("fleet", __doc__, json=False)
    for field in fields(Fleet):
        kind = type(field.default)
        parser.add_argument("--" + field.name, type=kind, default=field.default)
    fleet = Fleet(**vars(parser.parse_args()))
    print(f"{'picker':22} max/mean   p50 ms   p99 ms   errors")
    for name in PICKERS:
        factory = picker_factory(name, fleet.slow_start)
        spread, p50, p99, errors = Simulation(fleet, factory).run()
        times = f"{p50 * 1000:8.1f} {p99 * 1000:8.0f}"
        print(f"{name:22} {spread:8.3f} {times} {errors:8.3%}")


if __name__ == "__main__":
    exit_with(main)
