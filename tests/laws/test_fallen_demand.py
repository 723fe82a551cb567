"""Throttled clients whose demand falls, and such whose demand does not.

Poisson arrivals, half of them CRITICAL; a backend that accepts what a bucket of half a
second's depth holds, and keeps half of the bucket from SHEDDABLE requests; answers take
20 ms. Virtual time, seeded.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import pytest

from lbclient.core.criticality import Criticality
from lbclient.core.model import Verdict
from lbclient.core.throttles.fallen_demand import QUIET, FallenDemand
from lbclient.core.throttles.throttle import K, Throttle

CRITICAL, SHEDDABLE = Criticality.CRITICAL, Criticality.SHEDDABLE
LATENCY = 0.02
SOON = 2.0  # seconds


@dataclass
class Backend:
    capacity: float
    tokens: float = 0.0
    filled_at: float = 0.0

    def accepts(self, criticality: Criticality, now: float) -> bool:
        more = (now - self.filled_at) * self.capacity
        self.tokens = min(self.tokens + more, self.capacity / 2.0)
        self.filled_at = now
        kept = self.capacity / 4.0 if criticality is SHEDDABLE else 0.0
        if self.tokens < max(1.0, kept):
            return False
        self.tokens -= 1.0
        return True


Counts = Counter[tuple[str, Criticality]]


def run(
    clients: int, capacity: float, phases: Sequence[tuple[float, float]]
) -> list[Counts]:
    """What was wanted and sent in each phase, a demand in capacities and seconds."""
    rng, backend = Random(1), Backend(capacity)
    throttles = [Throttle(Random(i)) for i in range(clients)]
    under_way: deque[tuple[float, Throttle, Criticality, Verdict]] = deque()
    now, end, seen = 0.0, 0.0, []
    for times, seconds in phases:
        counts: Counts = Counter()
        end += seconds
        while (now := now + rng.expovariate(times * capacity)) < end:
            while under_way and under_way[0][0] <= now:
                at, throttle, criticality, verdict = under_way.popleft()
                throttle.observe(criticality, verdict, at)
            criticality = rng.choice((CRITICAL, SHEDDABLE))
            throttle = rng.choice(throttles)
            counts["wanted", criticality] += 1
            if throttle.admits(criticality, now):
                counts["sent", criticality] += 1
                is_accepted = backend.accepts(criticality, now)
                counts["refused", criticality] += not is_accepted
                verdict = Verdict.SERVED if is_accepted else Verdict.REJECTED
                under_way.append((now + LATENCY, throttle, criticality, verdict))
        seen.append(counts)
    return seen


@pytest.mark.parametrize(
    ("clients", "capacity", "flood"), [(1, 20, 100.0), (2, 90, 8.0), (2, 90, 40.0)]
)
def test_two_seconds_after_the_demand_has_fallen_nothing_is_refused(
    clients: int, capacity: float, flood: float
) -> None:
    """It was ten times what backends accept, and is half of it."""
    *_, after = run(clients, capacity, [(10.0, flood), (0.5, SOON), (0.5, 20.0)])
    for criticality in (CRITICAL, SHEDDABLE):
        wanted = after["wanted", criticality]
        assert after["sent", criticality] >= 0.99 * wanted
    assert after["refused", SHEDDABLE] <= 2


@pytest.mark.parametrize(
    ("times", "clients"), [(1.9, 10), (1.9, 2), (1.9, 1), (2.5, 2), (10.0, 1)]
)
def test_where_the_demand_lasts_backends_get_no_more_for_it(
    monkeypatch: pytest.MonkeyPatch, times: float, clients: int
) -> None:
    """But for a tenth of the capacity; and no more than K of all that they accept."""
    capacity, phases = 50.0, [(times, 30.0), (times, 30.0)]
    _, seen = run(clients, capacity, phases)
    monkeypatch.setattr(FallenDemand, "fits", lambda *_: False)
    _, without = run(clients, capacity, phases)
    sent, before = (
        sum(counts["sent", one] for one in (CRITICAL, SHEDDABLE)) / 30.0
        for counts in (seen, without)
    )
    assert sent <= before + 0.1 * capacity
    if before <= K * capacity:
        assert sent <= K * capacity


def accepting(k: float = K) -> FallenDemand:
    """Ten requests a second were accepted for a minute, and 100 wanted."""
    demand = FallenDemand(k)
    demand.refuse(CRITICAL, 0.0)
    for number in range(6000):
        demand.want(CRITICAL, number / 100)
        if number % 10 == 0:
            demand.accept(number / 100)
    return demand


def test_what_is_wanted_now_is_compared_with_k_times_what_was_accepted() -> None:
    for k, wanted in ((1.0, 10.0), (K, 20.0)):
        demand = accepting(k)
        assert not demand.fits(CRITICAL, 60.0)
        at = next(at for at in range(600, 700) if demand.fits(CRITICAL, at / 10)) / 10
        now = demand._wanted[CRITICAL].read(at) / 0.5
        assert 0.7 * wanted <= now <= wanted


def test_what_is_more_critical_counts_as_wanted_and_what_is_less_does_not() -> None:
    demand = accepting()
    for _ in range(5):
        demand.want(CRITICAL, 70.0)
    assert demand.fits(CRITICAL, 70.0)
    assert demand.fits(SHEDDABLE, 70.0)
    for _ in range(50):
        demand.want(SHEDDABLE, 70.0)
    assert demand.fits(CRITICAL, 70.0)
    assert not demand.fits(SHEDDABLE, 70.0)
    for _ in range(50):
        demand.want(CRITICAL, 80.0)
    assert not demand.fits(SHEDDABLE, 80.0)


def test_after_a_refusal_another_must_be_accepted_and_some_time_must_pass() -> None:
    demand = accepting()
    assert demand.fits(CRITICAL, 70.0)
    demand.refuse(CRITICAL, 70.0)
    assert not demand.fits(CRITICAL, 70.0 + 2 * QUIET)
    demand.accept(70.0)
    assert not demand.fits(CRITICAL, 70.0 + 0.9 * QUIET)
    assert demand.fits(CRITICAL, 70.0 + QUIET)


def test_a_refusal_says_nothing_of_what_is_more_critical() -> None:
    demand = accepting()
    demand.refuse(SHEDDABLE, 70.0)
    assert demand.fits(CRITICAL, 70.0)
    assert not demand.fits(SHEDDABLE, 70.0)
    demand.accept(70.0)
    assert demand.fits(SHEDDABLE, 71.0)
    demand.refuse(CRITICAL, 71.0)
    demand.accept(71.0)
    assert not demand.fits(CRITICAL, 71.0)
    assert not demand.fits(SHEDDABLE, 71.0)


def test_who_was_accepted_nothing_wants_too_much() -> None:
    demand = FallenDemand(K)
    assert not demand.fits(CRITICAL, 0.0)
    demand.refuse(CRITICAL, 0.0)
    demand.want(CRITICAL, 100.0)
    assert not demand.fits(CRITICAL, 100.0)
    assert repr(demand) == "<0 were accepted>"
