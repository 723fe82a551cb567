"""Prequal: probe a few random backends with every request, and pick by recent answers.

"Probing to reduce queuing and latency", Wydrowski et al., NSDI 2024. With every pick
some backends are asked for their requests in flight and current latency. The answers,
`Probe`s, are kept in a small pool, and the next picks go by them:

    A backend is hot if its requests in flight are above a quantile of those seen
    lately. Pick the fastest of the cold backends; if all are hot, the one with the
    fewest requests in flight.

A probe is used for a second at most, and as often as is necessary to have one for each
pick; each use adds one to its requests in flight. Each pick also removes the oldest or
the worst probe, in turn: otherwise the pool would fill with backends that are never
picked.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from random import Random

from lbclient.core.load import FORGOTTEN_AFTER
from lbclient.core.model import LoadReport
from lbclient.core.protocols import N, Node
from lbclient.pickers.options import between
from lbclient.pickers.probe_worth import MOST_WANTED


@dataclass(frozen=True, slots=True)
class PrequalTuning:
    """The numbers of `Prequal` that are no arguments. The paper's: `max_age`, `surplus`
    and `enough`. The rest are ours: `benchmarks.prequal` and `lbclient sim` play them.
    """

    max_age: float = 1.0  # seconds that a probe is used for
    surplus: float = 1.0  # the paper's delta, in how often a probe is used
    enough: int = 2  # probes; with fewer one goes by lot

    most_uses: float = 16.0  # of a probe, where the paper's formula has no bound
    recent: int = 64  # counts of requests in flight that the quantile is of

    # The pool is at most 1 / `part` of the backends, or all of them are in it; but
    # `least`, or all there are: with 2 of 10 most picks go by lot.
    part: int = 5
    least: int = 4

    most_errors: float = 3.0  # times (quantile + 1), as `WeightedLeastLoaded` the mean
    floor: float = 0.01  # of picks, by lot: else no recovery of a backend is seen


TUNING = PrequalTuning()
HOT = 1e9  # more than any latency in seconds


class Probe:
    """The answer of one backend to a probe. Owned by the picker."""

    __slots__ = ("active", "at", "latency", "load", "node", "uses")

    def __init__(
        self, node: Node, active: int, latency: float, at: float, uses: int
    ) -> None:
        self.node = node
        self.load = node.load
        self.active = active
        self.latency = latency
        self.at = at
        self.uses = uses

    def rank(self, limit: float, now: float) -> float:
        """Less is better. Errors of late count as requests: fast ones look idle.

        Up to what makes it hot: where all failed, no difference may decide for long.
        """
        active: float = self.active
        latency = self.latency
        load = self.load
        if load.erred_at > now - FORGOTTEN_AFTER:
            errors = min(load.recent_errors(now), TUNING.most_errors * (1.0 + limit))
            active += errors
            latency *= 1.0 + errors
        return HOT + active if active > limit else latency


class Prequal:
    """Picks the fastest of the probed backends with a usual number of requests.

    Use it when there are many clients and each sends seldom, so that reports with
    answers come too late, and when a request costs far more than the `probes` that it
    causes. Do not use it when utilization must be even: requests that wait count as
    work.

    `probes`: backends probed for each pick. `removed`: probes discarded for each pick.
    `pool`: the most probes that are kept. `quantile`: of the requests in flight, above
    which a backend is hot.
    """

    rule = (
        "Of the backends that were probed within the last second a call goes to the "
        "fastest that has no more active than usual, recent errors added, or else to "
        "the one with the fewest; with too few probes to any, by chance."
    )

    def __init__(
        self,
        rng: Random,
        *,
        probes: float = 3.0,
        removed: float = 1.0,
        pool: int = 16,
        quantile: float = 0.6,
    ) -> None:
        self._rng = rng
        self._asked = between("probes", probes, 0.0, 16.0)
        self._removed = between("removed", removed, 0.0, 16.0)
        self._most = int(between("pool", pool, TUNING.enough, 1000))
        self._quantile = between("quantile", quantile, 0.0, 1.0)
        self.probes: list[Node] = []
        self._built_for: Sequence[Node] = ()
        self._here: set[int] = set()  # the identities of their nodes
        self._size = TUNING.enough
        self._uses = 1.0
        self._pool: list[Probe] = []  # the oldest first
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []  # the same
        self._to_ask = 0.0  # parts of a probe, and of a removal, that are due
        self._to_remove = 0.0
        self._oldest_next = True

    def pick(self, ready: Sequence[N], now: float) -> N:
        if ready is not self._built_for:
            self._follow(ready)
        node = self._choose(ready, now)
        self._remove_some(now)
        self._ask_some(ready)
        return node

    def probed(self, node: Node, report: LoadReport | None, now: float) -> None:
        """Takes an answer; one without a count, or none at all, teaches nothing."""
        if report is None or report.active is None:
            return
        active = report.active if report.runnable is None else report.runnable
        recent = self._recent
        recent.append(active)
        if len(recent) <= TUNING.recent:
            insort(self._sorted, active)
        elif (oldest := recent.popleft()) != active:  # they are small: often it is
            del self._sorted[bisect_left(self._sorted, oldest)]
            insort(self._sorted, active)
        if id(node) not in self._here:
            return
        uses = int(self._uses + self._rng.random())  # rounded by lot
        pool = self._pool
        latency = report.latency or node.load.latency or _typical(pool)
        pool.append(Probe(node, active, latency, now, uses))
        if len(pool) > self._size:
            del pool[0]

    def weights(self, ready: Sequence[N], now: float) -> Sequence[float]:
        return [1.0] * len(ready)

    def _choose(self, ready: Sequence[N], now: float) -> N:
        pool = self._pool
        while pool and now - pool[0].at > TUNING.max_age:
            del pool[0]
        if (
            len(pool) < min(TUNING.enough, len(ready))
            or self._rng.random() < TUNING.floor
        ):
            return ready[int(self._rng.random() * len(ready))]
        limit = self._limit()
        best, least = pool[0], inf
        forgotten = now - FORGOTTEN_AFTER
        for probe in pool:
            if probe.load.erred_at > forgotten:
                rank = probe.rank(limit, now)
            else:  # the same without a call
                active = probe.active
                rank = HOT + active if active > limit else probe.latency
            if rank < least:
                best, least = probe, rank
        best.active += 1
        best.uses -= 1
        if best.uses <= 0:
            pool.remove(best)
        return best.node  # type: ignore[return-value]  # of `ready`, see `_follow`

    def _limit(self) -> int:
        """The quantile, above which a backend is hot."""
        return self._sorted[int(self._quantile * (len(self._sorted) - 1))]

    def _remove_some(self, now: float) -> None:
        self._to_remove += self._removed
        while self._to_remove >= 1.0:
            self._to_remove -= 1.0
            if self._pool and self._oldest_next:
                del self._pool[0]
            elif self._pool:
                limit = self._limit()
                self._pool.remove(max(self._pool, key=lambda it: it.rank(limit, now)))
            self._oldest_next = not self._oldest_next

    def _ask_some(self, ready: Sequence[Node]) -> None:
        """By lot, and none twice."""
        self._to_ask += self._asked
        count = int(self._to_ask)
        self._to_ask -= count
        if len(self.probes) >= MOST_WANTED:
            return
        random, total = self._rng.random, len(ready)
        asked: list[int] = []
        for _ in range(min(count, total)):
            i = int(random() * total)
            while i in asked:
                i = int(random() * total)
            asked.append(i)
            self.probes.append(ready[i])

    def _follow(self, ready: Sequence[Node]) -> None:
        """Forgets who left, and takes the paper's reuse for so many backends."""
        here = self._here = {id(node) for node in ready}
        self._pool = [probe for probe in self._pool if id(probe.node) in here]
        self._built_for = ready
        count = len(ready)
        size = self._size = min(
            self._most, max(min(TUNING.least, count), count // TUNING.part)
        )
        surplus = (1.0 - min(1.0, size / count)) * self._asked - self._removed
        uses = (1.0 + TUNING.surplus) / surplus if surplus > 0.0 else TUNING.most_uses
        self._uses = min(TUNING.most_uses, max(1.0, uses))

    def __repr__(self) -> str:
        return f"<prequal over {len(self._built_for)}, {len(self._pool)} probes>"


def _typical(pool: list[Probe]) -> float:
    """The median of the latencies that are known, for a task that has served nothing
    yet: with 0.0 it would look like the fastest."""
    known = sorted(probe.latency for probe in pool if probe.latency)
    return known[len(known) // 2] if known else 0.0
