"""Weighted round robin as gRFC A58 defines it: turns in proportion to capacity.

A backend's weight is the rate it would serve at full utilization, from its own
reports: qps / (utilization + eps/qps x penalty). What A58 lacks is added: failures
that this client saw count too, so that a backend that fails fast and says nothing,
or says that all is well, loses its share.
"""

from collections.abc import Sequence
from math import floor
from random import Random

from lbclient.core.load import Load
from lbclient.core.protocols import N, Node
from lbclient.pickers.options import between
from lbclient.pickers.scheduler_updates import SchedulerUpdates
from lbclient.pickers.slow_start import SLOW_START, STEP, SlowStart

MAX_WEIGHT = 65535  # "scaled such that the largest weight is 65535", gRFC A58
OFFSET = 32767  # half of it: equal weights do not all skip the same generation
SEQUENCE_MASK = 0xFFFF_FFFF  # "an atomic uint32"
MAX_RATIO, MIN_RATIO = 10.0, 0.01  # of the mean, as gRPC's C++ and Go clamp
LEAST_SOUND, MOST_SOUND = 1e-9, 1e12  # requests per second; beyond is nonsense


class WeightedRoundRobin:
    """Picks backends in turn, and those with more capacity more often.

    Use it when backends differ in speed, requests are many and small, and every client
    sends about the same mix. Do not use it when clients differ or queues form: a weight
    estimates capacity, and takes 8 to 23 s to follow a change. It considers neither the
    load of other clients nor queues; `WeightedLeastLoaded` considers both. The defaults
    are those of gRFC A58, which has no slow start.
    """

    rule = (
        "Calls go to the ready backends in turn, to each in proportion to its weight: "
        "requests a second / (utilization + share of errors)."
    )

    def __init__(
        self,
        rng: Random,
        *,
        blackout: float = 10.0,
        expiration: float = 180.0,
        update_period: float = 1.0,
        error_penalty: float = 1.0,
        slow_start: float = SLOW_START,
    ) -> None:
        self._blackout = between("blackout", blackout, 0.0, 3600.0)
        self._expiration = between("expiration", expiration, 0.1, 86400.0)
        # "If less than 100ms, will be treated as 100ms."
        self._update_period = max(0.1, between("update_period", update_period, 0, 3600))
        self._error_penalty = between("error_penalty", error_penalty, 0.0, 1000.0)
        self._slow_start = SlowStart(between("slow_start", slow_start, 0.0, 3600.0))
        # A random start, so that many clients do not march in step.
        self._sequence = rng.getrandbits(32)
        self.updates = SchedulerUpdates()
        self._built_for: Sequence[Node] = ()
        self._update_at = 0.0
        self._strides: list[int] = []

    def pick(self, ready: Sequence[N], now: float) -> N:
        if ready is not self._built_for or now >= self._update_at:
            self._slow_start.look(ready, now)
            known = [self._capacity(node.load, now) for node in ready]
            self.updates.count(known, self._stale(ready, known, now))
            self._strides = strides(self._capacities(known, ready, now))
            self._built_for = ready
            period = self._update_period
            if self._slow_start.has_ramps(ready, now):
                period = min(STEP, period)
            self._update_at = now + period
        weights = self._strides
        count = len(weights)
        sequence = self._sequence
        while True:
            generation, i = divmod(sequence, count)
            sequence = (sequence + 1) & SEQUENCE_MASK
            weight = weights[i]
            # "weight/65535 of the generations pick this backend."
            if (weight * generation + i * OFFSET) % MAX_WEIGHT >= MAX_WEIGHT - weight:
                self._sequence = sequence
                return ready[i]

    def weights(self, ready: Sequence[N], now: float) -> Sequence[float]:
        known = [self._capacity(node.load, now) for node in ready]
        weights = strides(self._capacities(known, ready, now))
        mean = sum(weights) / len(weights)
        return [weight / mean for weight in weights]

    def _stale(self, ready: Sequence[Node], known: Sequence[float], now: float) -> int:
        """How many have no weight because their last report is too old."""
        return sum(
            not weight
            and node.load.report is not None
            and now - node.load.reported_at >= self._expiration
            for node, weight in zip(ready, known, strict=True)
        )

    def _capacities(
        self, known: list[float], ready: Sequence[Node], now: float
    ) -> list[float]:
        """Weights in requests per second; of an unknown one, the mean of the known,
        times what its resolver says that it is worth."""
        sound = [weight for weight in known if weight]
        if len(sound) < 2:
            # "If fewer than two subchannels have load info, use round robin."
            known, mean = [0.0] * len(known), 1.0
        else:
            mean = sum(sound) / len(sound)
        shares = self._slow_start.shares(ready, now)
        return [
            # The silent have no eps that could be subtracted: take what we saw.
            share
            * (
                weight
                or mean * node.endpoint.weight * (1.0 - node.load.failure_ratio(now))
            )
            for share, weight, node in zip(shares, known, ready, strict=True)
        ]

    def _capacity(self, load: Load, now: float) -> float:
        """Requests per second at full utilization; 0.0 if unknown."""
        report, utilization = load.report, load.utilization()
        if (
            report is None
            or report.qps <= 0.0
            or utilization <= 0.0
            or load.ready_at is None
            or now - load.ready_at < self._blackout
            or now - load.reported_at >= self._expiration
        ):
            return 0.0
        failing = max(report.eps / report.qps, load.failure_ratio(now))
        weight = report.qps / (utilization + failing * self._error_penalty)
        return weight if LEAST_SOUND < weight < MOST_SOUND else 0.0

    def __repr__(self) -> str:
        return f"<weighted round robin over {len(self._built_for)}>"


def strides(weights: Sequence[float]) -> list[int]:
    """Scales so that the largest is 65535; none is below 1 % of the mean.

    >>> strides([1.0, 2.0, 3.0])
    [21845, 43690, 65535]
    """
    mean = sum(weights) / len(weights)
    if not mean:
        return [MAX_WEIGHT] * len(weights)
    scale = MAX_WEIGHT / min(max(weights), MAX_RATIO * mean)
    least = max(1, _round(scale * mean * MIN_RATIO))
    return [min(MAX_WEIGHT, max(least, _round(scale * weight))) for weight in weights]


def _round(number: float) -> int:
    # Half away from zero, as C's lround; Python's round() goes to even.
    return floor(number + 0.5)
