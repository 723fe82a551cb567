"""Consistent hashing with bounded load: each key has a backend, until that is too full.

Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing with bounded loads" (2016): a
key goes to its first choice unless that has more than `balance_factor` times the mean
load; then to its second, and so on. There load is the number of assigned keys, known to
who assigns them. Here many clients assign without speaking to each other, so load is
what backends report, of all clients: see `key_homes`.

The order of a key's choices is that of `core.routing.key_hash`, the same for all
clients. Resolvers' weights count in it, reported ones do not: they differ from client
to client. A slow backend reaches the bound of utilization sooner.

Calls without a key go to the least loaded, as `WeightedLeastLoaded` has it.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice
from math import fsum, inf
from random import Random

from lbclient.core.call_hints import CallHints
from lbclient.core.load import FORGOTTEN_AFTER
from lbclient.core.model import Endpoint, Endpoints
from lbclient.core.protocols import N, Node
from lbclient.core.routing import key_hash
from lbclient.pickers.key_homes import (
    ABSENT,
    TUNING,
    KeyHome,
    place,
    requests_bound,
    utilization_bound,
)
from lbclient.pickers.keyed import ByKeys
from lbclient.pickers.options import between
from lbclient.pickers.slow_start import MOMENT, SLOW_START, SlowStart

BALANCE_FACTOR = 1.25  # the paper's examples; HAProxy's manual: 125 to 150
MOST_ORDERS = 1000  # of keys that are kept, k numbers each
FORGET_AFTER = 60.0  # seconds that a backend has been away

KeyOrder = tuple[float, tuple[KeyHome, ...], Endpoint | None]
"""The place of a key from 0 to 1, all backends in its order, and whoever of the fleet
comes before them."""


class ConsistentHashing(ByKeys):
    """Sends calls with one key to one backend, the same for all clients.

    Use it for sessions, shards and caches: `lbclient.key` sets the key of calls. Of
    several keys the first one counts. A backend with more than `balance_factor` times
    the mean load keeps the calls of most keys; those of its hottest keys go on to their
    next choice. Calls without a key are picked as by `WeightedLeastLoaded`.

    `balance_factor`: 1.05 to 10. `slow_start`: seconds until a newcomer has all of its
    keys; they come one by one. `keyed_picks` counts attempts of calls with a key,
    `first_choices` those of them that went to the first choice among the ready
    backends.
    """

    rule = (
        "A call goes to the first backend in the order of its key that is not too "
        "full; a call without a key goes to the one with the least work for its weight."
    )

    def __init__(
        self,
        rng: Random,
        *,
        balance_factor: float = BALANCE_FACTOR,
        slow_start: float = SLOW_START,
    ) -> None:
        self._rng = rng
        self._factor = between("balance_factor", balance_factor, 1.05, 10.0)
        super().__init__(rng, slow_start)
        self._slow_start = SlowStart(between("slow_start", slow_start, 0.0, 3600.0))
        self.first_choices = 0
        self._last: tuple[CallHints | None, bool] = (None, False)
        self._homes: dict[Node, KeyHome] = {}  # of those here, and that left of late
        self._present: list[KeyHome] = []
        self.want: Callable[[Endpoint], None] = lambda endpoint: None
        self._members: Endpoints = ()
        self._hashes: list[int] = []  # of the members
        self._weights: list[float] = []
        # Of the fleet, by key; last used is last.
        self._firsts: OrderedDict[str, Endpoint] = OrderedDict()
        self._orders: OrderedDict[str, KeyOrder] = OrderedDict()  # last used is last
        self._stepped_at = -inf
        self._horizon = TUNING.shortest_horizon
        self._active = 1.0  # requests in flight on a backend, the mean
        self._weight = 1.0  # of a backend, the mean
        self._least_errors = 0.0

    # --- picks ---------------------------------------------------------------

    def pick_for(self, call: CallHints, ready: Sequence[N], now: float) -> N:
        if not call.keys:
            return self.pick(ready, now)
        self._catch_up(ready, now)
        key = call.keys[0]
        where, order, beyond = self._order_of(key)
        if self._members:
            self._reach(order[0], beyond)
        first, chosen = self._in_order(order, where, call, now)
        if chosen is None:
            chosen = self._emptiest(call, now)
        self._count(call, chosen is first and beyond is None)
        return ready[chosen.index]

    def home_of(self, call: CallHints, ready: Sequence[N], now: float) -> N | None:
        """The first choice of the call's key, while that takes all of its calls."""
        self._catch_up(ready, now)
        where, order, beyond = self._order_of(call.keys[0])
        first = order[0]
        if self._members:
            self._reach(first, beyond)
        if beyond is not None or first.index == ABSENT:
            return None
        if first.kept < 1.0 or where >= first.ramp or self._is_full(first, now):
            return None
        return ready[first.index]

    def _in_order(
        self, order: Sequence[KeyHome], where: float, call: CallHints, now: float
    ) -> tuple[KeyHome | None, KeyHome | None]:
        """The first backend that is ready, and the first one that takes the call."""
        key = call.keys[0]
        first: KeyHome | None = None
        for home in order:
            if home.index == ABSENT:
                continue
            if first is None:
                first = home
            if call.tried and home.node in call.tried:
                continue
            if home.takes(key, where, self._rng) and not self._is_full(home, now):
                return first, home
        return first, None

    def _is_full(self, home: KeyHome, now: float) -> bool:
        weight = home.weight / self._weight
        most = requests_bound(self._active, self._factor, weight)
        return home.requests(self._horizon, self._least_errors, now) > most

    def _emptiest(self, call: CallHints, now: float) -> KeyHome:
        """Finds who takes a call that nobody would: chance may leave all a little above
        the mean."""
        untried = [home for home in self._present if home.node not in call.tried]

        def fullness(home: KeyHome) -> float:
            requests = home.requests(self._horizon, self._least_errors, now)
            return (requests + 1.0) / home.weight

        return min(untried or self._present, key=fullness)

    def _count(self, call: CallHints, is_first: bool) -> None:
        """Counts once for each attempt: the last pick may be asked for again."""
        again, was_first = self._last
        if again is call:
            self.first_choices -= was_first
        else:
            self.keyed_picks += 1
        self.first_choices += is_first
        self._last = call, is_first

    def _order_of(self, key: str) -> KeyOrder:
        found = self._orders.get(key)
        if found is not None:
            self._orders.move_to_end(key)
            return found
        found = self._orders[key] = self._find_order(key)
        if len(self._orders) > MOST_ORDERS:
            self._orders.popitem(last=False)
        return found

    def _find_order(self, key: str) -> KeyOrder:
        homes = list(self._homes.values())
        number = key_hash.hash64(key)
        if len({home.hash for home in homes}) < len(homes):  # tasks with several
            draws = {home: key_hash.draw(number, home.tie) for home in homes}
            homes.sort(key=draws.__getitem__, reverse=True)
        hashes = [home.hash for home in homes]
        weights = [home.score_weight for home in homes]
        indexes = key_hash.order(number, hashes, weights)
        beyond = self._beyond(key, number, homes[indexes[0]])
        return place(number), tuple(homes[index] for index in indexes), beyond

    # --- beyond the subset -----------------------------------------------------

    def know(self, members: Endpoints) -> None:
        """Takes all members of the fleet, of which those that a key wants can come."""
        known = dict(zip(map(identity, self._members), self._hashes, strict=True))
        self._members = members
        self._hashes = [
            known.get(identity(one)) or key_hash.backend_hash(one) for one in members
        ]
        self._weights = list(map(key_hash.backend_weight, members))
        self._firsts.clear()
        self._orders.clear()

    def _reach(self, first: KeyHome, beyond: Endpoint | None) -> None:
        if beyond is not None:
            self.want(beyond)
        elif first.index == ABSENT:
            self.want(first.endpoint)

    def _beyond(self, key: str, number: int, first: KeyHome) -> Endpoint | None:
        """The key's first choice of the fleet, if it is not the first of those here.
        O(members), once for a key until they change."""
        if not self._members:
            return None
        found = self._firsts.get(key)
        if found is None:
            weights = self._weights
            found = self._members[key_hash.first(number, self._hashes, weights)]
            if len(self._firsts) >= 2 * MOST_ORDERS:
                self._firsts.popitem(last=False)
            self._firsts[key] = found
        self._firsts.move_to_end(key)
        return None if key_hash.backend_hash(found) == first.hash else found

    # --- who is there, and how full ------------------------------------------

    def _follow(self, ready: Sequence[Node], now: float) -> None:
        """Takes new members. Cheap where all are known: full ones leave and return."""
        for home in self._present:
            home.index, home.left_at = ABSENT, now
        self._present = []
        for index, node in enumerate(ready):
            if node not in self._homes:
                self._homes[node] = KeyHome(node)
                self._orders.clear()
                self._step_at = now
            home = self._homes[node]
            if now - home.left_at >= MOMENT:  # its load is not what it was
                home.begin_anew()
            home.index, home.left_at = index, inf
            self._present.append(home)

    def _step(self, now: float) -> None:
        """Brings up to date what changes slowly. O(k), four times a second."""
        seconds = min(TUNING.longest_step, now - self._stepped_at)
        self._stepped_at, self._step_at = now, now + TUNING.step
        self._forget(now)
        homes = self._present
        self._slow_start.look(self._built_for, now)
        ramps = self._slow_start.shares(self._built_for, now)
        for home, ramp in zip(homes, ramps, strict=True):
            home.ramp = ramp
            home.observe_active()
        loads = [home.node.load for home in homes]
        latencies = [load.latency for load in loads if load.latency]
        if latencies:
            self._horizon = max(TUNING.shortest_horizon, mean(latencies))
        self._active = mean([home.active for home in homes])
        self._weight = mean([home.weight for home in homes])
        errors = [
            load.recent_errors(now) if load.erred_at > now - FORGOTTEN_AFTER else 0.0
            for load in loads
        ]
        self._least_errors = min(errors)
        told = [home.used(now) for home in homes if home.ramp == 1.0]
        told = [used for used in told if used > 0.0]
        bound = utilization_bound(mean(told), self._factor) if told else 1.0
        for home in homes:
            home.step(bound, seconds, now)

    def _forget(self, now: float) -> None:
        """Forgets those that have left, and takes what is new of the others."""
        for node, home in list(self._homes.items()):
            if now - home.left_at > FORGET_AFTER:
                del self._homes[node]
                self._orders.clear()
            elif node.endpoint is not home.endpoint:
                if node.endpoint != home.endpoint:
                    self._orders.clear()
                home.take(node.endpoint)

    # --- for people to look at -------------------------------------------------

    def weights(self, ready: Sequence[N], now: float) -> Sequence[float]:
        ramps = self._slow_start.shares(ready, now)
        found = []
        for node, ramp in zip(ready, ramps, strict=True):
            known = self._homes.get(node)
            kept = 1.0 if known is None else known.kept
            found.append(node.endpoint.weight * ramp * kept)
        usual = mean(found)
        return [weight / usual for weight in found]

    def __repr__(self) -> str:
        over = [home for home in self._present if home.kept < 1.0]
        said = ", ".join(map(repr, islice(over, 3)))
        return (
            f"<consistent hashing over {self._backends}, "
            f"{self.first_choices} of {self.keyed_picks} on their first choice"
            f"{': ' if said else ''}{said}>"
        )


def mean(values: Sequence[float]) -> float:
    """As `statistics.fmean`, whose module takes milliseconds to import."""
    return fsum(values) / len(values)


def identity(endpoint: Endpoint) -> tuple[str, int | None]:
    """What `key_hash.backend_hash` goes by."""
    return endpoint.address, endpoint.task
