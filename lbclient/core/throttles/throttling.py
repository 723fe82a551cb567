"""What a client holds back: requests that backends refuse, and those beyond a quota.

Wires the throttle of all requests (`throttle`) with those of single customers
(`customer_throttles`). Both exist only while something was refused of late, so a client
that nobody refuses pays for neither.
"""

from random import Random
from typing import NamedTuple

from lbclient.core.criticality import Criticality
from lbclient.core.model import Outcome, Verdict
from lbclient.core.refusal import Refusal
from lbclient.core.throttles.customer_throttles import CustomerThrottles
from lbclient.core.throttles.sparse_throttle import Loads
from lbclient.core.throttles.throttle import Throttle

REJECTED, ABANDONED = Verdict.REJECTED, Verdict.ABANDONED
DECLINED = Verdict.DECLINED

QUOTA = Refusal.QUOTA

REVIEW = 10.0  # seconds between two looks at whether a throttle is still needed


class HeldBack(NamedTuple):
    """Why a request is not sent; `is_quota`: for one customer's quota."""

    why: str
    is_quota: bool


class Throttling:
    """Holds back requests that backends refuse, and requests beyond a quota. Owned by a
    balancer, which calls `refusal` before a call is sent and `observe` after an
    attempt. Its fields are only read by others.

    While `is_active` is False nothing is held back, and `refusal` need not be called.
    If `is_on` is False nothing ever is, and `observe` need not be called either. While
    `has_customers` is False the customer matters only of an attempt that was refused
    for a quota. `throttled` counts the requests held back for overload, not those
    beyond a quota.
    """

    def __init__(self, rng: Random, k: float, loads: Loads) -> None:
        """`k` is that of `Throttle`; 0.0 switches throttling off. `loads` returns the
        load of each ready backend."""
        self.is_on = k > 0.0
        self.is_active = False
        self.has_customers = False  # that were refused for their quota lately
        self.throttled = 0
        self._rng = rng
        self._k = k
        self._loads = loads
        self._overload: Throttle | None = None
        self._customers: CustomerThrottles | None = None
        self._review_at = 0.0

    def refusal(
        self, criticality: Criticality, customer: str, now: float
    ) -> HeldBack | None:
        """Why a request should not be sent; None: it should. An empty `customer` has no
        quota."""
        overload, customers = self._overload, self._customers
        if overload is not None and not overload.admits(criticality, now):
            self.throttled += 1
            counts = overload.counts(criticality, now)
            whose = f"{criticality.name} requests"
            return HeldBack(f"throttled: {_told(counts, whose)}", False)
        if customers is None or not customer:
            return None
        if not customers.admits(customer, criticality, now):
            counts = customers.counts(customer, criticality, now)
            whose = f"{criticality.name} requests of {customer!r}"
            return HeldBack(f"out of quota: {_told(counts, whose)}", True)
        return None

    def observe(
        self, criticality: Criticality, outcome: Outcome, customer: str, now: float
    ) -> None:
        """Takes an attempt's outcome. Called after each attempt while `is_active`, and
        after each refusal."""
        refusal = outcome.refusal
        if self._overload is not None or (refusal is not None and refusal is not QUOTA):
            self._weigh(criticality, weighed(outcome), now)
        # Without a name the request may be any customer's.
        if customer and (self._customers is not None or refusal is QUOTA):
            verdict = weighed_for_customer(outcome)
            self._weigh_customer(customer, criticality, verdict, now)
        self.has_customers = self._customers is not None
        self.is_active = self._overload is not None or self.has_customers

    def _weigh(self, criticality: Criticality, verdict: Verdict, now: float) -> None:
        if self._overload is None:
            self._overload = Throttle(self._rng, self._k, self._loads)
        self._overload.observe(criticality, verdict, now)
        if now >= self._review_at:
            self._review_at = now + REVIEW
            if not self._overload.is_needed(now):
                self._overload = None

    def _weigh_customer(
        self, customer: str, criticality: Criticality, verdict: Verdict, now: float
    ) -> None:
        if self._customers is None:
            self._customers = CustomerThrottles(self._rng, self._k)
        self._customers.observe(customer, criticality, verdict, now)
        if not self._customers:
            self._customers = None

    def read(self, now: float) -> list[tuple[Criticality, float, int, int, int]]:
        """The odds of refusal and the counts, for criticalities with recent requests.

        The counts are requests that were accepted, refused by backends and refused
        here.
        """
        overload = self._overload
        if overload is None:
            return []
        return [
            (one, overload.probability(one, now), accepted, there, here)
            for one in Criticality
            for here, there, accepted in [overload.counts(one, now)]
            if here or there or accepted
        ]

    def __repr__(self) -> str:
        if not self.is_active:
            return "<nothing is held back>"
        return f"<{self.throttled} throttled: {self._overload!r}, {self._customers!r}>"


def _told(counts: tuple[int, int, int], whose: str) -> str:
    here, there, accepted = counts
    return (
        f"of {here + there + accepted} {whose} of late {accepted} were "
        f"accepted, {there} refused there, {here} here"
    )


def weighed(outcome: Outcome) -> Verdict:
    """The verdict for the throttle of all requests: only overload is a rejection.

    A quota is one customer's affair, and RESOURCE_EXHAUSTED without a refusal may mean
    anything.

    >>> weighed(Outcome(Verdict.REJECTED, 0.1, refusal=Refusal.OVERLOADED)).value
    'rejected'
    >>> weighed(Outcome(Verdict.REJECTED, 0.1, refusal=Refusal.QUOTA)).value
    'abandoned'
    """
    verdict, refusal = outcome.verdict, outcome.refusal
    if verdict is REJECTED and (refusal is None or refusal is QUOTA):
        return ABANDONED
    return ABANDONED if verdict is DECLINED else verdict


def weighed_for_customer(outcome: Outcome) -> Verdict:
    """The verdict for one customer's throttle: only its quota is a rejection.

    >>> refused = Outcome(Verdict.REJECTED, 0.1, refusal=Refusal.OVERLOADED)
    >>> weighed_for_customer(refused).value
    'abandoned'
    """
    if outcome.verdict is REJECTED and outcome.refusal is not QUOTA:
        return ABANDONED
    return ABANDONED if outcome.verdict is DECLINED else outcome.verdict
