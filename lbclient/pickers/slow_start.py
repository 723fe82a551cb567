"""Slow start: the share of a backend that has just become ready grows step by step.

The first requests of a task cost several times what later ones do: caches are empty,
nothing is compiled (SRE book, ch. 20, on task restarts). A share of 0.1 means that the
backend gets a tenth of the calls that it would get otherwise.

Shares are relative to the oldest backend, which has a share of 1, as have those that
became ready with it: when all are new, as at the start of a channel, none is slowed.
The time counts from when the backend became ready for this client; when its task
started only the task knows.

A ramp must not keep from an overloaded fleet what it needs most. It yields where half
of the others are full, by what they report or by the calls that they failed: from then
on a newcomer has its full share as long as it has no more requests than is usual among
the others. One that is cold and falls behind has what the ramp leaves it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from lbclient.core.counting.median import median
from lbclient.core.load import Load
from lbclient.core.protocols import Node

SLOW_START = 10.0  # seconds; the default, see `ChannelConfig.slow_start`
FLOOR = 0.1  # where a ramp starts; Envoy's default too
MOMENT = 1.0  # seconds; who is back so soon did not restart, who comes so soon is level
# A backend is full above this utilization, or this share of failed calls. Smoothed
# reports of a full one are a little below 1; one at 0.9 still has room.
FULL, FAILING = 0.95, 0.05
LOOKS_BACK = 10.0  # seconds; pickers ask for shares as of a time this long ago at most
STEP = 0.25  # seconds between two looks; a ramp of 10 s rises by 2 % of a share in it


@dataclass(slots=True)
class Presence:
    """One address that has been ready since `began`, apart from short breaks."""

    began: float
    ready_at: float | None  # as its load said when last looked at
    seen_at: float
    yields: bool = False  # the others were full during its ramp
    full_at: float = inf  # since when it therefore has a full share


class SlowStart:
    """Remembers when each backend became ready. Owned by one picker.

    `window`: seconds from the smallest share to a full one; 0.0 gives full shares at
    once.
    """

    __slots__ = ("_grown", "_looked_at", "_present", "_window")

    def __init__(self, window: float) -> None:
        self._window = window
        self._present: dict[str, Presence] = {}
        self._looked_at: Sequence[Node] = ()
        # When each of these became ready, if none is in a ramp or was; it spares most
        # work.
        self._grown: list[float | None] | None = None

    def look(self, ready: Sequence[Node], now: float) -> None:
        """Takes note of who is there, to tell a lost connection from a restart.

        Ramps yield if the backends that are in none are full.
        """
        if self._are_grown(ready):
            for each in self._present.values():
                each.seen_at = now
            return
        for node in self._looked_at:
            presence = self._present.get(node.endpoint.address)
            # None: it left since, and so was there until about now.
            if presence and node.load.ready_at in (None, presence.ready_at):
                presence.seen_at = now
        present = {}
        for node in ready:
            if (began := self._began(node)) is not None:
                ready_at = node.load.ready_at
                address = node.endpoint.address
                present[address] = self._seen(address, began, ready_at, now)
        for address, presence in self._present.items():
            if now - presence.seen_at < MOMENT:
                present.setdefault(address, presence)
        self._present = present
        self._looked_at = ready
        begun = [self._began(node) for node in ready]
        last = max(inf if at is None else at for at in begun)
        first = min(-inf if at is None else at for at in begun)
        is_level = last - first < MOMENT  # and stays so, or these are others
        is_over = is_level or now - last > self._window + LOOKS_BACK
        is_over = is_over and len(present) == len(ready)
        self._grown = [node.load.ready_at for node in ready] if is_over else None
        self._yield(ready, now)

    def _are_grown(self, ready: Sequence[Node]) -> bool:
        """Whether they are those of the last look, and no ramp was left then."""
        return (
            self._grown is not None
            and ready is self._looked_at
            and self._grown == [node.load.ready_at for node in ready]
        )

    def _seen(
        self, address: str, began: float, ready_at: float | None, now: float
    ) -> Presence:
        presence = self._present.get(address)
        if presence is None or presence.began != began:
            return Presence(began, ready_at, now)
        presence.ready_at, presence.seen_at = ready_at, now
        return presence

    def _yield(self, ready: Sequence[Node], now: float) -> None:
        both = [*zip(ready, self._ramps(ready, now), strict=True)]
        new = [node for node, share in both if share < 1.0]
        if not new:
            return
        others = [node.load for node, share in both if share == 1.0]
        are_full = 2 * sum(is_full(load, now) for load in others) >= len(others)
        count = (
            all_requests if all(tells(node.load) for node in ready) else own_requests
        )
        usual = median(count(load) for load in others)
        for node in new:
            presence = self._present[node.endpoint.address]
            presence.yields = presence.yields or are_full
            if presence.yields and count(node.load) <= usual:
                presence.full_at = min(presence.full_at, now)
            else:
                presence.full_at = inf

    def shares(self, ready: Sequence[Node], now: float) -> list[float]:
        """Of each node: more than 0.0, and 1.0 at most, which one has at least."""
        ramps = self._ramps(ready, now)
        if min(ramps) == 1.0:
            return ramps
        return [
            1.0 if now >= self._full_at(node) else share
            for node, share in zip(ready, ramps, strict=True)
        ]

    def has_ramps(self, ready: Sequence[Node], now: float) -> bool:
        """Whether any is in a ramp, even one that yields: it may soon have too much."""
        return min(self._ramps(ready, now)) < 1.0

    def _ramps(self, ready: Sequence[Node], now: float) -> list[float]:
        """The shares if none yields."""
        if self._are_grown(ready):
            return [1.0] * len(ready)
        begun = [self._began(node) for node in ready]
        first = min((at for at in begun if at is not None), default=now)
        ages = [now - (first if at is None else at) for at in begun]
        oldest = now - first
        if min(ages) >= self._window or oldest - min(ages) < MOMENT:
            return [1.0] * len(ages)
        most = self._ramp(oldest)
        return [
            1.0 if oldest - age < MOMENT else self._ramp(age) / most for age in ages
        ]

    def _began(self, node: Node) -> float | None:
        """None: a lame duck, which serves if nobody else does, and is in no ramp."""
        ready_at = node.load.ready_at
        if ready_at is None:
            return None
        presence = self._present.get(node.endpoint.address)
        if presence and (
            ready_at == presence.ready_at or ready_at - presence.seen_at < MOMENT
        ):
            return presence.began
        return ready_at

    def _full_at(self, node: Node) -> float:
        """Since when it has a full share though its ramp goes on; inf: it has none."""
        presence = self._present.get(node.endpoint.address)
        began = self._began(node)
        return presence.full_at if presence and presence.began == began else inf

    def _ramp(self, age: float) -> float:
        age = max(0.0, age)
        if age >= self._window:
            return 1.0
        return FLOOR + (1.0 - FLOOR) * age / self._window

    def __repr__(self) -> str:
        return f"<slow start of {self._window:g} s over {len(self._present)}>"


def tells(load: Load) -> bool:
    """Whether a backend tells how many requests it has."""
    return load.report is not None and load.report.active is not None


def all_requests(load: Load) -> int:
    """Those that a backend has of all clients, as far as it told."""
    told = load.report.active if load.report is not None else None
    return (told or 0) + load.sent_since_report


def own_requests(load: Load) -> int:
    return load.in_flight


def is_full(load: Load, now: float) -> bool:
    """Whether a backend has more to do than it can, as far as is known."""
    return load.utilization() >= FULL or load.failure_ratio(now) >= FAILING
