"""Throttling by customer: only customers that are out of quota are held back.

A quota is one customer's, and a channel may have many customers, a proxy's above all.
So each customer that was refused for its quota lately has a throttle of its own, beside
that of all requests (SRE book, ch. 21, "Client-side throttling"). Names come from
requests, so their number is bounded: those that were refused most are kept, and many
names that are seldom refused cannot displace them.
"""

from itertools import islice
from random import Random

from lbclient.core.criticality import Criticality
from lbclient.core.model import Verdict
from lbclient.core.throttles.throttle import Throttle

MOST = 100  # customers. Ours: few of all customers are refused at a time
REVIEW = 10.0  # seconds between two looks for throttles that are not needed any more

REJECTED = Verdict.REJECTED


class CustomerThrottles:
    """Throttles each customer whose requests were refused for its quota. Owned by the
    balancer. False while no customer was refused lately."""

    def __init__(self, rng: Random, k: float) -> None:
        self._rng = rng
        self._k = k
        # The customer that was refused last is the last one.
        self._throttles: dict[str, Throttle] = {}
        self._review_at = 0.0

    def __len__(self) -> int:
        return len(self._throttles)

    def admits(self, name: str, criticality: Criticality, now: float) -> bool:
        throttle = self._throttles.get(name)
        return throttle is None or throttle.admits(criticality, now)

    def counts(
        self, name: str, criticality: Criticality, now: float
    ) -> tuple[int, int, int]:
        """As `Throttle.counts`, of a customer that has a throttle."""
        return self._throttles[name].counts(criticality, now)

    def observe(
        self, name: str, criticality: Criticality, verdict: Verdict, now: float
    ) -> None:
        """Records an outcome. REJECTED is for this customer's quota, nothing else."""
        throttle = self._throttles.get(name)
        if verdict is REJECTED:
            if throttle is None:
                throttle = Throttle(self._rng, self._k)
            self._throttles.pop(name, None)
            self._throttles[name] = throttle
            if len(self._throttles) > MOST:
                others = islice(self._throttles, MOST)  # all but this one
                del self._throttles[min(others, key=self._refused)]
        if throttle is not None:
            throttle.observe(criticality, verdict, now)
        if now >= self._review_at:
            self._review_at = now + REVIEW
            needed = self._throttles.items()
            self._throttles = {name: one for name, one in needed if one.is_needed(now)}

    def _refused(self, name: str) -> int:
        return self._throttles[name].refused

    def __repr__(self) -> str:
        return f"<{len(self)} customers out of quota of late>"
