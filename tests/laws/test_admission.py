"""One task in more demand than it can meet, in virtual time.

Poisson arrivals in units of the task's capacity; one processor that serves in order of
arrival; a refusal costs the processor a share of what a request does. Seeded.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import exp, log
from random import Random
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbclient.core.counting.tally import STEP, Tally
from lbclient.core.criticality import Criticality
from lbclient.core.model import Verdict
from lbclient.core.overload.admission import (
    LOAD,
    MIX_MEMORY,
    PATIENCE,
    Admission,
    Places,
    Quickest,
    Signal,
)
from lbclient.core.retries.attempt_histogram import IN_VAIN
from lbclient.core.retries.retry import Budget, Failure, Retry
from lbclient.core.throttles.throttle import Throttle

CAPACITY = 200.0  # requests a second
TICK = 0.01  # seconds between two looks at a signal that is not instantaneous
CRITICAL, SHEDDABLE = Criticality.CRITICAL, Criticality.SHEDDABLE

Demand = Callable[[float], dict[Criticality, float]]


@dataclass(kw_only=True)
class Task:
    """What is simulated, and from `begins` on what is seen."""

    demand: Demand
    seconds: float
    begins: float
    admission: Admission = field(default_factory=lambda: Admission([LOAD], Random(2)))
    is_random: bool = False  # whether costs are exponential, or all the same
    refusal: float = 0.0  # what one costs, of a request's cost
    k: float | None = None  # of the clients' throttle, None: they have none
    smoothing: float = 0.0  # of the signal, and how old it is when it is seen
    delay: float = 0.0

    offered: dict[Criticality, int] = field(default_factory=dict)
    admitted: dict[Criticality, int] = field(default_factory=dict)
    refused_at: list[float] = field(default_factory=list)
    ended_at: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)

    def run(self) -> "Task":
        self.offered = dict.fromkeys(Criticality, 0)
        self.admitted = dict.fromkeys(Criticality, 0)
        rng, now, free_at = Random(1), 0.0, 0.0
        throttle = self.k and Throttle(Random(3), self.k)
        self.ends: deque[tuple[float, Criticality]] = deque()
        self.seen: deque[float] = deque([0.0] * (1 + round(self.delay / TICK)))
        self.ticked_at = 0.0
        most = max(sum(self.demand(t).values()) for t in range(int(self.seconds)))
        while (now := now + rng.expovariate(most * CAPACITY)) < self.seconds:
            self.look(now, throttle)
            criticality = self.draw(now, rng.random() * most)
            if criticality is None:
                continue
            counts = now >= self.begins
            self.offered[criticality] += counts
            if throttle and not throttle.admits(criticality, now):
                continue
            if self.admission.refuses(criticality):
                self.refused_at.append(now)
                free_at = max(free_at, now) + self.refusal / CAPACITY
                if throttle:
                    throttle.observe(criticality, Verdict.REJECTED, now)
                continue
            cost = rng.expovariate(1.0) if self.is_random else 1.0
            free_at = max(free_at, now) + cost / CAPACITY
            self.ends.append((free_at, criticality))
            self.admitted[criticality] += counts
            if counts:
                self.latencies.append(free_at - now)
        return self

    def draw(self, now: float, level: float) -> Criticality | None:
        for criticality, demand in self.demand(now).items():
            level -= demand
            if level < 0.0:
                return criticality
        return None

    def look(self, now: float, throttle: Throttle | float | None) -> None:
        """Lets time pass until `now`, and tells admission of the signal."""
        while self.ends and self.ends[0][0] <= now:
            ended_at, criticality = self.ends.popleft()
            self.ended_at.append(ended_at)
            if isinstance(throttle, Throttle):
                throttle.observe(criticality, Verdict.SERVED, ended_at)
        if not self.smoothing and not self.delay:
            self.admission.observe([len(self.ends)])
            return
        while self.ticked_at + TICK <= now:
            self.ticked_at += TICK
            kept = exp(-TICK / self.smoothing) if self.smoothing else 0.0
            self.seen.append(self.seen[-1] * kept + len(self.ends) * (1.0 - kept))
            self.seen.popleft()
        self.admission.observe([self.seen[0]])

    @property
    def goodput(self) -> float:
        return fmean(self.served(1.0))

    def served(self, width: float) -> list[float]:
        """Of the capacity, in each `width` seconds."""
        counts = [0] * int((self.seconds - self.begins) / width + 1e-9)
        for at in self.ended_at:
            i = int((at - self.begins) / width)
            if 0 <= i < len(counts) and at >= self.begins:
                counts[i] += 1
        return [count / CAPACITY / width for count in counts]

    @property
    def p99(self) -> float:
        return sorted(self.latencies)[int(0.99 * len(self.latencies))]

    def success(self, criticality: Criticality) -> float:
        return self.admitted[criticality] / self.offered[criticality]


def critical(times: float) -> Demand:
    return lambda now: {CRITICAL: times}


def variation(values: list[float]) -> float:
    return pstdev(values) / fmean(values)


class Switch(Admission):
    """The contrast: all or nothing."""

    def _share_out(self) -> None:
        self.shares = [0.0 if self.excess else 1.0] * len(Criticality)


costs = pytest.mark.parametrize("is_random", [False, True])


@pytest.mark.slow
@costs
@pytest.mark.parametrize("times", [2, 5, 10])
def test_a_task_serves_what_it_can_whatever_is_thrown_at_it(
    times: float, is_random: bool
) -> None:
    """5 % for the chance of random costs: 4,000 requests have 1.6 %."""
    task = Task(
        demand=critical(times), seconds=25.0, begins=5.0, is_random=is_random
    ).run()
    assert task.goodput >= (0.95 if is_random else 0.97)


@pytest.mark.parametrize("times", [2, 5, 10])
def test_with_refusals_at_a_price_it_serves_what_they_leave(times: float) -> None:
    """Of capacity 1, x are served and times - x refused: x + r (times - x) = 1."""
    r = 0.05
    task = Task(demand=critical(times), seconds=15.0, begins=5.0, refusal=r).run()
    assert task.goodput >= 0.97 * (1.0 - r * times) / (1.0 - r)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("times", "refusal", "least"),
    [(2, 0.05, 0.95), (5, 0.05, 0.9), (10, 0.05, 0.9), (10, 0.1, 0.9)],
)
def test_with_throttled_clients_refusals_cost_next_to_nothing(
    times: float, refusal: float, least: float
) -> None:
    """At K = 2 clients send one request for each that is served: 1 / (1 + refusal)."""
    task = Task(
        demand=critical(times), seconds=35.0, begins=15.0, refusal=refusal, k=2.0
    ).run()
    assert task.goodput >= least


@pytest.mark.slow
@costs
def test_the_tail_in_tenfold_overload_is_twice_that_of_a_well_loaded_task(
    is_random: bool,
) -> None:
    busy, flooded = (
        Task(
            demand=critical(times), seconds=25.0, begins=5.0, is_random=is_random
        ).run()
        for times in (0.8, 10.0)
    )
    assert flooded.p99 <= 2.0 * busy.p99
    assert busy.success(CRITICAL) >= (0.95 if is_random else 0.99)


@pytest.mark.slow
@costs
@pytest.mark.parametrize(
    ("steady", "seconds", "least"),
    [(0.5, 2.0, 0.99), (0.5, 30.0, 0.998), (0.9, 30.0, 0.95)],
)
def test_who_is_critical_hardly_notices_twelve_times_the_load_of_others(
    steady: float, seconds: float, least: float, is_random: bool
) -> None:
    """From its first moment on: of 200 requests in two seconds, two."""
    flood = {SHEDDABLE: 12.0, CRITICAL: steady}
    calm = {SHEDDABLE: 0.1, CRITICAL: 0.5}
    task = Task(
        demand=lambda now: flood if now >= 10.0 else calm,
        seconds=10.0 + seconds,
        begins=10.0,
        is_random=is_random,
    ).run()
    assert task.success(CRITICAL) >= least
    assert task.success(SHEDDABLE) < 0.12
    assert task.goodput >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("times", [1.5, 2.0, 10.0])
def test_goodput_does_not_swing_where_a_switch_makes_it(times: float) -> None:
    """The signal is smoothed over 0.2 s and 0.1 s old; goodput is that of 0.1 s.

    Until a tenfold demand is seen 20 requests come in each 10 ms.
    """
    signal = Signal("load", 20.0, 10.0)
    smooth, switched = (
        Task(
            demand=critical(times),
            seconds=20.0,
            begins=5.0,
            admission=kind([signal], Random(2)),
            smoothing=0.2,
            delay=0.1,
        ).run()
        for kind in (Admission, Switch)
    )
    assert smooth.goodput >= 0.99
    assert variation(smooth.served(0.1)) <= 0.05
    assert switched.goodput <= 0.9
    assert variation(switched.served(0.1)) >= 0.3


@pytest.mark.parametrize(("times", "goodput"), [(2.0, 0.85), (10.0, 0.95)])
@pytest.mark.slow
def test_a_load_that_is_smoothed_besides_being_late_lets_the_task_idle(
    times: float, goodput: float
) -> None:
    """As of threads: seen after 0.1 s, with the target and width of `LOAD`."""
    late, smooth = (
        Task(
            demand=critical(times),
            seconds=40.0,
            begins=10.0,
            smoothing=smoothing,
            delay=0.1,
        ).run()
        for smoothing in (0.0, 0.2)
    )
    assert late.goodput >= goodput
    assert smooth.goodput <= late.goodput - 0.1
    assert variation(smooth.served(1.0)) >= 2.0 * variation(late.served(1.0))


def test_a_second_after_the_flood_nobody_is_refused() -> None:
    task = Task(
        demand=lambda now: {CRITICAL: 10.0 if now < 10.0 else 0.5},
        seconds=20.0,
        begins=10.0,
    ).run()
    assert max(task.refused_at) < 11.0


def fleet(refusing: list[float], requests: int) -> tuple[float, float]:
    """The attempts that tasks get, and the requests that are served; of all requests.

    Each task refuses its share; each attempt goes to any task. One client, with budget.
    """
    tasks: list[Admission] = []
    for share in refusing:
        admission = Admission([Signal("share", 0.0, 1.0)], Random(len(tasks)))
        admission.observe([-PATIENCE[CRITICAL] * log(max(1.0 - share, 1e-9))])
        tasks.append(admission)
    rng, budget = Random(1), Budget()
    attempts = served = 0
    for _ in range(requests):
        budget.deposit()
        retry = Retry(budget, rng)
        delay: float | None = 0.0
        while delay is not None:
            attempts += 1
            refusal = rng.choice(tasks).refuses(CRITICAL, retry.attempt)
            if refusal is None:
                served += 1
                break
            delay = retry.decide(Failure(refusal), None, is_other=True).delay
    return attempts / requests, served / requests


def test_where_all_refuse_they_soon_say_that_retrying_is_in_vain() -> None:
    """So retries stay about where that begins; the budget would allow 1.1."""
    attempts, served = fleet([1.0] * 4, requests=20_000)
    assert attempts <= 1.0 + 1.2 * IN_VAIN
    assert served == 0.0


def test_where_one_of_twenty_refuses_retrying_is_not_in_vain() -> None:
    attempts, served = fleet([1.0] + [0.0] * 19, requests=20_000)
    assert served >= 0.995
    assert attempts == pytest.approx(1 + 1 / 20 + 1 / 400, abs=0.005)


signals = st.lists(st.floats(0.0, 100.0), min_size=2, max_size=2)
mixes = st.lists(st.sampled_from(Criticality), max_size=200)


@given(mixes, signals)
def test_one_that_is_refused_at_all_leaves_nothing_to_those_below(
    mix: list[Criticality], values: list[float]
) -> None:
    admission = Admission([Signal("one", 1.0, 2.0), Signal("two", 5.0, 0.5)], Random(1))
    for criticality in mix:
        admission.refuses(criticality)
    admission.observe(values)
    for c in Criticality:
        assert 0.0 <= admission.shares[c] <= 1.0
        if admission.shares[c] < 1.0:
            assert not any(admission.shares[:c])


@given(mixes, signals, st.floats(0.0, 10.0), st.integers(0, 1))
def test_the_busier_a_task_the_less_gets_in(
    mix: list[Criticality], values: list[float], more: float, which: int
) -> None:
    admission = Admission([Signal("one", 1.0, 2.0), Signal("two", 5.0, 0.5)], Random(1))
    for criticality in mix:
        admission.refuses(criticality)
    admission.observe(values)
    before = admission.shares
    values[which] += more
    admission.observe(values)
    for one, other in zip(admission.shares, before, strict=True):
        assert one <= other + 1e-9


def placed(limit: int, demand: dict[Criticality, float]) -> dict[Criticality, float]:
    """What share of each gets a place; `demand` is in limits, and costs are random."""
    rng, mix = Random(1), Tally(len(Criticality), MIX_MEMORY)
    places = Places(limit, mix, Random(2))
    now, ends, came, placed = 0.0, list[float](), dict[Criticality, int](), [0] * 4
    for request in range(40_000):
        now += rng.expovariate(sum(demand.values()) * limit)
        while ends and ends[0] <= now:
            heappop(ends)
        (criticality,) = rng.choices(list(demand), list(demand.values()))
        mix.add(criticality)
        is_in = not places.refuses(criticality, len(ends)) and len(ends) < limit
        if is_in:
            heappush(ends, now + rng.expovariate(1.0))
        if request > 2000:
            came[criticality] = came.get(criticality, 0) + 1
            placed[criticality] += is_in
    return {one: placed[one] / came[one] for one in demand}


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "least"), [(10, 0.88), (30, 0.985), (100, 0.997)])
def test_the_last_places_are_for_who_is_critical(limit: int, least: float) -> None:
    """By the limit alone 0.08 of either got a place. With ten places chance is large:
    five critical requests are ten or more now and then, without any others.
    """
    got = placed(limit, {SHEDDABLE: 12.0, CRITICAL: 0.5})
    assert got[CRITICAL] >= least
    assert got[SHEDDABLE] >= 0.02, "and the others have what is left"


@pytest.mark.parametrize("only", Criticality)
def test_who_has_nobody_above_may_have_all_places(only: Criticality) -> None:
    """Twice the limit: 1/2, as far as by Erlang's formula 100 places are full."""
    assert placed(100, {only: 2.0})[only] == pytest.approx(0.5, abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [*range(1, 17), 25, 100])
def test_a_few_requests_take_any_place_though_others_matter_more(limit: int) -> None:
    """No more than half of the places are kept: below 16 that is fewer than two
    standard deviations, and of a limit of 1 to 3 these would be more than all."""
    mix = Tally(len(Criticality), MIX_MEMORY)
    for _ in range(2 * STEP):
        mix.add(CRITICAL)
        mix.add(SHEDDABLE)
    places = Places(limit, mix, Random(1))
    kept = min(limit / 2, 2.0 * limit**0.5)
    assert places.start == limit - kept
    for active in range(limit):
        refused = sum(places.refuses(SHEDDABLE, active) for _ in range(1000))
        assert (refused > 0) is (active > limit - kept), active


@given(
    st.lists(st.tuples(st.floats(0.0, 40.0), st.floats(0.001, 10.0)), min_size=1),
    st.floats(0.0, 100.0),
    st.floats(-1.0, 20.0),
)
def test_too_late_is_only_what_nobody_lately_made(
    served: list[tuple[float, float]], later: float, left: float
) -> None:
    quickest, now, times = Quickest(), 0.0, []
    for gap, seconds in served:
        now += gap
        quickest.observe(seconds, now)
        times.append((now, seconds))
    now += later
    if quickest.is_too_late(left, now) and left > 0.0:
        assert all(left < seconds for at, seconds in times if at > now - 30.0)
        assert any(at >= now - 60.0 for at, _ in times)
