"""Recent picks with their reasons, and recent latencies, for the status page.

They are recorded for a minute after each request for the page. While nothing is
recorded, a call pays for two comparisons with None.
"""

from collections import deque
from collections.abc import Callable, Sequence
from math import ceil
from typing import NamedTuple

from lbclient.core.counting.allowance import Allowance
from lbclient.core.load import errors_held
from lbclient.core.model import State
from lbclient.core.protocols import Node

LOOK = 60.0  # seconds that recording goes on after a request for the page
PICKS = 32  # the last ones are kept
PICKS_A_SECOND = 100.0  # that are recorded, on average: a reason takes some time
CALLS = 200  # latencies kept for each backend; so its p99 is the second slowest
BACKENDS = 2000  # in one minute; those that come later are left out
# Seconds. A newcomer has been ready for less than `NEW`, slow start's usual window, and
# became ready at least `LATER` after another backend.
NEW, LATER = 10.0, 1.0


class Pick(NamedTuple):
    """One pick; `because` is what the picker went by."""

    at: float
    backend: str
    because: str


class Latencies:
    """How long the last calls took."""

    __slots__ = ("_took",)

    def __init__(self) -> None:
        self._took: deque[tuple[float, float]] = deque(maxlen=CALLS)

    def __repr__(self) -> str:
        return f"<{len(self._took)} latencies>"

    def add(self, seconds: float, now: float) -> None:
        self._took.append((now, seconds))

    def quantiles(self, now: float, *shares: float) -> list[float | None]:
        """Quantiles of the last minute's latencies in seconds; None if there are none.

        >>> some = Latencies()
        >>> for seconds in (5.0, 1.0, 2.0): some.add(seconds, now=0.0)
        >>> some.quantiles(1.0, 0.5, 0.99), some.quantiles(99.0, 0.5)
        ([2.0, 5.0], [None])
        """
        # A copy, as another thread may look.
        took = sorted(took for at, took in list(self._took) if at > now - LOOK)
        if not took:
            return [None for _ in shares]
        return [took[max(0, ceil(share * len(took)) - 1)] for share in shares]


class Recent:
    """Records recent picks and latencies for the status page. Owned by a channel or a
    server, while the page is read."""

    def __init__(self) -> None:
        self.picks: deque[Pick] = deque(maxlen=PICKS)
        self.latencies = Latencies()
        self._by_backend: dict[str, Latencies] = {}
        # How many picks may be recorded now. With a least pause between two instead, of
        # calls one after the other only those after a slow call would be recorded, and
        # these go to another backend.
        self._room = Allowance(PICKS, PICKS_A_SECOND)
        self._until = 0.0

    def __repr__(self) -> str:
        return (
            f"<{len(self.picks)} picks, latencies of {len(self._by_backend)} backends>"
        )

    @classmethod
    def keep(cls, recent: "Recent | None", now: float) -> "Recent":
        """Keeps `recent` for another minute; a new one if that is over, or None."""
        if recent is None or recent.is_over(now):
            recent = cls()
        recent._until = now + LOOK
        return recent

    def is_over(self, now: float) -> bool:
        return now >= self._until

    def picked(
        self,
        node: Node,
        ready: Sequence[Node],
        now: float,
        because: str = "",
        how: str = "",
        where: str = "",
        weigh: Callable[[], Sequence[float]] = tuple,
    ) -> None:
        """Records a pick. `how` is set if it was not by the picker's rule alone.
        `where` says where all of `ready` are, and `weigh` returns their weights."""
        if self._room.take(now):
            why = because or reason(node, ready, now, weigh(), where)
            why = f"{how}; {why}" if how else why
            self.picks.append(Pick(now, node.endpoint.address, why))

    def finished(self, backend: str, seconds: float, now: float) -> None:
        self.latencies.add(seconds, now)
        latencies = self._by_backend.get(backend)
        if latencies is None:
            if len(self._by_backend) >= BACKENDS:
                return
            latencies = self._by_backend[backend] = Latencies()
        latencies.add(seconds, now)

    def of(self, backend: str) -> Latencies:
        return self._by_backend.get(backend, Latencies())


def reason(
    node: Node,
    ready: Sequence[Node],
    now: float,
    weights: Sequence[float] = (),
    where: str = "",
) -> str:
    """Describes what was known of a node and of the others when it was picked."""
    if node.state is State.LAME_DUCK:
        return "a lame duck, as nobody else is ready"
    if len(ready) == 1:
        return f"the only one{where} that is ready and not full"
    counts = [other.load.in_flight for other in ready]
    low, high = min(counts), max(counts)
    others = f"{low} to {high} on the {len(ready)} ready{where}"
    words = [f"{node.load.in_flight} in flight ({others})"]
    if weights and (least := f"{min(weights):.2f}") != (most := f"{max(weights):.2f}"):
        own = weights[ready.index(node)]
        words.append(f"weight {own:.2f} ({least} to {most})")
    report = node.load.report
    if report is not None:
        words.append(f"utilization {report.utilization:.2f}")
        if report.active is not None:
            words.append(f"{report.active} active{_range_of_active(ready)}")
        words.append(f"as it said {max(0.0, now - node.load.reported_at):.1f} s ago")
    ratio = node.load.failure_ratio(now)
    if ratio >= 0.01:
        words.append(f"{ratio:.0%} of its late calls failed")
    clauses = ", ".join(words), _newest(node, ready, now), _held(node, ready, now)
    return "; ".join(filter(None, clauses))


def _range_of_active(ready: Sequence[Node]) -> str:
    """The least and the most active requests that any of them reported."""
    reports = [node.load.report for node in ready]
    told = [one.active for one in reports if one and one.active is not None]
    return f" ({min(told)} to {max(told)})" if len(told) > 1 else ""


def _newest(node: Node, ready: Sequence[Node], now: float) -> str:
    """Describes the newcomer among them, whose slow start keeps calls from it."""
    since = {
        at: each.endpoint.address
        for each in ready
        if (at := each.load.ready_at) is not None  # else it is a lame duck
    }
    last = max(since, default=now)
    if last - min(since, default=now) < LATER or now - last >= NEW:
        return ""
    who = "it" if since[last] == node.endpoint.address else since[last]
    return f"{who} has been ready for {now - last:.1f} s only"


def _held(node: Node, ready: Sequence[Node], now: float) -> str:
    """Describes the node with the most recent errors, which picks avoid."""
    worst = max(ready, key=lambda other: other.load.recent_errors(now))
    told = errors_held(worst.load.recent_errors(now))
    if not told:
        return ""
    return f"{'it' if worst is node else worst.endpoint.address} has {told}"
