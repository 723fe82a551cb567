"""A fleet of modelled engines, and clients that send them prompts by one picker.

Pickers are those of production, and see what a channel shows them: the first token and
the end of each answer, with a report at its end and another each health interval.
"""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any, NamedTuple

from lbclient.core.call_hints import MOST_KEYS, CallHints
from lbclient.core.load import Load
from lbclient.core.model import Endpoint, LoadReport, Outcome, State, Verdict
from lbclient.core.protocols import PickerFactory
from lbclient.core.report.latency import LatencyEstimate
from lbclient.core.report.named_metrics import LEAST
from lbclient.core.routing.key_hash import hash64
from lbclient.core.routing.keyed_picks import answered_by, sees_calls
from lbclient.sim.engine import Engine, EngineModel, Prompt, Running

HALF_TRIP = 0.0005  # seconds
HEALTH_INTERVAL = 5.0  # seconds; as of `Scenario.health_interval`
TICK = 1.0  # seconds, in which utilization is measured
PARTS = 0.5, 0.9, 0.99  # of the latencies, which are told
METHOD = "/simulated.Engine/Generate"

KeysOf = Callable[[Prompt], tuple[str, ...]]
"""The keys of a prompt's call."""


def prefix_keys(prompt: Prompt) -> tuple[str, ...]:
    """The blocks of a prompt, the whole of it first."""
    return tuple(map(str, reversed(prompt.blocks[:MOST_KEYS])))


def conversation_key(prompt: Prompt) -> tuple[str, ...]:
    """The second block, as the first one has what is common to all conversations."""
    return (str(prompt.blocks[min(1, len(prompt.blocks) - 1)]),)


class EngineNode:
    """One engine as a client knows it: a `protocols.Node`."""

    __slots__ = ("endpoint", "engine", "load", "state")

    def __init__(self, number: int, engine: "SimulatedEngine") -> None:
        self.endpoint = Endpoint(f"e{number:03}:1", task=number)
        self.state = State.READY
        self.load = Load()
        self.load.enter_ready(-1000.0)
        self.engine = engine

    def __repr__(self) -> str:
        return f"<{self.endpoint.address}, {self.load.in_flight} in flight>"


class SimulatedEngine:
    """An engine, and what it reports."""

    def __init__(self, model: EngineModel) -> None:
        self.engine = Engine(model)
        self.received = 0
        self.used = 0.0
        self._busy = 0.0
        self._latencies = LatencyEstimate()
        self._arrived: dict[int, tuple[float, int]] = {}

    def accept(self, number: int, prompt: Prompt, now: float) -> None:
        self._arrived[number] = now, self.engine.active
        self.received += 1
        self.engine.submit(number, prompt, now)

    def end(self, number: int, now: float) -> None:
        arrived_at, others = self._arrived.pop(number)
        self._latencies.note(others, now - arrived_at)

    def tick(self) -> None:
        engine = self.engine
        busy, self._busy = engine.busy - self._busy, engine.busy
        self.used += 0.5 * (busy / TICK - self.used)

    def report(self, with_latency: bool = False) -> LoadReport:
        engine = self.engine
        kept = engine.cache.used / engine.cache.capacity
        waiting = len(engine.waiting) + len(engine.reading)
        metrics = {
            "named_metrics.queue_length": max(LEAST, waiting),
            "named_metrics.kv_cache": max(LEAST, kept),
            "named_metrics.running": max(LEAST, len(engine.writing)),
        }
        latency = self._latencies.at(engine.active) if with_latency else 0.0
        return LoadReport(
            utilization=max(LEAST, self.used, kept),
            active=engine.active,
            latency=latency,
            metrics=metrics,
        )


class EngineResult(NamedTuple):
    """What one run has shown. Times in seconds until the first token; `hit` is the
    share of blocks that were in memory, `tokens` of tokens; `spread` is max/mean of the
    seconds in which engines computed prompts."""

    prompts: int
    hit: float
    mean: float
    p50: float
    p90: float
    p99: float
    spread: float
    busy: float


class EngineFleet:
    """Plays prompts on engines, by one picker for each client. A prompt comes to any
    client; `by_conversation`: to that of its conversation."""

    def __init__(
        self,
        factory: PickerFactory,
        prompts: Sequence[Prompt],
        keys_of: KeysOf = prefix_keys,
        *,
        model: EngineModel | None = None,
        engines: int = 16,
        clients: int = 1,
        seed: int = 1,
        health_interval: float = HEALTH_INTERVAL,
        by_conversation: bool = False,
    ) -> None:
        self._health_interval = health_interval
        self._by_conversation = by_conversation
        self._prompts = prompts
        self._keys_of = keys_of
        model = EngineModel() if model is None else model
        self.engines = [SimulatedEngine(model) for _ in range(engines)]
        rng = Random(f"{seed}/clients")
        self._nodes = [
            tuple(EngineNode(number, one) for number, one in enumerate(self.engines))
            for _ in range(clients)
        ]
        self.pickers = [factory(Random(rng.getrandbits(64))) for _ in range(clients)]
        self._rng = rng
        self._heap: list[tuple[float, int, Callable[..., None], Any]] = []
        self._order = count()
        self._sent: dict[int, tuple[int, EngineNode, CallHints, float]] = {}
        self.firsts = [0.0] * len(prompts)  # seconds until the first token
        self._left = len(prompts)

    def _at(self, at: float, act: Callable[..., None], given: Any = None) -> None:
        heappush(self._heap, (at, next(self._order), act, given))

    def run(self) -> EngineResult:
        for number, prompt in enumerate(self._prompts):
            self._at(prompt.at, self._send, number)
        for client in range(len(self.pickers)):
            first = self._rng.random() * self._health_interval
            self._at(first, self._check_health, client)
        self._at(0.0, self._tick)
        while self._left:
            at, _, act, given = heappop(self._heap)
            act(at, given)
        return self._measure()

    def _send(self, now: float, number: int) -> None:
        prompt = self._prompts[number]
        if self._by_conversation:
            client = hash64(conversation_key(prompt)[0]) % len(self.pickers)
        else:
            client = self._rng.randrange(len(self.pickers))
        picker, ready = self.pickers[client], self._nodes[client]
        call = CallHints(METHOD, self._keys_of(prompt))
        if sees_calls(picker):
            node = picker.pick_for(call, ready, now)  # type: ignore[attr-defined]
        else:
            node = picker.pick(ready, now)
        node.load.begin()
        self._sent[number] = client, node, call, now
        self._at(now + HALF_TRIP, self._arrive, number)
        if probes := getattr(picker, "probes", None):
            self._at(now + HALF_TRIP, self._probe, (client, probes.copy()))
            probes.clear()

    def _arrive(self, now: float, number: int) -> None:
        engine = self._sent[number][1].engine
        engine.accept(number, self._prompts[number], now)
        self._watch(engine)

    def _watch(self, engine: SimulatedEngine) -> None:
        due = engine.engine.due
        if due is not None:
            self._at(due, self._advance, engine)

    def _advance(self, now: float, engine: SimulatedEngine) -> None:
        if engine.engine.due != now:
            return  # its steps were cut short, or this is the second event for them
        begun, over = engine.engine.advance()
        for one in begun:
            self._at(now + HALF_TRIP, self._hear_first, one)
        for one in over:
            engine.end(one.number, now)
            self._at(now + HALF_TRIP, self._hear_end, (one, engine.report()))
        self._watch(engine)

    def _hear_first(self, now: float, one: Running) -> None:
        client, node, call, sent_at = self._sent[one.number]
        self.firsts[one.number] = now - sent_at
        answered = answered_by(self.pickers[client])
        if answered is not None:
            answered(call, node, now - sent_at, now)

    def _hear_end(self, now: float, given: tuple[Running, LoadReport]) -> None:
        one, report = given
        _, node, _, sent_at = self._sent.pop(one.number)
        node.load.finish(Outcome(Verdict.SERVED, now - sent_at, report), now)
        self._left -= 1

    def _probe(self, now: float, given: tuple[int, list[EngineNode]]) -> None:
        client, asked = given
        said = [(node, node.engine.report(with_latency=True)) for node in asked]
        self._at(now + HALF_TRIP, self._hear_probes, (client, said))

    def _hear_probes(self, now: float, given: Any) -> None:
        client, said = given
        for node, report in said:
            node.load.observe(report, now)
            self.pickers[client].probed(node, report, now)

    def _check_health(self, now: float, client: int) -> None:
        for node in self._nodes[client]:
            node.load.observe(node.engine.report(), now)
        self._at(now + self._health_interval, self._check_health, client)

    def _tick(self, now: float, _: None) -> None:
        for engine in self.engines:
            engine.tick()
        self._at(now + TICK, self._tick)

    def _measure(self) -> EngineResult:
        engines = [one.engine for one in self.engines]
        times = sorted(self.firsts)
        busy = [one.busy for one in engines]
        mean = sum(busy) / len(busy)
        p50, p90, p99 = (times[int(part * (len(times) - 1))] for part in PARTS)
        return EngineResult(
            prompts=len(times),
            hit=sum(one.hits for one in engines) / sum(one.asked for one in engines),
            mean=sum(times) / len(times),
            p50=p50,
            p90=p90,
            p99=p99,
            spread=max(busy) / mean,
            busy=mean / self._prompts[-1].at,
        )
