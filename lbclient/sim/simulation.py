"""The simulation: one fleet, one picker, one seed, in virtual time.

There is no clock and no loop: `run` is a merge of four streams of events, each sorted
by time. Requests come from `Traffic`; the network takes as long for each, so what is
under way there and back are queues; only what finishes, and what happens now and then,
needs a heap. That is what makes it fast: see docs/simulator.md.
"""

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf, prod
from random import Random
from typing import Any

from lbclient.core.backends.subset_size import PAUSE
from lbclient.core.call_hints import CallHints
from lbclient.core.model import Endpoint, LoadReport, Outcome, Verdict, snapshot
from lbclient.core.protocols import PickerFactory
from lbclient.core.refusal import Refusal
from lbclient.core.retries.ending import UNAVAILABLE, Ending
from lbclient.core.routing.keyed_picks import sees_calls
from lbclient.sim.backend import Answer, Heap, SimulatedBackend
from lbclient.sim.client import KEY, METHODS, Client, Question, SimulatedNode
from lbclient.sim.reports import TICK
from lbclient.sim.result import Result, Second, measure, of_zones, rms
from lbclient.sim.scenario import Scenario
from lbclient.sim.traffic import Traffic, key_name

SERVED, FAILED = Verdict.SERVED, Verdict.FAILED

# The number of the status that goes on the wire. A sinkhole's is INTERNAL.
CODES = {SERVED: 0, FAILED: 13, Verdict.REJECTED: UNAVAILABLE}


class Simulation:
    """Plays one run of a scenario. `traffic` must be of the same scenario and seed."""

    def __init__(
        self,
        scenario: Scenario,
        factory: PickerFactory,
        traffic: Traffic,
        seed: int,
        smoothing: float | None = None,
    ) -> None:
        self.scenario = scenario
        self._traffic = traffic
        self._seed = seed
        self.now = 0.0  # of what `at` does
        self._heap: Heap = []
        self._outward: deque[tuple[float, Any, int]] = deque()  # what `accept`s it
        self._answers: deque[Answer] = deque()
        self._order = count(len(traffic.times))
        self._half_trip = scenario.round_trip / 2.0
        self._is_over = False
        self._is_careful = scenario.is_careful
        self._end = scenario.warm_up + scenario.window
        self._seconds: list[Second] = []
        self._ticks = 0
        self._zone_errors: list[float] = []
        self._samples_zones = scenario.samples_zones
        # Of those that came after the warm-up; inf: failed, or not finished.
        self._first = bisect_left(traffic.times, scenario.warm_up)
        self.latencies = array("d", [inf]) * (len(traffic.times) - self._first)
        self.attempts = self.throttled = self.probes = 0
        self._make_backends(
            scenario.smoothing if smoothing is None else smoothing, seed
        )
        endpoints = snapshot(
            [
                Endpoint(
                    f"b{i:05}:1",
                    zone=scenario.zone_of(i),
                    task=i,
                    priority=scenario.priority_of(i),
                )
                for i in range(scenario.backends)
            ]
        )
        self.clients = [
            Client(i, scenario, endpoints, [*self.backends], factory, seed)
            for i in range(scenario.clients)
        ]
        self._plan(Random(f"{seed}/events"))
        for i in range(scenario.backends - scenario.joining, scenario.backends):
            self._absences[i] += 1
            self._at(scenario.warm_up, self._join, i)
        for i in range(scenario.leaving):
            self._at(scenario.warm_up, self._leave, i)

    # --- who is there, and what will happen to them ----------------------------

    def _make_backends(self, smoothing: float, seed: int) -> None:
        scenario = self.scenario
        rng = Random(f"{seed}/machines")
        places = list(range(scenario.backends))
        rng.shuffle(places)
        self._speeds = [scenario.speed_of(place) for place in places]
        self._factors: list[dict[str, float]] = [{} for _ in places]
        self._restarting = [0] * len(places)
        self._absences = [0] * len(places)  # restarts in which each is not there
        self.backends = [
            SimulatedBackend(
                scenario, scenario.speed_of(place), smoothing, self._heap,
                self._answers, Random(f"{seed}/backend {i}"), scenario.size_of(place),
                scenario.farther_of(place),
            )
            for i, place in enumerate(places)
        ]  # fmt: skip
        rng.shuffle(places)
        wrong = round(scenario.wrong_share * scenario.backends)
        silent = round(scenario.silent_share * scenario.backends)
        self._silenced = [self.backends[i] for i in places[:silent]]
        for rank, i in enumerate(places):
            self.backends[i].reports.mislead(
                silent=rank < silent and not scenario.silent_from,
                scale=scenario.wrong_factor if rank < wrong else 1.0,
                liar=rank < scenario.liars,
            )
            admission = self.backends[i].admission
            if admission is not None:
                admission.refuses_all = rank < scenario.refusing

    def _plan(self, rng: Random) -> None:
        scenario = self.scenario
        heappush(self._heap, (inf, -1, self._never, None))  # so that it is never empty
        self._at(0.0, self._tick)
        for client in self.clients:
            first = rng.random() * scenario.health_interval
            self._at(first, self._check_health, client)
            if scenario.max_subset_size > scenario.subset_size:
                self._at(client.phase * PAUSE, self._look_at_size, client)
        if scenario.has_neighbours:
            for i in range(scenario.backends):
                is_busy = rng.random() < 0.5
                self._set_neighbour(0.0, (i, is_busy, Random(rng.getrandbits(64))))
        if scenario.restart_every:
            self._at(scenario.restart_every, self._restart, rng)
        if scenario.slowed:
            slowed = rng.sample(range(scenario.backends), scenario.slowed)
            at = scenario.warm_up + scenario.slowed_after
            self._at(at, self._slow, slowed)
        self._plan_faults(scenario)

    def _plan_faults(self, scenario: Scenario) -> None:
        """What befalls some, drawn by lot before, or the first."""
        if scenario.zone_lost:
            self._at(scenario.warm_up, self._lose_zone)
        if scenario.silent_from:
            self._at(scenario.silent_from, self._silence)
        if scenario.sinkholes:
            self._at(scenario.warm_up, self._open_sinkholes)
        if scenario.gray:
            self._at(scenario.warm_up, self._turn_gray)
        if scenario.failing:
            rng = Random(f"{self._seed}/failing")
            self._at(scenario.warm_up, self._begin_to_fail, rng)

    def _at(self, at: float, act: Any, given: Any = None) -> None:
        heappush(self._heap, (at, next(self._order), act, given))

    def _never(self, now: float, _: None) -> None:
        raise AssertionError(f"the sentinel of the event heap ran at {now}")

    def _tick(self, now: float, _: None) -> None:
        for backend in self.backends:
            backend.sample(now)
        if self._ticks % round(1.0 / TICK) == 0:
            self._note(now)
            if self._samples_zones and self.scenario.warm_up <= now < self._end:
                self._compare_zones(now)
        self._ticks += 1
        self._at(self._ticks * TICK, self._tick)

    def _note(self, now: float) -> None:
        self._seconds.append(
            Second(
                now,
                [backend.busy for backend in self.backends],
                [backend.received for backend in self.backends],
            )
        )

    def _compare_zones(self, now: float) -> None:
        """How far what each client knows of its zone is from what is so."""
        said = [backend.reports.said[0] for backend in self.backends]
        whole = of_zones(self.scenario, said)
        for number, client in enumerate(self.clients):
            known = client.zone_utilization(now)
            if known is not None:
                error = known - whole[number % self.scenario.zones]
                self._zone_errors.append(error)

    def _check_health(self, now: float, client: Client) -> None:
        client.check_health(now)
        self._at(now + self.scenario.health_interval, self._check_health, client)

    def _look_at_size(self, now: float, client: Client) -> None:
        client.look_at_size(now)
        self._at(now + PAUSE, self._look_at_size, client)

    def _set_factor(self, i: int, cause: str, factor: float, now: float) -> None:
        self._factors[i][cause] = factor
        pace = self._speeds[i] * prod(self._factors[i].values())
        self.backends[i].set_pace(pace, now)

    def _set_neighbour(self, now: float, given: tuple[int, bool, Random]) -> None:
        i, is_busy, rng = given
        self.backends[i].set_cores(self.scenario.cores_beside(is_busy=is_busy), now)
        factor = self.scenario.neighbour if is_busy else 1.0
        self._set_factor(i, "neighbour", factor, now)
        pause = rng.expovariate(1.0 / self.scenario.neighbour_period)
        self._at(now + pause, self._set_neighbour, (i, not is_busy, rng))

    def _restart(self, now: float, rng: Random) -> None:
        scenario = self.scenario
        i = rng.randrange(scenario.backends)
        if scenario.restart_away:
            self._leave(now, i)
            if scenario.restart_loses:
                self.backends[i].crash(now)
            self._at(now + scenario.restart_away, self._join, i)
        else:
            self._start_cold(now, i)
        self._at(now + scenario.restart_every, self._restart, rng)

    def _leave(self, now: float, i: int) -> None:
        self._absences[i] += 1
        for client in self.clients:
            client.leave(i, now)

    def _join(self, now: float, i: int) -> None:
        self._absences[i] -= 1
        if not self._absences[i]:  # it did not restart once more since, nor leave
            self.backends[i].faults.is_gone = False
            self._start_cold(now, i)
            for client in self.clients:
                client.join(i, now)

    def _start_cold(self, now: float, i: int) -> None:
        self._restarting[i] += 1
        self._set_factor(i, "restart", self.scenario.restart_speed, now)
        self._at(now + self.scenario.restart_lasts, self._end_restart, i)

    def _end_restart(self, now: float, i: int) -> None:
        self._restarting[i] -= 1
        if not self._restarting[i]:  # it did not restart once more since
            self._set_factor(i, "restart", 1.0, now)

    def _slow(self, now: float, slowed: list[int]) -> None:
        for i in slowed:
            self._set_factor(i, "slowed", self.scenario.slowed_speed, now)

    def _lose_zone(self, now: float, _: None) -> None:
        for client in self.clients:
            client.lose(self.scenario.zone_of(0), self.scenario.zone_lost, now)

    def _silence(self, now: float, _: None) -> None:
        for backend in self._silenced:
            backend.reports.fall_silent()

    def at(self, at: float, act: Callable[[], None]) -> None:
        """Does that then; `now` is the time meanwhile."""
        self._at(at, self._act, act)

    def _act(self, now: float, act: Callable[[], None]) -> None:
        self.now = now
        act()

    def switch(self, at: float, factory: PickerFactory) -> None:
        """From then on all clients have another picker, which knows what they know."""
        self._at(at, self._switch, factory)

    def _switch(self, now: float, factory: PickerFactory) -> None:
        for client in self.clients:
            client.switch(factory)

    def _open_sinkholes(self, now: float, _: None) -> None:
        for backend in self.backends[: self.scenario.sinkholes]:
            backend.advance(now)
            backend.faults.is_sinkhole = True

    def _turn_gray(self, now: float, _: None) -> None:
        for i, backend in enumerate(self.backends[: self.scenario.gray]):
            backend.faults.delay = self.scenario.delay_of(self._speeds[i])

    def _begin_to_fail(self, now: float, rng: Random) -> None:
        share, methods = self.scenario.failing_share, self._traffic.methods

        def fails(number: int) -> bool:
            return (not methods or methods[number] == 1) and rng.random() < share

        for backend in self.backends[: self.scenario.failing]:
            backend.faults.fails = fails

    # --- the merge ---------------------------------------------------------------

    def run(self) -> Result:
        """Plays all requests, and then waits for them as long as a client would."""
        heap, outward, answers = self._heap, self._outward, self._answers
        times, indexes, costs, waits, keys, methods = self._traffic
        clients, half_trip, is_careful = self.clients, self._half_trip, self._is_careful
        is_told = bool(keys) or (bool(methods) and sees_calls(clients[0].picker))
        is_simple = not is_careful and not is_told
        first, latencies = self._first, self.latencies
        waits = waits or array("d", [0.0]) * len(costs)
        self._at(self._end + self.scenario.timeout, self._stop)
        times = times + array("d", [inf])  # after the last one no other is sent
        number, sent_at = 0, times[0]
        while not self._is_over:
            heap_at = heap[0][0]
            there_at = outward[0][0] if outward else inf
            back_at = answers[0][0] if answers else inf
            if sent_at < there_at and sent_at < back_at and sent_at < heap_at:
                client = clients[indexes[number]]
                if not is_simple or client.heard or client.outliers.count:
                    self._admit(sent_at, client, number)
                elif ready := client.pool.ready:
                    # The same without all that, as fast as can be.
                    node = client.picker.pick(ready, sent_at)
                    node.load.begin()
                    outward.append((sent_at + half_trip, node, number))
                    if client.probes:
                        self._ask(client, sent_at)
                number += 1
                sent_at = times[number]
            elif there_at <= heap_at and there_at <= back_at:
                _, to, it = outward.popleft()
                to.accept(to, it, costs[it], waits[it], there_at)
            elif back_at <= heap_at:
                _, node, it, verdict, report, refusal = answers.popleft()
                latency = back_at - times[it]
                if (
                    is_careful
                    or verdict is not SERVED
                    or back_at >= node.load.timed_at
                    or node.client.outliers.watching
                ):
                    ending = _ending(node, verdict, report, refusal)
                    self._settle(node, it, ending, back_at)
                else:
                    node.load.finish(Outcome(verdict, latency, report), back_at)
                if it >= first and verdict is SERVED:
                    latencies[it - first] = latency
            else:
                _, _, act, given = heappop(heap)
                act(heap_at, given)
        return self._measure()

    def _stop(self, now: float, _: None) -> None:
        self._is_over = True

    def _admit(self, now: float, client: Client, number: int) -> None:
        if not self._is_careful:
            self._send(now, client, number)
        elif client.admits(now):
            self._attempt(now, (client, number))
        else:
            self.throttled += number >= self._first

    def _attempt(self, now: float, given: tuple[Client, int]) -> None:
        client, number = given
        key = self._method(number)
        node = client.choose(number, now, self._hints(number), key)
        if node is not None:
            self.attempts += number >= self._first
            self._outward.append((now + self._half_trip, node, number))
            if client.probes:
                self._ask(client, now)

    def _send(self, now: float, client: Client, number: int) -> None:
        """Sends a request where picks depend on probes, ejections or keys."""
        ready = client.pool.ready
        call, key = self._hints(number), self._method(number)
        node = client.pick(ready, now, call, key) if ready else None
        if node is not None:  # else all that are not ejected are full
            node.load.begin()
            self._outward.append((now + self._half_trip, node, number))
            if client.probes:
                self._ask(client, now)

    def _hints(self, number: int) -> CallHints | None:
        """What a picker may know of a request; None: nothing that differs."""
        keys = self._traffic.keys
        if not keys and not self._traffic.methods:
            return None
        named = (key_name(self._seed, keys[number]),) if keys else ()
        return CallHints(METHODS[self._method(number)][1], named)

    def _method(self, number: int) -> int:
        """The key of its method."""
        methods = self._traffic.methods
        return methods[number] if methods else KEY

    def _ask(self, client: Client, now: float) -> None:
        """Asks whom the picker wants asked; they cost nothing there."""
        question = Question(client.probes.copy(), client.heard, self._half_trip)
        client.probes.clear()
        if now >= self.scenario.warm_up:
            self.probes += len(question.asked)
        self._outward.append((now + self._half_trip, question, 0))

    def _settle(
        self, node: SimulatedNode, number: int, ending: Ending, now: float
    ) -> None:
        client, key = node.client, self._method(number)
        if not self._is_careful:
            client.learn(node, ending, self._traffic.times[number], now, key)
            return
        again_at = client.settle(node, number, ending, now, key)
        if again_at is not None:
            self._at(again_at, self._attempt, (client, number))

    def _measure(self) -> Result:
        latencies, sent_at = self._looked_at()
        return measure(
            self.scenario,
            latencies,
            sent_at,
            self._seconds,
            self.throttled,
            self.attempts if self._is_careful else len(latencies),
            self.probes,
            self._away(),
            rms(self._zone_errors),
        )

    def _looked_at(self) -> "tuple[array[float], array[float]]":
        """Latencies, and when these requests were sent: where some wait for long, of
        the others."""
        latencies, sent_at = self.latencies, self._traffic.times[self._first :]
        if self.scenario.waiting_share == 1.0:
            return latencies, sent_at
        waits = self._traffic.waits[self._first :]
        kept = [i for i, wait in enumerate(waits) if not wait]
        return (
            array("d", [latencies[i] for i in kept]),
            array("d", [sent_at[i] for i in kept]),
        )

    def _away(self) -> float:
        """The share of all attempts that went to another zone."""
        sent = [
            (node.endpoint.zone != client.zone, node.load.started)
            for client in self.clients
            for node in client.pool.nodes.values()
        ]
        total = sum(count for _, count in sent)
        return (
            sum(count for is_away, count in sent if is_away) / total if total else 0.0
        )


def _ending(
    node: SimulatedNode,
    verdict: Verdict,
    report: LoadReport | None,
    refusal: Refusal | None,
) -> Ending:
    if verdict is FAILED and node.backend.faults.is_gone:
        return Ending(UNAVAILABLE)  # its connection ended
    return Ending(CODES[verdict], report, refusal)
