"""Slow start: the share of a backend that has just become ready grows step by step.

The first requests of a task cost several times what later ones do: caches are empty,
nothing is compiled (SRE book, ch. 20, on task restarts). A share of 0.1 means that the
backend gets a tenth of the calls that it would get otherwise.

Shares are relative to the oldest backend, which has a share of 1, as have those that
became ready with it: when all are new, as at the start of a channel, none is slowed.
The time counts from when the backend became ready for this client; when its task
started only the task knows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lbclient.core.protocols import Node

SLOW_START = 10.0  # seconds; the default, see `ChannelConfig.slow_start`
FLOOR = 0.1  # where a ramp starts; Envoy's default too
MOMENT = 1.0  # seconds; who is back so soon did not restart, who comes so soon is level
STEP = 0.25  # seconds between two looks; a ramp of 10 s rises by 2 % of a share in it


@dataclass(slots=True)
class Presence:
    """One address that has been ready since `began`, apart from short breaks."""

    began: float
    ready_at: float | None  # as its load said when last looked at
    seen_at: float


class SlowStart:
    """Remembers when each backend became ready. Owned by one picker.

    `window`: seconds from the smallest share to a full one; 0.0 gives full shares at
    once.
    """

    __slots__ = ("_looked_at", "_present", "_window")

    def __init__(self, window: float) -> None:
        self._window = window
        self._present: dict[str, Presence] = {}
        self._looked_at: Sequence[Node] = ()

    def look(self, ready: Sequence[Node], now: float) -> None:
        """Takes note of who is there, to tell a lost connection from a restart."""
        for node in self._looked_at:
            presence = self._present.get(node.endpoint.address)
            # None: it left since, and so was there until about now.
            if presence and node.load.ready_at in (None, presence.ready_at):
                presence.seen_at = now
        present = {}
        for node in ready:
            if (began := self._began(node)) is not None:
                ready_at = node.load.ready_at
                present[node.endpoint.address] = Presence(began, ready_at, now)
        for address, presence in self._present.items():
            if now - presence.seen_at < MOMENT:
                present.setdefault(address, presence)
        self._present = present
        self._looked_at = ready

    def shares(self, ready: Sequence[Node], now: float) -> list[float]:
        """Of each node: more than 0.0, and 1.0 at most, which one has at least."""
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

    def _ramp(self, age: float) -> float:
        age = max(0.0, age)
        if age >= self._window:
            return 1.0
        return FLOOR + (1.0 - FLOOR) * age / self._window

    def __repr__(self) -> str:
        return f"<slow start of {self._window:g} s over {len(self._present)}>"
