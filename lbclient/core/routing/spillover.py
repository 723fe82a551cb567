"""Spill-over: calls stay where they should go while there is capacity, and then go on.

Ready backends of one `Rank` are a level: the client's zone, other zones, the next
priority. `spill_control` decides what share of its calls a level keeps; the others go
to the next level. Within a level the picker chooses among all backends, so a picker
that goes by load sends most to the emptiest zone.

If zones of a level have different limits, each limit has a picker of its own, and the
level divides its calls so that all zones are equally full, each relative to its limit.

Envoy's zone aware routing goes by the numbers of backends and clients in each zone, its
priority levels and gRFC A56 by how many backends are healthy. Here load decides, so
none of these numbers need be known.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from random import Random
from typing import cast

from lbclient.core.call_hints import CallHints
from lbclient.core.model import LoadReport
from lbclient.core.protocols import N, Node, Picker, PickerFactory, ProbingPicker
from lbclient.core.routing.keyed_picks import PickerForCall, answered_by, sees_calls
from lbclient.core.routing.locality import Rank, rank
from lbclient.core.routing.spill_control import (
    LONGEST_STEP,
    SPILL_ABOVE,
    SpillControl,
    SpillLimits,
    fullness,
    limit_of,
    scaled,
    utilization,
)

INTERVAL = 0.25  # seconds between two steps of control
MAX_LEVELS = 64  # that are remembered; a subset rarely has more than four


@dataclass(slots=True, eq=False)
class SpillGroup:
    """The backends of a level whose zones have one limit, and their picker.

    `share` is the group's of the level's calls, `preference` how many a backend of it
    gets relative to those of other groups, `due` the calls that it has yet to get.
    """

    picker: Picker
    due: float
    nodes: tuple[Node, ...] = ()
    share: float = 1.0
    preference: float = 1.0


class SpillLevel:
    """The ready backends of one rank, in groups by the limits of their zones.

    Owned by `Spillover`. Without a ready backend it remembers how it was before.
    `used` is the utilization at the last step, `full` the same relative to the limits.
    """

    def __init__(self, where: Rank, limits: SpillLimits, due: float) -> None:
        self.rank = where
        self.control = SpillControl()
        self.used = self.full = 0.0
        self.is_first = False  # of all levels that there have been
        self.nodes: tuple[Node, ...] = ()
        self.by_limit: dict[float, SpillGroup] = {}
        self._groups: list[SpillGroup] = []  # those that have backends
        self._limits = limits
        self._due = due  # calls that have still to leave

    def take(self, found: dict[float, list[Node]]) -> None:
        """Takes its backends by limit. Unchanged ones stay the same tuple."""
        for limit, group in self.by_limit.items():
            nodes = tuple(found.get(limit, ()))
            if nodes != group.nodes:
                group.nodes = nodes
        self._groups = [group for group in self.by_limit.values() if group.nodes]
        self.nodes = tuple(node for group in self._groups for node in group.nodes)
        self._divide()

    def keeps_call(self) -> bool:
        """Whether it keeps the next call: as many of them as its share, in turn."""
        self._due += 1.0 - self.control.share
        if self._due >= 1.0:
            self._due -= 1.0
            return False
        return True

    def choose_group(self) -> SpillGroup:
        """Whose turn it is: smooth weighted round robin by the groups' shares."""
        groups = self._groups
        if len(groups) == 1:
            return groups[0]
        for group in groups:
            group.due += group.share
        chosen = max(groups, key=attrgetter("due"))
        chosen.due -= 1.0
        return chosen

    def step(self, beyond: float | None, seconds: float, now: float) -> float:
        """Moves its share of calls and those of its groups, as `SpillControl.step`."""
        self.used = utilization(self.nodes, now)
        self.full = fullness(self.nodes, self._limits, now)
        if len(self._groups) > 1:
            for group in self._groups:
                excess = fullness(group.nodes, self._limits, now) - self.full
                group.preference = scaled(group.preference, excess, seconds)
            self._divide()
        return self.control.step(self.full, beyond, seconds, now)

    def _divide(self) -> None:
        """Divides its calls among groups by preference and number of backends."""
        total = sum(group.preference * len(group.nodes) for group in self._groups)
        for group in self._groups:
            group.share = group.preference * len(group.nodes) / total

    def __repr__(self) -> str:
        where = ", other zones" if self.rank.is_away else ""
        return f"<priority {self.rank.priority}{where}: {self.control!r}>"


ByRank = dict[Rank, dict[float, list[N]]]
"""Backends by rank, and by the limit of their zones."""


class Spillover:
    """Calls go on to the next zone or priority while the first is full or gone.

    Wraps any picker, of which each level has one. `zone` is the client's; empty: only
    priorities count. `spilled` counts the picks elsewhere than in the first level, of
    which a call that is sent again has several.
    """

    def __init__(
        self,
        factory: PickerFactory,
        zone: str,
        rng: Random,
        limits: SpillLimits = SPILL_ABOVE,
    ) -> None:
        self._factory = factory
        self._zone = zone
        self._rng = rng
        self._limits = limits
        self.spilled = 0
        self.probes: list[Node] = []
        self._is_probing = False
        self._next_step: float | None = None
        self._built_for: Sequence[Node] = ()
        self._known: dict[Rank, SpillLevel] = {}
        self._first = Rank(0, False)
        self._levels: list[SpillLevel] = []  # those with ready backends, in order
        self.inner = self._new_picker()  # says which picker was chosen, and picks none
        if sees_calls(self.inner):
            self.pick_for = self._pick_for
        if answered_by(self.inner) is not None:
            self.answered = self._answered
        self._sort(())

    @property
    def pickers(self) -> tuple[Picker, ...]:
        """Those that it has: one for each limit of each level."""
        levels = self._known.values()
        used = [each.picker for level in levels for each in level.by_limit.values()]
        return (self.inner, *used)

    @property
    def share(self) -> float:
        """The share of all calls that stays in the first level."""
        first = self._levels[0] if self._levels else None
        if first is None or not first.is_first:
            return 0.0 if self._levels else 1.0
        return first.control.share if len(self._levels) > 1 else 1.0

    def why_spilled(self, node: Node) -> str:
        """Why calls went there instead of to the first level; empty: it is of that."""
        if rank(node.endpoint, self._zone) == self._first:
            return ""
        first = self._known[self._first]
        home = f"priority {first.rank.priority}"
        home += f" in zone {self._zone!r}" if self._zone else ""
        if not first.nodes:
            return f"spilled, as nobody of {home} is ready"
        used = f"{first.used:.2f} utilized, {first.full:.0%} of the limit"
        return f"spilled: {home} is {used}, and {1.0 - first.control.share:.0%} leave"

    def rivals(self, node: N, ready: Sequence[N]) -> list[N]:
        """Those of `ready` that a pick of this node was among: the node's group."""
        own = self._group_of(node)
        return [one for one in ready if self._group_of(one) == own]

    def _group_of(self, node: Node) -> tuple[Rank, float]:
        where = rank(node.endpoint, self._zone)
        return where, limit_of(node.endpoint.zone, self._limits)

    def pick(self, ready: Sequence[N], now: float) -> N:
        return self._pick(None, ready, now)

    def _pick_for(self, call: CallHints, ready: Sequence[N], now: float) -> N:
        return self._pick(call, ready, now)

    def _pick(self, call: CallHints | None, ready: Sequence[N], now: float) -> N:
        if ready is not self._built_for:
            self._take(ready, now)
        if self._next_step is None or now >= self._next_step:
            self._step(now)
        levels = self._levels
        level = levels[0]
        if len(levels) > 1:
            for level in levels:
                if level.keeps_call():
                    break
        if not level.is_first:
            self.spilled += 1
        group = level.choose_group()
        picker = group.picker
        if call is not None:
            picker = PickerForCall(picker, call)
        chosen = cast(N, picker.pick(group.nodes, now))
        if self._is_probing:
            self._take_probes(group.picker)
        return chosen

    # --- which backends are ready -------------------------------------------------

    def _take(self, ready: Sequence[Node], now: float) -> None:
        self._built_for = ready
        self._sort(ready)
        for level in self._known.values():
            level.control.observe_ready(len(level.nodes), now)

    def _sort(self, ready: Sequence[Node]) -> None:
        """Sorts ready backends into levels."""
        found = self._by_rank(ready)
        if len(self._known) + len(found) > MAX_LEVELS:
            self._known = {k: v for k, v in self._known.items() if k in found}
        if found:
            first = Rank(min(found).priority, False)
            self._first = min(first, self._first) if self._levels else first
        for where in {self._first, *found}:
            if where not in self._known:
                due = self._rng.random()  # so clients do not spill in step
                self._known[where] = SpillLevel(where, self._limits, due)
        for where, level in self._known.items():
            level.is_first = where == self._first
            by_limit = found.get(where, {})
            for limit in by_limit.keys() - level.by_limit.keys():
                group = SpillGroup(self._new_picker(), self._rng.random())
                level.by_limit[limit] = group
            level.take(by_limit)
        self._levels = [self._known[where] for where in sorted(found)]

    def _by_rank(self, ready: Sequence[N]) -> ByRank[N]:
        found: ByRank[N] = {}
        for node in ready:
            by_limit = found.setdefault(rank(node.endpoint, self._zone), {})
            limit = limit_of(node.endpoint.zone, self._limits)
            by_limit.setdefault(limit, []).append(node)
        return found

    def _new_picker(self) -> Picker:
        picker = self._factory(Random(self._rng.getrandbits(64)))
        self._is_probing = self._is_probing or hasattr(picker, "probes")
        return picker

    # --- how many calls go where --------------------------------------------------

    def _step(self, now: float) -> None:
        # A resolver may move a node to another zone, which is the same node.
        self._sort(self._built_for)
        seconds = 0.0
        if self._next_step is not None:
            seconds = min(LONGEST_STEP, now - self._next_step + INTERVAL)
        beyond: float | None = None
        for level in reversed(self._levels):
            beyond = level.step(beyond, seconds, now)
        self._next_step = now + INTERVAL

    def weights(self, ready: Sequence[N], now: float) -> Sequence[float]:
        found = sorted(self._by_rank(ready).items(), key=itemgetter(0))
        weight_of: dict[Node, float] = {}
        arriving = 1.0  # share of all calls that reach the level
        for number, (where, by_limit) in enumerate(found, start=1):
            level = self._known.get(where)
            is_last = number == len(found)
            share = 1.0 if is_last or level is None else level.control.share
            kept = arriving * share
            for node, weight in self._weights_within(level, by_limit, now):
                weight_of[node] = kept * len(ready) * weight
            arriving -= kept
        return [weight_of[node] for node in ready]

    def _weights_within(
        self, level: SpillLevel | None, by_limit: dict[float, list[N]], now: float
    ) -> Iterator[tuple[N, float]]:
        """Each backend's share of the calls that its level keeps."""
        groups = {} if level is None else level.by_limit
        shares = [groups[key].share if key in groups else 1.0 for key in by_limit]
        for share, (limit, nodes) in zip(shares, by_limit.items(), strict=True):
            picker = groups[limit].picker if limit in groups else self.inner
            scale = share / sum(shares) / len(nodes)
            for node, weight in zip(nodes, picker.weights(nodes, now), strict=True):
                yield node, scale * weight

    # --- pickers that probe -------------------------------------------------------

    def _take_probes(self, picker: Picker) -> None:
        probes = getattr(picker, "probes", None)
        if probes:
            self.probes += probes
            probes.clear()

    def probed(self, node: Node, report: LoadReport | None, now: float) -> None:
        level = self._known.get(rank(node.endpoint, self._zone))
        limit = limit_of(node.endpoint.zone, self._limits)
        group = None if level is None else level.by_limit.get(limit)
        if group is not None and hasattr(group.picker, "probed"):
            cast(ProbingPicker, group.picker).probed(node, report, now)

    def _answered(
        self, call: CallHints, node: Node, seconds: float | None, now: float
    ) -> None:
        level = self._known.get(rank(node.endpoint, self._zone))
        limit = limit_of(node.endpoint.zone, self._limits)
        group = None if level is None else level.by_limit.get(limit)
        if group is not None and (answered := answered_by(group.picker)) is not None:
            answered(call, node, seconds, now)

    def __repr__(self) -> str:
        where = f"zone {self._zone!r}" if self._zone else "the first priority"
        return f"<{self.share:.0%} in {where} by {self.inner!r}>"
