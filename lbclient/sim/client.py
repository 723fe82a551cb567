"""A simulated client: the pool, picker, ejections, throttle and retries of a channel.

All of them are those that run in production. What a channel does around them, waiting
and I/O, is left out: every backend is connected all the time.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from random import Random
from typing import Protocol, cast

from lbclient.core.backends.pool import Change, Limits, Pool
from lbclient.core.backends.subset_size import SubsetSize
from lbclient.core.call_hints import CallHints
from lbclient.core.counting.call_counts import Method
from lbclient.core.criticality import DEFAULT
from lbclient.core.load import Load
from lbclient.core.model import Endpoint, Endpoints, LoadReport, Outcome, State, Verdict
from lbclient.core.outliers.outlier_judgement import compared
from lbclient.core.outliers.outliers import Outliers
from lbclient.core.protocols import Picker, PickerFactory, ProbingPicker
from lbclient.core.retries.ending import Ending
from lbclient.core.retries.retry import Budget, Failure, Retry
from lbclient.core.routing.keyed_picks import PickerForCall, sees_calls
from lbclient.core.routing.locality import prefer_near
from lbclient.core.routing.next_backend import two_others
from lbclient.core.routing.spill_control import utilization
from lbclient.core.routing.spillover import Spillover
from lbclient.core.throttles.throttling import Throttling
from lbclient.sim.faults import SimulatedFaults
from lbclient.sim.scenario import Scenario
from lbclient.subsets import order

METHODS: tuple[Method, ...] = (
    ("unary_unary", "/simulated/Call"),  # all requests are of this one, or some ...
    ("unary_unary", "/simulated/Other"),  # ... are of the second
)
KEY = 0  # of the first one's counts; that of the second is the next


class Accepting(Protocol):
    """The backend at the other end, as a client knows it."""

    faults: SimulatedFaults

    def accept(
        self, node: "SimulatedNode", number: int, cost: float, wait: float, now: float
    ) -> None: ...

    def report(self) -> LoadReport | None: ...

    def answer_probe(self) -> LoadReport | None: ...


class SimulatedNode:
    """What one client knows of one backend: a `protocols.Node` that leads to it."""

    __slots__ = ("accept", "backend", "client", "endpoint", "load", "state")

    def __init__(
        self, endpoint: Endpoint, client: "Client", backend: Accepting
    ) -> None:
        self.endpoint = endpoint
        self.state = State.CONNECTING
        self.load = Load()
        self.client = client
        self.backend = backend
        self.accept = backend.accept

    def attempt_of(self, number: int) -> int:
        """What goes on the wire with that request."""
        retry = self.client.retries.get(number)
        return retry.attempt if retry else 0

    def may_decline(self, number: int) -> bool:
        """Whether it may have that request picked for once more."""
        client = self.client
        return client.may_be_declined(number) and len(client.pool.ready) > 1

    def __repr__(self) -> str:
        return f"<{self.endpoint.address}, {self.load.in_flight} in flight>"


# The answers to a question: when they come, and from where each.
Said = tuple[float, list[tuple[SimulatedNode, LoadReport | None]]]


class Client:
    """One task of the client job. Owned by the simulation.

    `retries` are of requests that were refused and may go again, `tried` where these
    were sent; `sent_at` tells when their last attempt began. `heard` has answers to
    questions, by when they come.
    """

    def __init__(
        self,
        number: int,
        scenario: Scenario,
        endpoints: Endpoints,
        backends: "list[Accepting]",
        factory: PickerFactory,
        seed: int,
    ) -> None:
        rng = Random(f"{seed}/client {number}")
        # It has been up for a part of a second: clients do not march in step.
        self.phase = rng.random()
        self._scenario = scenario
        self.zone = scenario.zone_of(number)
        self._absent = {*range(scenario.backends - scenario.joining, scenario.backends)}
        self._is_near = bool(self.zone) and scenario.locality == "spill"
        self._spills = self._is_near or any(scenario.zone_priorities)
        self.picker = self._make_picker(factory, rng)
        self.probes: list[SimulatedNode] = getattr(self.picker, "probes", [])
        self.heard: deque[Said] = deque()
        self.throttling = Throttling(
            Random(rng.getrandbits(64)),
            scenario.throttle,
            lambda: (one.load for one in self.pool.ready),
        )
        self.budget = Budget(scenario.retry_ratio)
        self.retries: dict[int, Retry] = {}
        self.tried: dict[int, tuple[SimulatedNode, ...]] = {}
        self.sent_at: dict[int, float] = {}
        self._declined: dict[int, int] = {}  # attempts of requests that go again
        self._attempts = scenario.attempts
        self._rng = rng
        self._number = number
        size = min(scenario.subset_size, scenario.backends)
        limits = Limits(size, scenario.active_limit, 1.0, 10.0, 0)
        by_address = dict(zip(endpoints, backends, strict=True))
        self.pool: Pool[SimulatedNode] = Pool(
            lambda endpoint: SimulatedNode(endpoint, self, by_address[endpoint]),
            self._prefer,
            limits,
        )
        of_outliers = Random(f"{seed}/outliers {number}")
        ejects_late = scenario.eject_late
        self.outliers = Outliers(self.pool, of_outliers, ejects_late=ejects_late)
        self._ejects = scenario.ejection
        self._size = SubsetSize(size, scenario.max_subset_size)
        self._served, self._counted_at = 0, -self.phase
        self._connect(self.pool.reconcile(endpoints, -self.phase), -self.phase)
        self.picker.pick(self.pool.ready, -self.phase)  # so its clockwork runs

    def _prefer(self, endpoints: Endpoints) -> Iterator[Endpoint]:
        scenario = self._scenario
        size = min(scenario.subset_size, len(endpoints))
        numbers = order(scenario.subset, self._number, len(endpoints), size)
        size = max(size, min(scenario.max_subset_size, len(endpoints)))
        preferred = (endpoints[number] for number in numbers)
        if self._spills:
            return islice(
                prefer_near(preferred, self.zone if self._is_near else ""), size
            )
        if scenario.locality == "strict":
            preferred = (each for each in preferred if each.zone == self.zone)
        return islice(preferred, size)

    def _make_picker(self, factory: PickerFactory, rng: Random) -> Picker:
        if self._spills:
            zone = self.zone if self._is_near else ""
            limits = self._scenario.spill_limits()
            factory = partial(Spillover, factory, zone, limits=limits)
        return factory(Random(rng.getrandbits(64)))

    def switch(self, factory: PickerFactory) -> None:
        self.picker = self._make_picker(factory, self._rng)
        self.probes = getattr(self.picker, "probes", [])
        self.heard = deque()  # what the old one asked does not concern the new

    def lose(self, zone: str, share: float, now: float) -> None:
        """The backends of that zone are gone, as many of them."""
        for node in self.pool.nodes.values():
            # By number: all clients lose the same ones, evenly over the zone.
            place = (node.endpoint.task or 0) // max(1, self._scenario.zones)
            is_lost = int((place + 1) * share) > int(place * share)
            if node.endpoint.zone == zone and is_lost:
                self._observe(node, State.REFUSING, now)

    def leave(self, number: int, now: float) -> None:
        """The backend of that number is gone, and serves what it has."""
        self._absent.add(number)
        self._enter(number, State.REFUSING, now)

    def join(self, number: int, now: float) -> None:
        """The backend of that number is there, for the first time or again."""
        self._absent.discard(number)
        self._enter(number, State.READY, now)

    def _enter(self, number: int, state: State, now: float) -> None:
        for node in self.pool.nodes.values():
            if node.endpoint.task == number:
                self._observe(node, state, now)

    def _connect(self, change: Change[SimulatedNode], now: float) -> None:
        for node in change.opened:
            if node.endpoint.task not in self._absent:
                self._observe(node, State.READY, now)
        for node in change.drained:
            self.outliers.forget(node)

    def _observe(self, node: SimulatedNode, state: State, now: float) -> None:
        if self.pool.observe(node, state, now):
            self.outliers.changed(node, now)

    def look_at_size(self, now: float) -> None:
        """Whether the subset is as large as the client's share of the traffic asks."""
        nodes = self.pool.nodes.values()
        served = sum(node.load.counts[Verdict.SERVED] for node in nodes)
        own = (served - self._served) / (now - self._counted_at)
        loads = [node.load for node in nodes if node.state is State.READY]
        before, backends = self._size.size, len(self.pool.members)
        size = self._size.observe(own, loads, len(loads), backends, now)
        if size != before:
            self._connect(self.pool.resize(size, now), now)
        nodes = self.pool.nodes.values()
        self._served = sum(node.load.counts[Verdict.SERVED] for node in nodes)
        self._counted_at = now

    def check_health(self, now: float) -> None:
        for node in self.pool.nodes.values():
            if node.endpoint.task in self._absent:
                continue
            if (report := node.backend.report()) is not None:
                node.load.observe(report, now)

    def zone_utilization(self, now: float) -> float | None:
        """Of its zone, by what it knows: by the backends of its subset alone."""
        near = [one for one in self.pool.ready if one.endpoint.zone == self.zone]
        return utilization(near, now) if near else None

    def pick(
        self,
        ready: Sequence[SimulatedNode],
        now: float,
        call: CallHints | None = None,
        key: int = KEY,
    ) -> SimulatedNode | None:
        """Returns the picker's choice among the backends that are not ejected from the
        method of that key.

        None if all of these are full. The picker first hears the answers to its probes
        that have come by now; nobody else wants these.
        """
        if self.heard:
            self._hear(now)
        picker = self.picker
        if call is not None and sees_calls(picker):
            picker = PickerForCall(picker, call)
        if self.outliers.count:
            return self.outliers.pick(picker, key, now)
        return picker.pick(ready, now)

    def _hear(self, now: float) -> None:
        heard = self.heard
        probed = cast(ProbingPicker, self.picker).probed
        while heard and heard[0][0] <= now:
            at, answers = heard.popleft()
            for node, report in answers:
                load = node.load
                if report is not None and load.reported_at <= at:
                    load.observe(report, at)
                probed(node, report, at)

    def learn(
        self,
        node: SimulatedNode,
        ending: Ending,
        sent_at: float,
        now: float,
        key: int = KEY,
    ) -> Outcome:
        """Learns from the end of an attempt, as a channel does.

        Returns the outcome by its status; the backend's load takes what is left of it
        once it is compared with the answers of the others.
        """
        outcome = learned = ending.outcome(now - sent_at)
        code, outliers = ending.code, self.outliers
        is_timed = now >= node.load.timed_at
        is_news = outliers.watching or (code and outcome.is_answer) or is_timed
        if self._ejects and is_news:
            judgement = outliers.judge(
                key, node, outcome, code, sent_at, now, lambda: METHODS[key]
            )
            if judgement is not None:
                learned, owed = compared(outcome, judgement, node.load)
                if owed:
                    node.load.owe(owed, now)
        node.load.finish(learned, now)
        return outcome

    # --- what only clients do that throttle or retry ---------------------------

    def admits(self, now: float) -> bool:
        """Whether a new request may be sent; it then earns a part of a retry."""
        if not self._may_send(now):
            return False
        self.budget.deposit()
        return True

    def _may_send(self, now: float) -> bool:
        throttling = self.throttling
        return not throttling.is_active or not throttling.refusal(DEFAULT, "", now)

    def choose(
        self, number: int, now: float, call: CallHints | None = None, key: int = KEY
    ) -> SimulatedNode | None:
        """Whom to send it to; None: nobody has room for it."""
        if not self.pool.ready:
            return None
        tried = self.tried.get(number, ()) if self._scenario.avoid_tried else ()
        if tried and call is not None:
            call = call._replace(tried=tried)
        node = self.pick(self.pool.ready, now, call, key)
        if node is None:
            return None
        allowed = self.outliers.allowed(key)
        if node in tried and (others := two_others(tried, allowed, self._rng)):
            node = others[0]
        node.load.begin()
        self.sent_at[number] = now
        return node

    def may_be_declined(self, number: int) -> bool:
        return self._declined.get(number, 0) < self._scenario.late_binding

    def settle(
        self,
        node: SimulatedNode,
        number: int,
        ending: Ending,
        now: float,
        key: int = KEY,
    ) -> float | None:
        """Learns from an attempt; when to begin the next, or None."""
        outcome = self.learn(node, ending, self.sent_at.pop(number), now, key)
        if ending.is_declined():
            self._declined[number] = self._declined.get(number, 0) + 1
            return now
        self._declined.pop(number, None)
        throttling = self.throttling
        if throttling.is_active or (outcome.refusal is not None and throttling.is_on):
            throttling.observe(DEFAULT, outcome, "", now)
        retry = self.retries.pop(number, None)
        tried = self.tried.pop(number, ())
        if self._attempts == 1 or not ending.may_be_retried():
            return None
        retry = retry or Retry(self.budget, self._rng, self._attempts)
        failure = Failure(ending.refusal, pushback=ending.pushback)
        is_other = any(other is not node for other in self.outliers.allowed(key))
        delay = retry.decide(
            failure, None, is_other, lambda: not self._may_send(now)
        ).delay
        if delay is None:
            return None
        self.retries[number] = retry
        self.tried[number] = (*tried, node)
        return now + delay

    def __repr__(self) -> str:
        return f"<client {self._number}: {self.pool!r}>"


class Question:
    """A client's, on its way to some of its backends; what they say comes back to it.

    It is under way among the requests, as the network takes as long for both.
    """

    __slots__ = ("_back", "_heard", "asked")

    def __init__(
        self, asked: list[SimulatedNode], heard: deque[Said], back: float
    ) -> None:
        self.asked = asked
        self._heard = heard
        self._back = back

    def accept(
        self, to: object, number: int, cost: float, wait: float, now: float
    ) -> None:
        """Answers the question, which comes as a request does."""
        answers = [(node, node.backend.answer_probe()) for node in self.asked]
        self._heard.append((now + self._back, answers))

    def __repr__(self) -> str:
        return f"<question to {len(self.asked)}>"
