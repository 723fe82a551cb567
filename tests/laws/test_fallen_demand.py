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
from lbclient.core.throttles.fallen_demand import QUIET, SPARE, FallenDemand
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


class Limit(Backend):
    """Accepts so many requests at a time, and so refuses some at half of them, too."""

    def __init__(self, places: int, took: float) -> None:
        super().__init__(places / took)
        self.places, self.took, self.ends = places, took, deque[float]()

    def accepts(self, criticality: Criticality, now: float) -> bool:
        while self.ends and self.ends[0] <= now:
            self.ends.popleft()
        if len(self.ends) == self.places:
            return False
        self.ends.append(now + self.took)
        return True


Counts = Counter[tuple[str, Criticality]]


def run(
    clients: int, backend: Backend, phases: Sequence[tuple[float, float]]
) -> list[Counts]:
    """What was wanted and sent in each phase, a demand in capacities and seconds."""
    rng, capacity = Random(1), backend.capacity
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
    *_, after = run(
        clients, Backend(capacity), [(10.0, flood), (0.5, SOON), (0.5, 20.0)]
    )
    for criticality in (CRITICAL, SHEDDABLE):
        wanted = after["wanted", criticality]
        assert after["sent", criticality] >= 0.99 * wanted
    assert after["refused", SHEDDABLE] <= 2


@pytest.mark.slow
@pytest.mark.parametrize("flood", [10.0, 60.0])
@pytest.mark.parametrize(("places", "took"), [(4, 0.08), (10, 0.05)])
def test_a_backend_that_refuses_a_few_all_the_same_holds_back_nobody(
    places: int, took: float, flood: float
) -> None:
    """It refuses what finds all of its places taken, which few requests do."""
    backend = Limit(places, took)
    *_, soon, after = run(2, backend, [(10.0, flood), (0.5, SOON), (0.5, 30.0)])
    assert sum(soon["sent", one] for one in (CRITICAL, SHEDDABLE)) > 0
    for criticality in (CRITICAL, SHEDDABLE):
        assert after["refused", criticality] > 2
        assert after["sent", criticality] >= 0.98 * after["wanted", criticality]


@pytest.mark.parametrize(
    ("times", "clients"), [(1.9, 10), (1.9, 2), (1.9, 1), (2.5, 2), (10.0, 1)]
)
def test_where_the_demand_lasts_backends_get_no_more_for_it(
    monkeypatch: pytest.MonkeyPatch, times: float, clients: int
) -> None:
    """But for a tenth of the capacity; and no more than K of all that they accept."""
    capacity, phases = 50.0, [(times, 30.0), (times, 30.0)]
    _, seen = run(clients, Backend(capacity), phases)
    monkeypatch.setattr(FallenDemand, "fits", lambda *_: False)
    _, without = run(clients, Backend(capacity), phases)
    sent, before = (
        sum(counts["sent", one] for one in (CRITICAL, SHEDDABLE)) / 30.0
        for counts in (seen, without)
    )
    assert sent <= before + 0.1 * capacity
    if before <= K * capacity:
        assert sent <= K * capacity


def accepting(k: float = K) -> FallenDemand:
    """Ten requests a second were accepted for a minute, ten refused, and 100 wanted."""
    demand = FallenDemand(k)
    demand.refuse(CRITICAL, 0.0)
    for number in range(6000):
        demand.want(CRITICAL, number / 100)
        if number % 10 == 0:
            demand.refuse(CRITICAL, number / 100)
            demand.accept(CRITICAL, number / 100)
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
    demand.accept(CRITICAL, 70.0)
    assert not demand.fits(CRITICAL, 70.0 + 0.9 * QUIET)
    assert demand.fits(CRITICAL, 70.0 + QUIET)


@pytest.mark.parametrize("k", [1.1, K])
def test_while_few_enough_are_refused_nothing_is_held_back(k: float) -> None:
    """At most 0.7 of what is refused of K times what is accepted, of any 16 or so."""
    demand = accepting(k)
    tolerated = 0.7 * (1.0 - 1.0 / k)

    def outcomes(begin: float, share: float, most: int) -> int:
        """How many come until it does not fit any more, at intervals of 1 ms."""
        due = 0.0
        for number in range(most):
            now = begin + number / 1000
            due += share
            if due >= 1.0:
                due -= 1.0
                demand.refuse(CRITICAL, now)
            else:
                demand.accept(CRITICAL, now)
            if not demand.fits(CRITICAL, now):
                return number
        return most

    assert outcomes(70.0, 0.9 * tolerated, 3000) == 3000
    assert outcomes(80.0, 0.9 * tolerated, 1000) == 1000
    lasted = outcomes(90.0, 1.0, 100)
    assert 12 <= lasted <= SPARE
    demand.accept(CRITICAL, 91.0)
    assert demand.fits(CRITICAL, 91.0)
    assert outcomes(92.0, 1.1 * tolerated, 3000) < 3000


def test_what_is_accepted_of_others_spares_nobody() -> None:
    demand = accepting()
    for _ in range(100):
        demand.accept(CRITICAL, 70.0)
    demand.refuse(SHEDDABLE, 70.0)
    demand.refuse(CRITICAL, 70.0)
    assert demand.fits(CRITICAL, 70.1)
    assert not demand.fits(SHEDDABLE, 70.1)


def test_a_refusal_says_nothing_of_what_is_more_critical() -> None:
    demand = accepting()
    demand.refuse(SHEDDABLE, 70.0)
    assert demand.fits(CRITICAL, 70.0)
    assert not demand.fits(SHEDDABLE, 70.0)
    demand.accept(CRITICAL, 70.0)
    assert demand.fits(SHEDDABLE, 71.0)
    demand.refuse(CRITICAL, 71.0)
    demand.accept(CRITICAL, 71.0)
    assert not demand.fits(CRITICAL, 71.0)
    assert not demand.fits(SHEDDABLE, 71.0)


def test_who_was_accepted_nothing_wants_too_much() -> None:
    demand = FallenDemand(K)
    assert not demand.fits(CRITICAL, 0.0)
    demand.refuse(CRITICAL, 0.0)
    demand.want(CRITICAL, 100.0)
    assert not demand.fits(CRITICAL, 100.0)
    assert repr(demand) == "<0 were accepted>"
