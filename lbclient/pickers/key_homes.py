"""Bounds the load that keyed calls bring to their first choice.

Two loops keep a backend at no more than `factor` times the mean, both by what backends
report, which is the load of all clients:

- Utilization, slow and exact. Integral control moves the share of calls that the
  backend keeps, until its utilization is at the bound. The calls that leave are those
  of its hottest keys: all others keep their backend, and what it has in memory.
- Requests in flight, fast and coarse: a backend with more of them than the bound and
  chance explain takes none until it has caught up. Recent errors count as requests.

The bound is at most 0.9, or half of what is left above the mean where that is more:
1.25 times a mean of 0.85 would be no bound. It is at least 0.2: where the fleet is
idle, a key is not worth moving.
"""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, inf, log, sqrt
from random import Random

from lbclient.core.load import FORGOTTEN_AFTER
from lbclient.core.model import Endpoint
from lbclient.core.protocols import Node
from lbclient.core.routing.key_hash import WORD, backend_hash, backend_weight, hash64

ABSENT = -1  # the index of a backend that is not ready


@dataclass(frozen=True, slots=True)
class KeyHomesTuning:
    """The numbers of the two loops. Ours, but for `expiration`: `benchmarks.keys`
    plays them."""

    # The slow loop, by utilization.
    step: float = 0.25  # seconds between two steps of control
    longest_step: float = 1.0  # seconds that a step which comes late makes up for
    gain: float = 0.3  # of a step, in a second; 0.15 to 1 do as well
    expiration: float = 180.0  # seconds; an older report counts as none (gRFC A58)
    least_kept: float = 0.02  # of its calls, so that calls notice its recovery, too
    within: float = 0.85  # of the allowed excess; the rest is for what control misses
    full: float = 0.9  # utilization, the bound at most ...
    least_bound: float = 0.2  # ... and at least: see above
    window: int = 128  # calls in which the hottest keys are looked for

    # The fast loop, by requests in flight. Four standard deviations, which one
    # backend in 30,000 exceeds by chance, and four requests, as there may be few.
    deviations: float = 4.0
    few: float = 4.0
    active_gain: float = 0.2  # of a step, in the mean of requests in flight: some 1.2 s
    shortest_horizon: float = 0.005  # seconds; as in `weighted_least_loaded`


TUNING = KeyHomesTuning()


class KeyHome:
    """One backend as the home of keys. Owned by a picker.

    `kept` is the share of its calls that it keeps, `ramp` the share of its keys that
    it has while it starts slowly. `index` is its place among the ready backends. It
    takes calls by its `weight`, and draws for keys with `score_weight`.
    """

    __slots__ = (
        "_counts",
        "_level",
        "_recent",
        "active",
        "endpoint",
        "hash",
        "index",
        "kept",
        "left_at",
        "node",
        "ramp",
        "score_weight",
        "tie",
        "weight",
    )

    def __init__(self, node: Node) -> None:
        self.node = node
        self.index = ABSENT
        self.left_at = inf
        self.kept = self.ramp = 1.0
        self.active = 0.0  # requests in flight, of all clients: a mean over a second
        self._recent: deque[str] = deque()
        self._counts: Counter[str] = Counter()
        self._level = 1.0  # of all recent calls, what one key may have
        self.endpoint = node.endpoint
        self.take(node.endpoint)

    def take(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.hash = backend_hash(endpoint)
        self.tie = hash64(endpoint.address)
        self.weight = endpoint.weight
        self.score_weight = backend_weight(endpoint)

    def begin_anew(self) -> None:
        """Keeps all of its calls, and knows none of them: as a newcomer."""
        self.kept = 1.0
        self._recent.clear()
        self._counts.clear()

    def takes(self, key: str, place: float, rng: Random) -> bool:
        """Whether it takes this call of a key by the slow loop. `place` is the key's,
        from 0 to 1, among those that come to a backend that starts slowly."""
        if place >= self.ramp:
            return False
        if self.kept == 1.0:
            return True
        counts, recent = self._counts, self._recent
        recent.append(key)
        counts[key] += 1
        if len(recent) > TUNING.window:
            oldest = recent.popleft()
            if counts[oldest] == 1:
                del counts[oldest]
            else:
                counts[oldest] -= 1
        count, most = counts[key], self._level * len(recent)
        return count <= most or rng.random() * count < most

    def used(self, now: float) -> float:
        """Returns its utilization; 0.0: unknown, as is what was told too long ago."""
        load = self.node.load
        return (
            load.utilization() if now - load.reported_at <= TUNING.expiration else 0.0
        )

    def step(self, bound: float, seconds: float, now: float) -> None:
        """Moves the share that it keeps towards where its utilization is at the bound;
        without a report it keeps all."""
        used = self.used(now)
        excess = log(used / bound) if used > 0.0 else -1.0
        kept = self.kept * exp(-TUNING.gain * seconds * max(-1.0, excess))
        self.kept = min(1.0, max(TUNING.least_kept, kept))
        if self.kept == 1.0:
            self.begin_anew()
        else:
            recent = max(1, len(self._recent))
            self._level = level(self._counts.values(), self.kept) / recent

    def observe_active(self) -> None:
        self.active += TUNING.active_gain * (self._told() - self.active)

    def _told(self) -> float:
        load = self.node.load
        report = load.report
        if report is None or report.active is None:
            return load.in_flight
        return report.active + load.sent_since_report

    def requests(self, horizon: float, least_errors: float, now: float) -> float:
        """Estimates requests in flight now, of all clients, and adds recent errors
        beyond those that every backend has. What was told fades towards the mean of
        this backend."""
        load = self.node.load
        report = load.report
        if report is None or report.active is None:
            found = float(load.in_flight)
        else:
            age = max(0.0, now - load.reported_at)
            deviation = report.active - self.active
            found = self.active + deviation * exp(-age / horizon)
            found += load.sent_since_report
        if load.erred_at > now - FORGOTTEN_AFTER:
            found += max(0.0, load.recent_errors(now) - least_errors)
        return found

    def __repr__(self) -> str:
        return f"<{self.endpoint.address} keeps {self.kept:.0%} of its calls>"


def level(counts: Iterable[float], kept: float) -> float:
    """How many of each key's recent calls stay, where so large a share of all does.

    The hottest keys lose what is above the level, and no other key loses any.

    >>> level([6, 2, 2], 0.8)
    4.0
    >>> level([2, 2, 2], 0.5), level([], 0.5)
    (1.0, 0.5)
    """
    ascending = sorted(counts)
    if not ascending:
        return kept
    left = kept * sum(ascending)
    for place, count in enumerate(ascending):
        even = left / (len(ascending) - place)
        if count >= even:
            return even
        left -= count
    return float(ascending[-1])


def utilization_bound(mean: float, factor: float) -> float:
    """The utilization at which a backend's calls begin to leave.

    >>> f"{utilization_bound(0.5, 1.25):.4f} {utilization_bound(0.9, 1.25):.4f}"
    '0.6062 0.9500'
    """
    bound = mean * (1.0 + TUNING.within * (factor - 1.0))
    return max(TUNING.least_bound, min(bound, max(TUNING.full, (mean + 1.0) / 2.0)))


def requests_bound(mean: float, factor: float, weight: float) -> float:
    """The requests in flight that neither the bound nor chance explains."""
    bound = factor * max(1.0, mean) * weight
    return bound + TUNING.deviations * sqrt(bound) + TUNING.few


def place(key: int) -> float:
    """Maps a key's hash to between 0 and 1."""
    return key / WORD
