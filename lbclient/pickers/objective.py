"""The objective of the weights: equal utilization, or the shorter latency.

Equal utilization needs the least capacity, but is not the shortest latency: below some
0.85 a request had better go to a fast machine that is busier than to a slow one. With
`favor_fast` = a, machines of a relative speed s are to have the same

    (1 - utilization) * s^a

so fast ones are busier, and the closer the fleet is to being full, the less. 0 is equal
utilization. 1 is a rule by which a request that shares a processor ends as soon on all
of them. See docs/concepts.md#even-or-fast.

A speed is what a backend serves a second for its utilization, relative to the others.
It is smoothed, and small differences count for little: they are noise, or come of other
requests. What a wrong speed can do is bounded, as no backend is to be busier than
`1 - headroom`, or than a machine of mean speed if that is busier.
"""

from collections import deque
from dataclasses import dataclass
from math import exp, inf, log

from lbclient.core.model import LoadReport


@dataclass(frozen=True, slots=True)
class ObjectiveTuning:
    """The numbers of `Objective`. Ours, by simulation of S1 and S2."""

    # Of a new report, in the log of a speed: some 20 count, as requests differ. Where
    # costs have a deviation of 1.3 means, 40 requests a report leave a noise of 3 %.
    gain: float = 0.05
    fewest: int = 5  # reports; of fewer no speed is known
    unsure: float = 0.2  # log of a speed; less counts less, by its square
    most: float = 1.0  # log of a speed, as the default bound of weights
    least_utilization: float = 0.05  # with less, most of it is no requests'
    least_served: float = 2.0  # requests a second
    memory: float = 6.0  # seconds, of the level; with less than 2 it swings
    # Log, in parts of the utilization of a machine of mean speed: a slow one is to have
    # a quarter of it, or nobody would know how it is when it is needed.
    least_share: float = -1.4
    last: int = 128  # backends, of many, of which a mean is taken


TUNING = ObjectiveTuning()


class Speed:
    """How fast a backend is: the mean of what its reports say. Owned by its weight."""

    __slots__ = ("count", "log")

    def __init__(self) -> None:
        self.count = 0
        self.log: float | None = None  # requests a second, for its whole utilization

    def observe(self, report: LoadReport, utilization: float) -> None:
        """`utilization` is the one that weights go by."""
        served = report.qps - report.eps
        if utilization < TUNING.least_utilization or served < TUNING.least_served:
            return
        told = log(served / utilization)
        self.count += 1
        if self.log is None:
            self.log = told
        else:  # the first reports count alike: one alone is too noisy
            self.log += max(TUNING.gain, 1.0 / self.count) * (told - self.log)

    def __repr__(self) -> str:
        return f"<speed of {self.count} reports: {self.log}>"


class Objective:
    """What utilization each backend is to have. Owned by an equalizer."""

    __slots__ = (
        "_favor_fast", "_learned_at", "_level", "_mean", "_most", "_speeds",
    )  # fmt: skip

    def __init__(self, favor_fast: float, headroom: float) -> None:
        self._favor_fast = favor_fast
        self._most = log(1.0 - headroom)
        self._mean = 0.0  # of the logs of speeds
        # Log of the utilization that a machine of mean speed is to have.
        self._level: float | None = None
        self._learned_at = -inf
        self._speeds: deque[float] = deque(maxlen=TUNING.last)

    def extra(self, known: Speed) -> float:
        """Log of the utilization that a backend of this speed is to have, in parts of
        that of a machine of mean speed."""
        speed = known.log
        if speed is None or known.count < TUNING.fewest:
            return 0.0
        self._speeds.append(speed)
        level = self._level
        if level is None or level >= 0.0:
            return 0.0
        free = (1.0 - exp(level)) * exp(-self._favor_fast * self._apart(speed))
        least = level + TUNING.least_share
        wanted = max(log(1.0 - free), least) if free < 1.0 else least
        return min(wanted, max(level, self._most)) - level

    def learn(self, level: float, now: float) -> None:
        """Takes the mean speed of those that were asked for, and by how much they are
        busier than they are to be: `level` is the log of a utilization without `extra`.

        Not at once: what slow ones are to have depends much on the level.
        """
        if not self._speeds:
            return
        self._mean = sum(self._speeds) / len(self._speeds)
        kept = exp((self._learned_at - now) / TUNING.memory)
        self._learned_at = now
        before = level if self._level is None else self._level
        self._level = level + kept * (before - level)

    def _apart(self, speed: float) -> float:
        """Log of a relative speed, as far as it counts."""
        apart = speed - self._mean
        apart *= min(1.0, abs(apart) / TUNING.unsure)
        return max(-TUNING.most, min(TUNING.most, apart))
