"""The control of spill-over: what share of its calls a level of backends keeps.

A level keeps all calls until its utilization is above the limit of its zones, and above
that of the backends to which calls would go instead. Then its share falls, slowly at
first, until one of both is true no more; it grows again in the same way. This is
integral control of the logarithm of the share, so one pace suits a small and a large
excess, and many clients that see the same reports take small steps together. If all
levels are full, all become equally full.

Control is too slow for backends that are lost: until it has found out, calls would time
out. So the share falls immediately to what the backends that are left can serve.

Utilization here is `fullness`: as a share of the zone's limit, so 1.0 is at the limit.
"""

from collections.abc import Mapping, Sequence
from math import exp, inf
from typing import NamedTuple

from lbclient.core.protocols import Node

SPILL_ABOVE = 0.7  # utilization, the default limit. Ours: below the knee of the latency
RAMP = 0.3 / 0.7  # fullness beyond the limit at which control has its full pace
GAIN = 0.15  # change of the log share per second, at full pace; 0.3 overshot
LONGEST_STEP = 1.0  # seconds that one step counts at most, after a pause in calls
SETTLE = 5.0  # seconds until reports, smoothed over 2 s, show what a loss has changed
MIN_SHARE = 0.01  # so the client notices when there is capacity again
EXPIRATION = 10.0  # seconds after which a report counts no more

SpillLimits = float | Mapping[str, float]
"""One limit for all zones, or limits by zone, with `SPILL_ABOVE` for the others."""


def limit_of(zone: str, limits: SpillLimits) -> float:
    """The utilization above which calls leave a zone.

    >>> limit_of("a", {"a": 0.8}), limit_of("b", {"a": 0.8}), limit_of("b", 0.5)
    (0.8, 0.7, 0.5)
    """
    if isinstance(limits, Mapping):
        return limits.get(zone, SPILL_ABOVE)
    return limits


def utilization(nodes: Sequence[Node], now: float) -> float:
    """The mean utilization, which is that of the client's subset only."""
    return sum(_utilization(node, now) for node in nodes) / len(nodes)


def fullness(nodes: Sequence[Node], limits: SpillLimits, now: float) -> float:
    """The mean utilization, of each backend as a share of its zone's limit."""
    total = 0.0
    for node in nodes:
        total += _utilization(node, now) / limit_of(node.endpoint.zone, limits)
    return total / len(nodes)


def _utilization(node: Node, now: float) -> float:
    """By the last report; without a fresh report, by this client's own calls.

    With q requests in it on average a single server is busy q / (1 + q) of its time
    (M/M/1). The calls of other clients are not known.
    """
    report = node.load.report
    is_fresh = report is not None and now - node.load.reported_at < EXPIRATION
    if report is not None and is_fresh and 0.0 < report.utilization < inf:
        return min(2.0, report.utilization)
    return node.load.in_flight / (1.0 + node.load.in_flight)


def scaled(share: float, excess: float, seconds: float) -> float:
    """A share after `seconds` with this excess of fullness: positive lowers it.

    The pace has a bound: far beyond full is a long queue or a wrong report.
    """
    pace = GAIN * max(-1.0, min(1.0, excess / RAMP))
    return max(MIN_SHARE, min(1.0, share * exp(-pace * seconds)))


def next_share(share: float, near: float, far: float, seconds: float) -> float:
    """The share of calls that a level keeps, `seconds` later.

    Args:
        near: fullness of the level.
        far: fullness of the backends to which the other calls go.

    >>> next_share(1.0, 0.7, 0.1, 1.0), round(next_share(1.0, 1.5, 0.7, 1.0), 3)
    (1.0, 0.861)
    """
    return scaled(share, near - max(1.0, far), seconds)


class LevelState(NamedTuple):
    """A level at one time: share of calls, ready backends, fullness here and beyond.

    It tells what a level could serve before it lost backends.
    """

    share: float
    ready: int
    near: float
    far: float

    def max_share(self, left: int) -> float:
        """The largest share that `left` backends can serve, at the same rate of calls.

        >>> LevelState(1.0, 10, 0.7, 0.7).max_share(8)
        1.0
        >>> round(LevelState(1.0, 10, 0.7, 0.7).max_share(2), 2)
        0.29
        """
        demand = self.near * self.ready / self.share
        capacity = max(1.0, self.far) * left
        return max(MIN_SHARE, capacity / demand) if capacity < demand else 1.0


class SpillControl:
    """The share of its calls that one level keeps, by what is observed of it."""

    def __init__(self) -> None:
        self.share = 1.0
        self._ready = 0
        self._last: LevelState | None = None  # at the last step
        self._before_loss: LevelState | None = None
        self._settled_at = 0.0

    def observe_ready(self, ready: int, now: float) -> None:
        """Takes the number of ready backends, and lowers the share if some are lost.

        It stays low until reports show the new load. If the first backends of a lost
        level come back, they do not get all of its calls at once, either.
        """
        before, self._ready = self._ready, ready
        is_less = ready < before
        is_back = ready > before == 0 and self._before_loss is not None
        if is_back or (is_less and now >= self._settled_at):
            self._before_loss = self._last if is_less else self._before_loss
            self._settled_at = now + SETTLE
        if is_less or is_back:
            self._lower()

    def step(self, near: float, far: float | None, seconds: float, now: float) -> float:
        """Moves the share by the fullness of the level and of those beyond it.

        `far` is None if there are none beyond it. Returns the fullness that a call
        meets which comes to this level.
        """
        if far is None:
            self._last = LevelState(1.0, self._ready, near, 0.0)
            return near
        if seconds:
            self.share = next_share(self.share, near, far, seconds)
            if now < self._settled_at:
                self._lower()
        self._last = LevelState(self.share, self._ready, near, far)
        return self.share * near + (1.0 - self.share) * far

    def _lower(self) -> None:
        if self._ready and self._before_loss is not None:
            self.share = min(self.share, self._before_loss.max_share(self._ready))

    def __repr__(self) -> str:
        return f"<{self.share:.0%} stay>"
