"""Spill-over: calls stay where they should go while there is room, and then go on.

Backends of one `Rank` are a level: those of the client's zone, those of other zones,
those of the next priority. All calls go to the first level until its backends are
utilized beyond a limit, and beyond what those are to which calls would go instead. Then
the share that stays falls, slowly at first, until one or the other is true no more; it
grows again in the same way. It is integral control, by the logarithm of the share, so
the same step suits a zone with too little and one with much too little, and many
clients that see the same reports take small steps together. Where all are full the same
rule makes all levels equally busy, as without zones.

What leaves goes to all backends of the next level, among which the picker chooses. One
that goes by load sends most to the emptiest zone.

Only of backends that are lost we know before any report tells: with two of ten left,
what is too much would be there for as long as control takes, and time out. So then no
larger share stays than those that are left can do, from the next call on.

Envoy, "Zone aware routing", goes by the numbers of backends and clients in each zone,
its priority levels, and gRFC A56's, by how many are healthy; none sees load. Here load
decides, so neither need be known.
"""

from collections.abc import Sequence
from math import exp, inf
from operator import itemgetter
from random import Random
from typing import NamedTuple, cast

from lbclient.core.locality import Rank, rank
from lbclient.core.model import LoadReport
from lbclient.core.protocols import N, Node, Picker, PickerFactory, ProbingPicker

LEVEL = 0.7  # utilization that is no reason to leave, if not set. Ours: below the knee
SPAN = 0.3  # utilization beyond the limit at which control is at full pace
GAIN = 0.15  # of the log share a second, at full pace; twice that overshot
STEP = 0.25  # seconds between two looks
LONGEST_STEP = 1.0  # seconds that count, however long nobody called
SETTLED = 5.0  # seconds until reports, smoothed over 2 s, tell of what was lost
FLOOR = 0.01  # the least share that stays: so it is noticed when there is room again
MOST_LEVELS = 64  # that are remembered; a subset has hardly more than four
EXPIRATION = 10.0  # seconds after which a report says nothing any more


def moved(
    share: float, near: float, far: float, seconds: float, limit: float = LEVEL
) -> float:
    """The share of calls that stays in a level after `seconds` at these utilizations.

    It grows while the level has room. It falls while it is too busy and what is beyond
    is less so. It moves more slowly the smaller the excess is.

    >>> moved(1.0, 0.5, 0.1, 1.0), round(moved(1.0, 1.0, 0.5, 1.0), 3)
    (1.0, 0.861)
    """
    return max(FLOOR, min(1.0, share * _step(near - max(limit, far), seconds)))


def _step(excess: float, seconds: float) -> float:
    """The factor of a share. Beyond full is a long queue or a wrong report, and no
    reason for a jump."""
    return exp(-GAIN * seconds * max(-1.0, min(1.0, excess / SPAN)))


class Before(NamedTuple):
    """A level before it lost backends: its share of calls, backends, utilizations."""

    share: float
    ready: int
    near: float
    far: float

    def bound(self, left: int, limit: float = LEVEL) -> float:
        """The largest share that `left` backends can serve, if calls come as before.

        >>> Before(1.0, 10, 0.5, 0.5).bound(8)
        1.0
        >>> round(Before(1.0, 10, 0.5, 0.5).bound(2), 2)
        0.28
        """
        demand = self.near * self.ready / self.share
        room = max(limit, self.far) * left
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


class Level:
    """The ready backends of one rank, and the share of calls that stays with them.

    Owned by `Spillover`. Without a ready backend it keeps what it was like before.
    `used` is their utilization at the last step.
    """

    def __init__(self, rank: Rank, picker: Picker, credit: float, limit: float) -> None:
        self.rank = rank
        self.picker = picker
        self.share = 1.0
        self.used = 0.0
        self.nodes: tuple[Node, ...] = ()
        self.is_first = False  # of all levels that there have been
        self._limit = limit
        self._credit = credit
        self._had = 0
        self._last: Before | None = None  # as the last step found it
        self._before: Before | None = None  # as it was when it last lost some
        self._settled_at = 0.0

    def stays(self) -> bool:
        """Whether the next call stays; of calls in turn, as many as `share` says."""
        self._credit += 1.0 - self.share
        if self._credit >= 1.0:
            self._credit -= 1.0
            return False
        return True

    def heed_loss(self, now: float) -> None:
        """Looks whether backends were lost, or are back.

        If some were lost, the share falls at once to what those that are left could
        serve before, until reports show what they do now.
        """
        had, count = self._had, len(self.nodes)
        self._had = count
        is_less = count < had
        # The first that are back of a level that was gone: not all at once, either.
        is_back = count > had == 0 and self._before is not None
        if is_back or (is_less and now >= self._settled_at):
            self._before = self._last if is_less else self._before
            self._settled_at = now + SETTLED
        if count and self._before and (is_less or is_back):
            self.share = min(self.share, self._before.bound(count, self._limit))

    def move(self, beyond: float | None, seconds: float, now: float) -> float:
        """Moves the share towards what is beyond, which is so utilized; None: nothing.

        Returns how utilized those backends are that calls go to which come here.
        """
        count, self.used = len(self.nodes), utilization(self.nodes, now)
        if beyond is None:
            self._last = Before(1.0, count, self.used, 0.0)
            return self.used
        if seconds:
            self.share = moved(self.share, self.used, beyond, seconds, self._limit)
            if self._before and now < self._settled_at:
                bound = self._before.bound(count, self._limit)
                self.share = min(self.share, bound)
        self._last = Before(self.share, count, self.used, beyond)
        return self.share * self.used + (1.0 - self.share) * beyond

    def __repr__(self) -> str:
        where = ", other zones" if self.rank.is_away else ""
        return f"<{self.share:.0%} stay with priority {self.rank.priority}{where}>"


class Spillover:
    """Calls go on to the next zone or priority while the first is full or gone.

    Wraps any picker: its factory makes one for each level. `zone` is the client's;
    empty: only priorities count. `spilled` counts the picks elsewhere than in the first
    level.
    """

    def __init__(
        self, factory: PickerFactory, zone: str, rng: Random, limit: float = LEVEL
    ) -> None:
        self._factory = factory
        self._zone = zone
        self._rng = rng
        self._limit = limit
        self.spilled = 0
        self.probes: list[Node] = []
        self._is_probing = False
        self._step_at: float | None = None
        self._built_for: Sequence[Node] = ()
        self._known: dict[Rank, Level] = {}
        self._first = Rank(0, False)
        self._levels: list[Level] = []  # those with anybody ready, in order
        self._sort(())
        self.inner = self._known[self._first].picker  # one of those that are wrapped

    @property
    def pickers(self) -> tuple[Picker, ...]:
        """Those that it has, one of each level."""
        return tuple(level.picker for level in self._known.values())

    @property
    def share(self) -> float:
        """Of all calls, that stays in the first level."""
        first = self._levels[0] if self._levels else None
        if first is None or not first.is_first:
            return 0.0 if self._levels else 1.0
        return first.share if len(self._levels) > 1 else 1.0

    def is_spilled(self, node: Node) -> bool:
        """Whether it is elsewhere than in the first level."""
        return rank(node.endpoint, self._zone) != self._first

    def why_spilled(self, node: Node) -> str:
        """Why calls went there instead of to the first level; empty: it is of that."""
        if not self.is_spilled(node):
            return ""
        first = self._known[self._first]
        home = f"priority {first.rank.priority}"
        home += f" in zone {self._zone!r}" if self._zone else ""
        if not first.nodes:
            return f"spilled, as nobody of {home} is ready"
        share = f"{1.0 - first.share:.0%} of calls leave"
        return f"spilled: {home} is {first.used:.2f} utilized, and {share}"

    def pick(self, ready: Sequence[N], now: float) -> N:
        if ready is not self._built_for:
            self._take(ready, now)
        if self._step_at is None or now >= self._step_at:
            self._step(now)
        levels = self._levels
        level = levels[0]
        if len(levels) > 1:
            for level in levels:
                if level.stays():
                    break
        if not level.is_first:
            self.spilled += 1
        chosen = cast(N, level.picker.pick(level.nodes, now))
        if self._is_probing:
            self._take_probes(level.picker)
        return chosen

    # --- who is there -----------------------------------------------------------

    def _take(self, ready: Sequence[Node], now: float) -> None:
        """Takes a new set of ready backends."""
        self._built_for = ready
        self._sort(ready)
        for level in self._known.values():
            level.heed_loss(now)

    def _sort(self, ready: Sequence[Node]) -> None:
        """Sorts by rank and zone. What is unchanged stays the same tuple."""
        found = self._by_rank(ready)
        if len(self._known) + len(found) > MOST_LEVELS:
            self._known = {k: v for k, v in self._known.items() if k in found}
        if found:
            first = Rank(min(found).priority, False)
            self._first = min(first, self._first) if self._levels else first
        for its in {self._first, *found}:
            if its not in self._known:
                self._known[its] = self._new_level(its)
        for its, level in self._known.items():
            level.is_first = its == self._first
            nodes = tuple(found.get(its, ()))
            if nodes != level.nodes:
                level.nodes = nodes
        self._levels = [self._known[its] for its in sorted(found)]

    def _by_rank(self, ready: Sequence[N]) -> dict[Rank, list[N]]:
        found: dict[Rank, list[N]] = {}
        for node in ready:
            found.setdefault(rank(node.endpoint, self._zone), []).append(node)
        return found

    def _new_level(self, its: Rank) -> Level:
        picker = self._factory(Random(self._rng.getrandbits(64)))
        self._is_probing = self._is_probing or hasattr(picker, "probes")
        credit = self._rng.random()  # clients do not march in step
        return Level(its, picker, credit, self._limit)

    # --- how much goes where ------------------------------------------------------

    def _step(self, now: float) -> None:
        # A resolver may move a node to another zone, which is the same node.
        self._sort(self._built_for)
        seconds = 0.0
        if self._step_at is not None:
            seconds = min(LONGEST_STEP, now - self._step_at + STEP)
        beyond: float | None = None
        for level in reversed(self._levels):
            beyond = level.move(beyond, seconds, now)
        self._step_at = now + STEP

    def weights(self, ready: Sequence[N], now: float) -> Sequence[float]:
        found = sorted(self._by_rank(ready).items(), key=itemgetter(0))
        told: dict[Node, float] = {}
        comes = 1.0
        for place, (its, nodes) in enumerate(found, start=1):
            level = self._known.get(its)
            stays = 1.0 if place == len(found) or level is None else level.share
            picker = self.inner if level is None else level.picker
            scale = comes * stays * len(ready) / len(nodes)
            weights = picker.weights(nodes, now)
            told |= zip(nodes, (scale * w for w in weights), strict=True)
            comes *= 1.0 - stays
        return [told[node] for node in ready]

    # --- pickers that probe -------------------------------------------------------

    def _take_probes(self, picker: Picker) -> None:
        probes = getattr(picker, "probes", None)
        if probes:
            self.probes += probes
            probes.clear()

    def probed(self, node: Node, report: LoadReport | None, now: float) -> None:
        level = self._known.get(rank(node.endpoint, self._zone))
        if level is not None and hasattr(level.picker, "probed"):
            cast(ProbingPicker, level.picker).probed(node, report, now)

    def __repr__(self) -> str:
        where = f"zone {self._zone!r}" if self._zone else "the first priority"
        return f"<{self.share:.0%} in {where} by {self.inner!r}>"
