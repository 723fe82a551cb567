"""Locality: calls stay in the client's own zone while its backends have room.

There are two decisions. `Mixed`: three quarters of a subset are in the client's zone,
if the zone has so many backends; calls that leave the zone go to the rest. `Near`: all
calls stay in the zone until its backends are utilized beyond `LEVEL` and more than the
backends elsewhere. Then the share of calls that stay falls, slowly at first, until
either is no longer so; it grows again in the same way. This is integral control of the
logarithm of the share, so one step size suits a small and a large lack of capacity.

Lost backends are known before any report shows the overload that follows. If two of ten
are left, control would take too long, and calls would time out. So from the next call
on the share is at most what the remaining backends can serve.

Envoy's "Zone aware routing" goes by the numbers of backends and clients in each zone,
its priority levels by how many backends are healthy; neither sees load. Here load
decides, so these numbers need not be known.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from math import exp, inf, log
from random import Random
from typing import Generic, NamedTuple, cast

from lbclient.core.model import Endpoint, Endpoints, LoadReport
from lbclient.core.protocols import (
    N,
    Node,
    Picker,
    PickerFactory,
    ProbingPicker,
    Subset,
)

# Of each four in the order of preference so many are near, while there are any. Ours:
# with 20 connections 15 to spread over, and 5 that can take what is too much.
NEAR, FAR = 3, 1

LEVEL = 0.7  # utilization that is no reason to leave the zone. Ours: below the knee
GAIN = 0.15  # of the log share a second, at full utilization; twice that overshot
STEP = 0.25  # seconds between two looks
LONGEST_STEP = 1.0  # seconds that count, however long nobody called
SETTLED = 5.0  # seconds until reports, smoothed over 2 s, tell of what was lost
FLOOR = 0.01  # the least share that stays: so it is noticed when there is room again
EXPIRATION = 10.0  # seconds after which a report says nothing any more


def mixed(endpoints: Iterable[Endpoint], zone: str) -> Iterator[Endpoint]:
    """The endpoints with three in the zone, then one that is not, and so on.

    >>> a, b = [Endpoint(f"a{n}:1", zone="a") for n in range(4)], [Endpoint("b:1")]
    >>> [each.address for each in mixed([*b, *a], "a")]
    ['a0:1', 'a1:1', 'a2:1', 'b:1', 'a3:1']
    """
    order = list(endpoints)
    near = iter([each for each in order if each.zone == zone])
    far = iter([each for each in order if each.zone != zone])
    for place in range(len(order)):
        is_near = place % (NEAR + FAR) < NEAR
        first, second = (near, far) if is_near else (far, near)
        yield next(chain(first, second))


class Mixed:
    """A subset with three quarters in the client's zone, if that has so many."""

    def __init__(self, subset: Subset, zone: str) -> None:
        self._subset = subset
        self._zone = zone
        self._words = ""

    @property
    def algorithm(self) -> str:
        return str(getattr(self._subset, "algorithm", ""))

    @property
    def goes_by_place(self) -> bool:
        return bool(getattr(self._subset, "goes_by_place", False))

    def __call__(self, endpoints: Endpoints) -> Iterable[Endpoint]:
        preferred = self._subset(endpoints)
        is_here = any(each.zone == self._zone for each in endpoints)
        share = f"{NEAR} of {NEAR + FAR}" if is_here else "none"
        self._words = f", {share} in zone {self._zone!r}"
        return mixed(preferred, self._zone)

    def __repr__(self) -> str:
        return f"{self._subset!r}{self._words}"


def moved(share: float, near: float, far: float, seconds: float) -> float:
    """The share of calls that stays in the zone after `seconds` at these utilizations.

    It grows while the zone has room. It falls while the zone is too busy and the others
    are less so. It moves more slowly the smaller the excess is.

    >>> moved(1.0, 0.5, 0.1, 1.0), round(moved(1.0, 1.0, 0.5, 1.0), 3)
    (1.0, 0.861)
    """
    excess = near - max(LEVEL, far)
    # Beyond full is a long queue or a wrong report, and no reason for a jump.
    pace = max(-1.0, min(1.0, excess / (1.0 - LEVEL)))
    return max(FLOOR, min(1.0, exp(log(share) - GAIN * seconds * pace)))


class Before(NamedTuple):
    """A zone before it lost backends: its share of calls, backends, utilizations."""

    share: float
    ready: int
    near: float
    far: float

    def bound(self, left: int) -> float:
        """The largest share that `count` backends can serve, if calls come as before.

        >>> Before(1.0, 10, 0.5, 0.5).bound(8)
        1.0
        >>> round(Before(1.0, 10, 0.5, 0.5).bound(2), 2)
        0.28
        """
        demand = self.near * self.ready / self.share
        room = max(LEVEL, self.far) * left
        return max(FLOOR, room / demand) if room < demand else 1.0


def utilization(nodes: Sequence[Node], now: float) -> float:
    """The mean, by the last reports; of one that tells nothing, by our own requests.

    With q requests in it on average a single server is busy q / (1 + q) of its time
    (M/M/1); those that others have there we cannot see.
    """
    total = 0.0
    for node in nodes:
        report = node.load.report
        known = report is not None and now - node.load.reported_at < EXPIRATION
        if report is not None and known and 0.0 < report.utilization < inf:
            total += min(2.0, report.utilization)
        else:
            total += node.load.in_flight / (1.0 + node.load.in_flight)
    return total / len(nodes)


class Near(Generic[N]):
    """A picker for the zone and one for all else, and how many calls each of them has.

    `share` of them stays. Wraps any picker, made twice by its factory.
    """

    def __init__(self, factory: PickerFactory, zone: str, rng: Random) -> None:
        self._near = factory(Random(rng.getrandbits(64)))
        self._far = factory(Random(rng.getrandbits(64)))
        self._zone = zone
        self.share = 1.0
        self.probes: list[Node] = []
        self._credit = rng.random()  # clients do not march in step
        self._step_at: float | None = None
        self._built_for: Sequence[Node] = ()
        self._last: Before | None = None  # as the last step found it
        self._before: Before | None = None  # as it was when it last lost some
        self._settled_at = 0.0
        self._ready: tuple[tuple[Node, ...], tuple[Node, ...]] = ((), ())
        self._is_probing = any(
            hasattr(picker, "probes") for picker in (self._near, self._far)
        )

    def pick(self, ready: Sequence[N], now: float) -> N:
        if ready is not self._built_for:
            self._take(ready, now)
        if self._step_at is None or now >= self._step_at:
            self._step(now)
        near, far = self._ready
        goes = not near
        if near and far:
            self._credit += 1.0 - self.share
            if goes := self._credit >= 1.0:
                self._credit -= 1.0
        picker, some = (self._far, far) if goes else (self._near, near)
        chosen = cast(N, picker.pick(some, now))
        if self._is_probing:
            self._take_probes(picker)
        return chosen

    def _take(self, ready: Sequence[Node], now: float) -> None:
        """Takes a new set of ready backends.

        If the zone has lost some, the share falls at once to what those that are left
        could serve before, until reports show what they do now.
        """
        had = len(self._ready[0])
        self._ready = self._split(ready)
        self._built_for = ready
        count = len(self._ready[0])
        is_less = count < had
        # The first that are back of a zone that was gone: not all at once, either.
        is_back = count > had == 0 and self._before is not None
        if is_back or (is_less and now >= self._settled_at):
            self._before = self._last if is_less else self._before
            self._settled_at = now + SETTLED
        if count and self._before and (is_less or is_back):
            self.share = min(self.share, self._before.bound(count))

    def _split(
        self, ready: Sequence[Node]
    ) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
        """Splits `ready` by zone. An unchanged part stays the same tuple."""
        near = tuple(node for node in ready if node.endpoint.zone == self._zone)
        far = tuple(node for node in ready if node.endpoint.zone != self._zone)
        before = self._ready
        return (
            before[0] if near == before[0] else near,
            before[1] if far == before[1] else far,
        )

    def _step(self, now: float) -> None:
        # A resolver may move a node to another zone, which is the same node.
        near, far = self._ready = self._split(self._built_for)
        if near:
            used = utilization(near, now), utilization(far, now) if far else 0.0
            if self._step_at is not None and far:
                seconds = min(LONGEST_STEP, now - self._step_at + STEP)
                self.share = moved(self.share, *used, seconds)
                if self._before and now < self._settled_at:
                    self.share = min(self.share, self._before.bound(len(near)))
            self._last = Before(self.share if far else 1.0, len(near), *used)
        self._step_at = now + STEP

    def _take_probes(self, picker: Picker) -> None:
        probes = getattr(picker, "probes", None)
        if probes:
            self.probes += probes
            probes.clear()

    def probed(self, node: Node, report: LoadReport | None, now: float) -> None:
        picker = self._near if node.endpoint.zone == self._zone else self._far
        if hasattr(picker, "probed"):
            cast(ProbingPicker, picker).probed(node, report, now)

    def weights(self, ready: Sequence[N], now: float) -> Sequence[float]:
        near, far = self._split(ready)
        stays = 1.0 if not far else self.share if near else 0.0
        told: dict[Node, float] = {}
        parts = ((self._near, near, stays), (self._far, far, 1.0 - stays))
        for picker, nodes, part in parts:
            if nodes:
                scale = part * len(ready) / len(nodes)
                weights = picker.weights(nodes, now)
                told |= zip(nodes, (scale * w for w in weights), strict=True)
        return [told[node] for node in ready]

    def __repr__(self) -> str:
        words = f"{self.share:.0%} in zone {self._zone!r} by {self._near!r}"
        return f"<{words}, else by {self._far!r}>"
