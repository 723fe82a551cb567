"""Who is out of quota is held back: each customer alone, and so many of them."""

from random import Random

import pytest

from lbclient import wire
from lbclient.core.criticality import Criticality
from lbclient.core.model import Verdict
from lbclient.core.throttles.customer_throttles import MOST, CustomerThrottles
from lbclient.core.throttles.throttle import COLD, WINDOW
from tests.held import held_by

CRITICAL, PLUS = Criticality.CRITICAL, Criticality.CRITICAL_PLUS
RATE = 200  # requests a second
LIMIT = 20  # of those accepted


@pytest.mark.parametrize("k", [1.1, 2.0])
def test_at_ten_times_the_quota_k_times_what_is_accepted_is_sent(k: float) -> None:
    """In the third to fifth minute; as the book has it, and others wait for nothing."""
    customers = CustomerThrottles(Random(1), k)
    tokens, sent, accepted = 0.0, 0, 0
    for i in range(int(5 * 60 * RATE)):
        now = i / RATE
        tokens = min(LIMIT / 4, tokens + LIMIT / RATE)
        assert customers.admits("good", CRITICAL, now)
        customers.observe("good", CRITICAL, Verdict.SERVED, now)
        assert customers.admits("bad", PLUS, now), "its other quota"
        if not customers.admits("bad", CRITICAL, now):
            continue
        has_room = tokens >= 1.0
        tokens -= has_room
        verdict = Verdict.SERVED if has_room else Verdict.REJECTED
        customers.observe("bad", CRITICAL, verdict, now)
        if now > WINDOW:
            sent += 1
            accepted += has_room
    assert accepted >= 0.9 * LIMIT * (5 * 60 - WINDOW)
    assert sent <= 1.1 * k * accepted


def test_of_too_many_customers_those_refused_most_are_remembered() -> None:
    customers = CustomerThrottles(Random(1), 2.0)
    for number in range(MOST + 10):
        if number == 0:
            for _ in range(round(COLD) + 1):
                customers.observe("first", CRITICAL, Verdict.REJECTED, 1.0)
        customers.observe(str(number), CRITICAL, Verdict.REJECTED, 1.0)
    assert len(customers) == MOST
    names = set(held_by(customers, str))
    last = [name for name in map(str, range(MOST + 10)) if name in names]
    assert last == [str(number) for number in range(11, MOST + 10)], "of equals"
    assert any(not customers.admits("first", CRITICAL, 1.0) for _ in range(10))
    assert repr(customers) == f"<{MOST} customers out of quota of late>"


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.0, 50.0, 200.0])
def test_names_that_are_refused_once_set_nobody_free(rate: float) -> None:
    """So many of them a second, each another. A customer who wanted ten times the quota
    was forgotten by 50 a second, and sent all it wanted.
    """
    customers, rng = CustomerThrottles(Random(1), 1.1), Random(2)
    tokens, sent, accepted, invented = 0.0, 0, 0, 0
    for i in range(int((WINDOW + 60) * RATE)):
        now = i / RATE
        while invented < rate * now:
            customers.observe(f"bad {invented}", CRITICAL, Verdict.REJECTED, now)
            invented += 1
        tokens = min(LIMIT / 4, tokens + LIMIT / RATE)
        assert customers.admits("good", CRITICAL, now)
        if rng.random() < 0.1:
            customers.observe("good", CRITICAL, Verdict.SERVED, now)
        if customers.admits("greedy", CRITICAL, now):
            has_room = tokens >= 1.0
            tokens -= has_room
            verdict = Verdict.SERVED if has_room else Verdict.REJECTED
            customers.observe("greedy", CRITICAL, verdict, now)
            if now > WINDOW:
                sent += 1
                accepted += has_room
        assert len(customers) <= MOST
    assert sent <= 1.1 * 1.1 * accepted


def test_who_was_not_refused_for_two_minutes_is_forgotten() -> None:
    customers = CustomerThrottles(Random(1), 2.0)
    customers.observe("a", CRITICAL, Verdict.REJECTED, 1.0)
    customers.observe("b", CRITICAL, Verdict.SERVED, 2.0)
    assert len(customers) == 1
    customers.observe("b", CRITICAL, Verdict.SERVED, 2.0 + WINDOW)
    assert not customers


def test_a_customer_is_named_as_servers_take_it() -> None:
    key = wire.CUSTOMER_KEY
    assert wire.find_customer(((key, "a"), ("x", "y"), (key, "b"))) == "b"
    assert wire.find_customer(((key, "a" * 101),)) == ""
    assert wire.find_customer(None) == ""
