"""The throttle of clients that send too few requests to judge by these alone.

It is the equation of `throttle`, where the client's own outcomes are replaced by the
share of requests that backends say they refuse: 1 - refused stands for accepts divided
by requests. So in each `PERIOD` the share of requests that the client sends is
multiplied by K * (1 - refused). All clients hear the same, so they need no evidence of
their own. A client that is never refused need not listen.

The share falls only with a new report: a client that hears of its backends once a
minute would otherwise correct the same error many times over. It rises without one:
once backends say that they refuse hardly anything, the share grows until a report says
otherwise.
"""

from collections.abc import Callable, Iterable
from math import exp, inf
from random import Random

from lbclient.core.criticality import Criticality
from lbclient.core.load import Load

Loads = Callable[[], Iterable[Load]]
"""What a client knows of each of its backends that is ready."""

PERIOD = 10.0  # seconds; five times what backends smooth their shares over
GROWTH = 3.0  # seconds, as of `throttle`: e times as much in so long, at most
FRESH = 5.0  # seconds by which a report is older than the newest, to count 1/e of it
FORGET = 120.0  # seconds without a report; as long as a throttle remembers
# Backends that refuse at most this share of what they refuse at K times their capacity
# are not overloaded any more. Ours: with K = 2 an eighth of all requests.
RECOVERED = 0.25
FEWEST = 0.01  # share of requests that are sent, at least


class SparseThrottle:
    """Throttles one criticality of a client that sends little. Owned by its history,
    which asks it about each request.

    `refused` is the mean share that backends last said they refuse; None: none says it.
    """

    __slots__ = ("_criticality", "_grown_at", "_heard_at", "_k", "_loads", "_random",
                 "_share", "refused")  # fmt: skip

    def __init__(
        self, rng: Random, k: float, criticality: Criticality, loads: Loads
    ) -> None:
        self.refused: float | None = None
        self._random = rng.random
        self._k = k
        self._criticality = criticality
        self._loads = loads
        self._share = 1.0  # of the requests, that are sent
        self._heard_at = -inf
        self._grown_at: float | None = None  # None: it does not grow

    def has_reports(self, now: float) -> bool:
        """Reads the newest reports, and returns whether backends tell what they refuse.
        Only then call `admits`."""
        self._listen()
        return self.is_told(now)

    def is_told(self, now: float) -> bool:
        """Whether backends told what they refuse, as last read. Changes nothing."""
        return now - self._heard_at < FORGET

    def admits(self, now: float) -> bool:
        if self._grown_at is not None:
            self._share = self._grown(now)
            self._grown_at = max(now, self._grown_at)
        return self._share >= 1.0 or self._random() < self._share

    def probability(self, now: float) -> float:
        """The probability that the next request is refused here. Changes nothing."""
        return 1.0 - self._grown(now)

    def _grown(self, now: float) -> float:
        if self._grown_at is None or now <= self._grown_at:
            return self._share
        return min(1.0, self._share * exp(min(40.0, now - self._grown_at) / GROWTH))

    def _listen(self) -> None:
        said = [
            (load.reported_at, report.refused[self._criticality])
            for load in self._loads()
            if (report := load.report) is not None and report.refused is not None
        ]
        heard_at = max((at for at, _ in said), default=-inf)
        if heard_at <= self._heard_at:
            return
        weights = [exp((at - heard_at) / FRESH) for at, _ in said]
        pairs = zip(weights, said, strict=True)
        refused = sum(weight * share for weight, (_, share) in pairs) / sum(weights)
        self._learn(refused, heard_at)

    def _learn(self, refused: float, at: float) -> None:
        since, self._heard_at = min(PERIOD, at - self._heard_at), at
        self.refused = refused
        if refused <= RECOVERED * (1.0 - 1.0 / self._k):
            self._grown_at = at if self._grown_at is None else self._grown_at
            return
        share, self._grown_at = self._grown(at), None
        step = max(FEWEST, self._k * (1.0 - refused)) ** (since / PERIOD)
        self._share = min(1.0, max(FEWEST, share * step))

    def __repr__(self) -> str:
        told = "nobody tells" if self.refused is None else f"{self.refused:.0%} refused"
        return f"<sends {self._share:.0%}, {told}>"
