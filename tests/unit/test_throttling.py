"""What a client holds back, by its own throttle and by those of single customers."""

from random import Random

from lbclient.core.criticality import Criticality
from lbclient.core.model import Outcome, Verdict
from lbclient.core.refusal import Refusal
from lbclient.core.throttles.throttle import COLD
from lbclient.core.throttles.throttling import Throttling

LEVEL = Criticality.CRITICAL
SERVED = Outcome(Verdict.SERVED, 0.1)
OVERLOADED = Outcome(Verdict.REJECTED, 0.1, refusal=Refusal.OVERLOADED)
QUOTA = Outcome(Verdict.REJECTED, 0.1, refusal=Refusal.QUOTA)
MANY = 10 * int(COLD)


def refused(throttling: Throttling, customer: str = "") -> list[str]:
    """The words of all that is held back of many requests at one moment."""
    asked = [throttling.refusal(LEVEL, customer, 1.0) for _ in range(100)]
    return [held.why for held in asked if held is not None]


def test_nothing_is_held_back_before_a_refusal() -> None:
    throttling = Throttling(Random(1), 2.0, tuple)
    assert not throttling.is_active
    assert not throttling.has_customers
    throttling.observe(LEVEL, SERVED, "maps", 0.0)
    assert (throttling.is_active, refused(throttling, "maps")) == (False, [])
    assert throttling.read(1.0) == []


def test_who_is_refused_for_overload_holds_back_and_counts() -> None:
    throttling = Throttling(Random(1), 2.0, tuple)
    for _ in range(MANY):
        throttling.observe(LEVEL, OVERLOADED, "", 0.0)
    throttling.observe(LEVEL, SERVED, "", 0.0)
    assert throttling.is_active
    words = refused(throttling)
    assert len(words) > 50
    assert words[0].startswith("throttled: of ")
    here = int(words[0].rpartition(", ")[2].removesuffix(" here"))
    assert words[0] == (
        f"throttled: of {MANY + 1 + here} CRITICAL requests of late 1 were accepted, "
        f"{MANY} refused there, {here} here"
    )
    assert throttling.throttled == len(words)
    [(level, probability, accepted, there, here)] = throttling.read(1.0)
    assert (level, accepted, there, here) == (LEVEL, 1, MANY, len(words))
    assert probability > 0.5


def test_a_quota_holds_back_its_customer_and_nobody_else() -> None:
    throttling = Throttling(Random(1), 2.0, tuple)
    for _ in range(MANY):
        throttling.observe(LEVEL, QUOTA, "maps", 0.0)
    assert throttling.is_active
    assert refused(throttling, "search") == refused(throttling) == []
    assert all(
        "CRITICAL requests of 'maps'" in why for why in refused(throttling, "maps")
    )
    held = next(
        filter(None, (throttling.refusal(LEVEL, "maps", 1.0) for _ in range(99)))
    )
    assert held.is_quota
    assert throttling.throttled == 0


def test_overload_is_held_against_no_customer() -> None:
    throttling = Throttling(Random(1), 2.0, tuple)
    throttling.observe(LEVEL, QUOTA, "maps", 0.0)
    for _ in range(MANY):
        throttling.observe(LEVEL, OVERLOADED, "maps", 0.0)
    held = [throttling.refusal(LEVEL, "maps", 1.0) for _ in range(100)]
    assert not any(one.is_quota for one in held if one is not None)


def test_a_quota_of_nobody_is_nobodys() -> None:
    throttling = Throttling(Random(1), 2.0, tuple)
    throttling.observe(LEVEL, QUOTA, "", 0.0)
    assert not throttling.is_active


def test_it_ends_when_nothing_was_refused_for_a_while() -> None:
    throttling = Throttling(Random(1), 2.0, tuple)
    throttling.observe(LEVEL, OVERLOADED, "", 0.0)
    throttling.observe(LEVEL, QUOTA, "maps", 0.0)
    throttling.observe(LEVEL, SERVED, "maps", 300.0)
    assert not throttling.is_active
    assert repr(throttling) == "<nothing is held back>"


def test_it_can_be_switched_off() -> None:
    assert Throttling(Random(1), 1.0, tuple).is_on
    assert not Throttling(Random(1), 0.0, tuple).is_on
