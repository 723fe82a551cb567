"""Cache-aware routing: where a call is answered soonest, by what backends have cached.

One score, in seconds; the lowest is picked:

    score = share * ahead + price * missing

`ahead` is the work that waits on the backend before the call, `missing` the number of
its keys that the backend has probably not cached, and `price` the price of a miss: the
seconds that it takes to make one. A backend that has all of a call's keys is picked
until its queue costs more than to make them elsewhere.

`missing` comes from what was sent where (`cache_memory`), `price` and `share` from how
soon calls were answered (`miss_cost`), unless `miss_cost` is given. Calls of this
client that are not answered are ahead; calls of others as the backend reports them.
"""

from collections.abc import Sequence
from math import exp, inf
from random import Random
from typing import NamedTuple

from lbclient.core.call_hints import CallHints
from lbclient.core.load import FORGOTTEN_AFTER
from lbclient.core.model import LoadReport
from lbclient.core.protocols import N, Node
from lbclient.core.routing.key_hash import backend_hash, draw, hash64
from lbclient.pickers.cache_memory import NOTHING, CachedOn, CacheMemory
from lbclient.pickers.keyed import ByKeys
from lbclient.pickers.miss_cost import MissCost
from lbclient.pickers.options import between
from lbclient.pickers.slow_start import SLOW_START

QUEUE = "named_metrics.queue_length"
EXPIRATION = 180.0  # seconds; a report that is older counts as none (gRFC A58)
STEP = 0.25  # seconds between two looks at what changes slowly
HORIZON = 2.0  # seconds in which what was told of others' calls fades to the mean
TRUST = 0.5  # of an unknown key's price, where all calls are others'
ALIKE = 0.02  # of the price of all keys; scores that differ by less are equal
GAIN = 0.2  # of a step, in means
FORGET_AFTER = 60.0  # seconds that a backend has been away


class SentCall(NamedTuple):
    """A call that is not answered. `call` is kept, so that its identity is its own."""

    call: CallHints
    missing: float
    cached: CachedOn
    ahead: float
    service: float


class CacheHome:
    """One backend as the home of keys: who waits there. Owned by a picker."""

    __slots__ = (
        "hash",
        "index",
        "left_at",
        "moved_at",
        "node",
        "number",
        "others",
        "pending",
        "ready_at",
        "report",
        "seconds",
        "task_id",
    )

    def __init__(self, node: Node, number: int) -> None:
        self.node = node
        self.number = number
        self.hash = backend_hash(node.endpoint)
        self.index = 0
        self.task_id = 0  # of its server; 0: it tells none
        self.left_at = inf
        self.ready_at = node.load.ready_at
        self.pending: dict[int, SentCall] = {}  # by identity of its hints
        self.seconds = 0.0  # of work in them
        self.moved_at = 0.0  # when the first of them began to be worked on
        self.report: LoadReport | None = None  # the last one that was looked at
        self.others: float | None = None  # calls of others that waited then

    def own(self, now: float) -> float:
        """Seconds of work of this client's calls that wait or are worked on."""
        if not self.pending:
            return 0.0
        first = next(iter(self.pending.values())).service
        return self.seconds - min(first, now - self.moved_at)

    def send(self, sent: SentCall, now: float) -> None:
        self.take(id(sent.call), now)
        if not self.pending:
            self.moved_at, self.seconds = now, 0.0
        self.pending[id(sent.call)] = sent
        self.seconds += sent.service

    def take(self, identity: int, now: float) -> SentCall | None:
        """Takes out a call that is answered, or was not sent."""
        sent = self.pending.pop(identity, None)
        if sent is not None:
            self.seconds -= sent.service
            self.moved_at = now
        return sent

    def __repr__(self) -> str:
        return f"<{self.node.endpoint.address}: {len(self.pending)} unanswered>"


class CacheAware(ByKeys):
    """Sends calls where they are answered soonest: a cached key saves its price, a
    queue costs its time.

    Use it where a backend that has seen keys before is faster by far more than a usual
    wait: caches, engines that keep the prefixes of prompts. `lbclient.key` gives the
    keys, from the most to the least specific. Calls without keys are picked as by
    `WeightedLeastLoaded`.

    `miss_cost`: seconds, above 0, that a backend takes for a key that it has not
    cached; None: learned from how soon calls are answered. `slow_start`: seconds until
    a newcomer has its full weight, for calls without keys. `keyed_picks` counts picks
    of calls with keys, `expected_hits` the keys of these that were probably cached,
    `asked_keys` all of them.
    """

    rule = (
        "A call goes where it should be answered soonest, by the requests before it "
        "and by its keys that are not cached there; a call without keys goes to the "
        "one with the least work for its weight."
    )

    def __init__(
        self,
        rng: Random,
        *,
        miss_cost: float | None = None,
        slow_start: float = SLOW_START,
    ) -> None:
        if miss_cost is not None:
            between("miss_cost", miss_cost, 1e-6, 3600.0)
        super().__init__(rng, slow_start)
        self.memory = CacheMemory()
        self.cost = MissCost(miss_cost)
        self.asked_keys = 0
        self.expected_hits = 0.0
        self._homes: dict[Node, CacheHome] = {}
        self._present: list[CacheHome] = []
        self._numbers = 0
        self._last: tuple[CallHints | None, CacheHome | None] = (None, None)
        self._service = 1.0  # seconds that a call takes by itself, the mean
        self._others = 0.0  # calls of others that wait at a backend, the mean
        self._unanswered = 1.0  # of calls in flight, the share that has no answer yet
        self._foreign = 0.0  # of all calls in flight, the share of other clients

    # --- picks ---------------------------------------------------------------

    def pick_for(self, call: CallHints, ready: Sequence[N], now: float) -> N:
        if not call.keys:
            return self.pick(ready, now)
        self._catch_up(ready, now)
        last, home = self._last
        if last is call and home is not None:  # it was not sent there
            home.take(id(call), now)
        keys = call.keys
        count = len(keys)
        found, known = self.memory.find(keys)
        price, share = self.cost.price, self.cost.share
        # Whoever of all clients has seen none of the next key agrees on its place.
        least = hash64(keys[max(0, count - 1 - known)])
        trust = TRUST * self._foreign * price * (count - known)
        here = self._present
        if call.tried:
            here = [home for home in here if home.node not in call.tried] or here
        draws = [draw(least, home.hash) for home in here]
        scores = []
        for home in here:
            has = found.get(home.number, NOTHING)
            ahead = self._ahead(home, now)
            scores.append(share * ahead + price * (count - has.expected))
        scores[draws.index(max(draws))] -= trust
        bound = min(scores) + ALIKE * price * count
        alike = [place for place, score in enumerate(scores) if score <= bound]
        best = here[max(alike, key=draws.__getitem__)]
        self._send(call, best, found.get(best.number, NOTHING), now)
        return ready[best.index]

    def _send(
        self, call: CallHints, home: CacheHome, has: CachedOn, now: float
    ) -> None:
        count = len(call.keys)
        missing = count - has.expected
        service = self.cost.service(missing)
        ahead = self._ahead(home, now)
        home.send(SentCall(call, missing, has, ahead, service), now)
        self._service += 0.02 * (service - self._service)
        self.memory.note(call.keys, home.number, missing)
        if self._last[0] is not call:
            self.keyed_picks += 1
            self.asked_keys += count
            self.expected_hits += has.expected
        self._last = call, home

    def _ahead(self, home: CacheHome, now: float) -> float:
        """Seconds of work before a call that is sent there now."""
        load = home.node.load
        seconds = home.own(now)
        if load.report is not home.report:
            self._look(home, now)
        others = self._others
        if home.others is not None:
            age = now - load.reported_at
            if age <= EXPIRATION:
                others += (home.others - others) * exp(-max(0.0, age) / HORIZON)
        if load.erred_at > now - FORGOTTEN_AFTER:
            others += load.recent_errors(now)
        return seconds + others * self._service

    def _look(self, home: CacheHome, now: float) -> None:
        """Takes from a new report how many calls of others wait."""
        report = home.report = home.node.load.report
        if report is None:
            home.others = None
            return
        if report.task_id:
            if home.task_id and report.task_id != home.task_id:
                self._begin_anew(home)
            home.task_id = report.task_id
        queue = report.metrics.get(QUEUE)
        if queue is not None:
            home.others = max(0.0, queue - len(home.pending))
        elif report.active is not None:
            of_others = max(0, report.active - home.node.load.in_flight)
            home.others = of_others * self._unanswered
        else:
            home.others = None

    def answered(
        self, call: CallHints, node: Node, seconds: float | None, now: float
    ) -> None:
        """Takes the seconds until a call's first message or end. None: it failed or was
        cancelled, which says nothing of how long it takes."""
        home = self._homes.get(node)
        sent = None if home is None else home.take(id(call), now)
        if sent is None or home is None:
            return
        if seconds is None:
            fresh = call.keys[: len(call.keys) - sent.cached.once]
            self.memory.take_back(fresh, home.number)
            return
        cost, has = self.cost, sent.cached
        expected = cost.service(sent.missing) + cost.share * sent.ahead
        if has.alike and cost.seen:
            worth = cost.price * has.alike
            kept = self.memory.kept[has.step] - (seconds - expected) / worth
            self.memory.learn(has.step, kept, worth / (worth + expected))
        cost.learn(sent.missing, sent.ahead, seconds)

    # --- who is there ----------------------------------------------------------

    def _follow(self, ready: Sequence[Node], now: float) -> None:
        for home in self._present:
            home.left_at = now
        self._present = []
        for index, node in enumerate(ready):
            home = self._homes.get(node)  # type: ignore[assignment]
            if home is None:
                home = self._homes[node] = CacheHome(node, self._next_number())
            elif home.ready_at != node.load.ready_at:  # it was lost
                home.ready_at = node.load.ready_at
                if not home.task_id:  # and may be another task
                    self._begin_anew(home)
            home.index, home.left_at = index, inf
            self._present.append(home)

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _begin_anew(self, home: CacheHome) -> None:
        """Another task has the address: nothing is cached there."""
        self.memory.forget(home.number)
        home.number = self._next_number()

    def _step(self, now: float) -> None:
        """Brings up to date what changes slowly. O(k), four times a second."""
        self._step_at = now + STEP
        for node, home in list(self._homes.items()):
            if now - home.left_at > FORGET_AFTER:
                self.memory.forget(home.number)
                del self._homes[node]
        told = []
        active = 0
        for home in self._present:
            load = home.node.load
            while len(home.pending) > load.in_flight:  # picked, but not sent
                home.take(next(reversed(home.pending)), now)
            if load.report is not home.report:
                self._look(home, now)
            if home.others is not None and now - load.reported_at <= EXPIRATION:
                told.append(home.others)
                report = load.report
                if report is not None and report.active is not None:
                    active += max(0, report.active - load.in_flight)
        mean = sum(told) / len(told) if told else 0.0
        self._others += GAIN * (mean - self._others)
        own = sum(home.node.load.in_flight for home in self._present)
        if own:
            unanswered = sum(len(home.pending) for home in self._present) / own
            self._unanswered += GAIN * (min(1.0, unanswered) - self._unanswered)
        if own + active:
            self._foreign += GAIN * (active / (own + active) - self._foreign)

    # --- for people to look at -------------------------------------------------

    def weights(self, ready: Sequence[N], now: float) -> Sequence[float]:
        return self._inner.weights(ready, now)

    def __repr__(self) -> str:
        hit = self.expected_hits / self.asked_keys if self.asked_keys else 0.0
        return (
            f"<cache aware over {self._backends}: {hit:.0%} of keys expected to be "
            f"there, {self.cost.price:.4f} s a miss>"
        )
