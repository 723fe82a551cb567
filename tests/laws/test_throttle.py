"""What throttled clients do to a backend of a given capacity, and after it heals.

Poisson arrivals at ten times the capacity; a backend that accepts what a bucket of
capacity holds, of one second's depth; answers take 50 ms. Virtual time, seeded.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbclient.core.criticality import Criticality
from lbclient.core.model import Verdict
from lbclient.core.throttles.throttle import K, Throttle

CRITICAL = Criticality.CRITICAL
OVERLOAD = 10
LATENCY = 0.05
FILL = 150  # seconds, until all that the window knows is overload
SECONDS = 100

# How many clients share the capacity, and what one offers a second.
CROWDS = [(1, 200), (8, 50)]
crowds = pytest.mark.parametrize(("clients", "rate"), CROWDS)


@dataclass
class Second:
    offered: int = 0
    arrived: int = 0
    accepted: int = 0


@dataclass
class Backend:
    """Accepts `capacity` a second, and after `heals_at` all but a few.

    In waves: it lets each second's worth in at once.
    """

    capacity: float
    heals_at: float
    stray: float = 0.0
    in_waves: bool = False
    rng: Random = field(default_factory=lambda: Random(3))
    tokens: float = 0.0
    filled_at: float = 0.0

    def accepts(self, now: float) -> bool:
        if now >= self.heals_at:
            return self.rng.random() >= self.stray
        elapsed = int(now) - self.filled_at if self.in_waves else now - self.filled_at
        self.tokens = min(self.tokens + elapsed * self.capacity, self.capacity)
        self.filled_at += elapsed
        if self.tokens < 1.0:
            return False
        self.tokens -= 1.0
        return True


def run(
    k: float, clients: int, rate: float, backend: Backend, seconds: int
) -> list[Second]:
    """What each second saw; which client a request is of is chance."""
    rng = Random(1)
    throttles = [Throttle(Random(i), k) for i in range(clients)]
    under_way: deque[tuple[float, Throttle, Verdict]] = deque()
    seen = [Second() for _ in range(seconds)]
    for now in arrivals(rng, clients * rate, seconds):
        while under_way and under_way[0][0] <= now:
            at, throttle, verdict = under_way.popleft()
            throttle.observe(CRITICAL, verdict, at)
        second, throttle = seen[int(now)], rng.choice(throttles)
        second.offered += 1
        if throttle.admits(CRITICAL, now):
            accepted = backend.accepts(now)
            second.arrived += 1
            second.accepted += accepted
            verdict = Verdict.SERVED if accepted else Verdict.REJECTED
            under_way.append((now + LATENCY, throttle, verdict))
    return seen


def arrivals(rng: Random, rate: float, seconds: float) -> Iterator[float]:
    now = rng.expovariate(rate)
    while now < seconds:
        yield now
        now += rng.expovariate(rate)


def refused_here(seconds: list[Second]) -> float:
    offered = sum(second.offered for second in seconds)
    return 1.0 - sum(second.arrived for second in seconds) / offered


def recovery(seen: list[Second], healed: int) -> int:
    """Seconds until under 1 % is refused here, in three seconds together."""
    after = range(healed, len(seen) - 3)
    return next(s for s in after if refused_here(seen[s : s + 3]) < 0.01) - healed


@pytest.mark.slow
@crowds
@pytest.mark.parametrize("k", [1.1, 1.5, K])
def test_in_tenfold_overload_a_backend_gets_k_times_its_capacity(
    k: float, clients: int, rate: int
) -> None:
    capacity = clients * rate / OVERLOAD
    backend = Backend(capacity, heals_at=FILL + SECONDS)
    seen = run(k, clients, rate, backend, FILL + SECONDS)[FILL:]
    arrived = sum(second.arrived for second in seen) / SECONDS
    accepted = sum(second.accepted for second in seen) / SECONDS
    assert arrived <= 1.05 * k * capacity
    assert accepted >= 0.97 * capacity


@pytest.mark.parametrize("k", [1.1, K])
def test_so_it_is_with_a_backend_that_accepts_in_waves(k: float) -> None:
    """A second's worth at once looks as if it were well."""
    backend = Backend(200 / OVERLOAD, heals_at=FILL + SECONDS, in_waves=True)
    seen = run(k, 1, 200, backend, FILL + SECONDS)[FILL:]
    arrived = sum(second.arrived for second in seen) / SECONDS
    assert arrived <= 1.05 * k * backend.capacity


@pytest.mark.slow
@crowds
@pytest.mark.parametrize("k", [1.0, 1.1, K])
def test_half_a_minute_after_the_backend_is_well_nothing_is_refused_here(
    k: float, clients: int, rate: int
) -> None:
    backend = Backend(clients * rate / OVERLOAD, heals_at=FILL)
    seen = run(k, clients, rate, backend, FILL + 40)
    assert refused_here(seen[FILL - 20 : FILL]) > 0.7
    assert recovery(seen, FILL) <= 30


@pytest.mark.slow
@pytest.mark.parametrize(
    ("k", "rate", "accepted", "longest"),
    [(1.1, 20, 4, 30), (1.1, 10, 1, 120), (1.5, 20, 2, 30), (K, 10, 1, 30)],
)
def test_where_little_is_accepted_evidence_comes_more_slowly(
    k: float, rate: int, accepted: int, longest: int
) -> None:
    """So much a second of each of twenty clients, long enough to be all they know."""
    fill = FILL + SECONDS
    backend = Backend(20 * accepted, heals_at=fill)
    seen = run(k, 20, rate, backend, fill + longest + 10)
    assert refused_here(seen[fill - 20 : fill]) > 0.6
    assert recovery(seen, fill) <= longest


@pytest.mark.parametrize("k", [1.1, K])
def test_recovery_is_as_quick_after_two_minutes_of_nothing_but_refusals(
    k: float,
) -> None:
    seen = run(k, 1, 200, Backend(0.0, heals_at=FILL), FILL + 40)
    assert refused_here(seen[FILL - 20 : FILL]) > 0.99
    assert recovery(seen, FILL) <= 30


@pytest.mark.parametrize("k", [1.1, K])
def test_a_well_backend_may_refuse_one_in_two_hundred(k: float) -> None:
    backend = Backend(200 / OVERLOAD, heals_at=FILL, stray=0.005)
    assert recovery(run(k, 1, 200, backend, FILL + 40), FILL) <= 30


gaps = st.floats(0.0, 20.0)
verdicts = st.sampled_from([Verdict.SERVED, Verdict.FAILED, Verdict.ABANDONED])


@given(st.floats(1.0, 3.0), st.lists(st.tuples(gaps, verdicts), max_size=50))
def test_who_is_never_refused_is_never_throttled(
    k: float, calls: list[tuple[float, Verdict]]
) -> None:
    throttle = Throttle(Random(1), k)
    now = 0.0
    for gap, verdict in calls:
        now += gap
        for _ in range(20):
            assert throttle.admits(CRITICAL, now)
            throttle.observe(CRITICAL, verdict, now)


@given(
    st.floats(1.0, 3.0),
    st.lists(st.tuples(gaps, st.sampled_from(Verdict)), max_size=50),
)
def test_a_probability_is_one_and_counts_add_up(
    k: float, calls: list[tuple[float, Verdict]]
) -> None:
    throttle = Throttle(Random(1), k)
    now, known = 0.0, 0
    for gap, verdict in calls:
        now += gap
        for _ in range(50):
            if throttle.admits(CRITICAL, now):
                throttle.observe(CRITICAL, verdict, now)
                known += verdict is not Verdict.ABANDONED
            else:
                known += 1
        assert 0.0 <= throttle.probability(CRITICAL, now) < 1.0
        assert sum(throttle.counts(CRITICAL, now)) <= known
