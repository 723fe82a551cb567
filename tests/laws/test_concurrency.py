"""The limit that finds itself, on a pool in more demand than it can meet.

In virtual time: Poisson arrivals at a pool, whose places are taken in order of arrival.
At its deadline a request leaves the queue, or its place once it is done. Seeded.
"""

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from random import Random
from statistics import fmean
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lbclient.core.overload.concurrency import TUNING as CONCURRENCY
from lbclient.core.overload.concurrency import ConcurrencyLimit, RequestOutcome
from lbclient.core.overload.concurrency import RequestInFlight as Place
from lbclient.core.overload.latency_window import MethodBaseline as Known
from tests.examples import examples

COST = 0.05  # seconds
Service = Callable[[Random, float], tuple[str, float]]


def even(_rng: Random, _now: float) -> tuple[str, float]:
    return "even", COST


def exponential(rng: Random, _now: float) -> tuple[str, float]:
    return "exponential", rng.expovariate(1.0 / COST)


def two_methods(rng: Random, _now: float) -> tuple[str, float]:
    """One of a nineteenth of the other; the same in the mean."""
    return ("quick", 0.1 * COST) if rng.random() < 0.5 else ("slow", 1.9 * COST)


class Request:
    __slots__ = ("at", "is_over", "place", "took")

    def __init__(self, at: float, took: float, place: Place) -> None:
        self.at = at
        self.took = took
        self.place = place
        self.is_over = False


class Pool:
    """What is simulated. Rates and places by the time."""

    def __init__(
        self,
        rate: Callable[[float], float],
        service: Service = even,
        places: Callable[[float], float] = lambda now: 8,
        deadline: float = 1.0,
        seed: int = 1,
    ) -> None:
        self.limit = ConcurrencyLimit()
        self.limit.take_time(deadline)
        self.served: list[tuple[float, float]] = []  # when, and the latency
        self.refused: list[float] = []
        self.arrived: list[float] = []
        self.limits: list[tuple[float, float]] = []
        self._rate, self._service = rate, service
        self._places, self._deadline = places, deadline
        self._rng = Random(seed)
        self._known: dict[str, Known] = {}
        self._events: list[tuple[float, int, str, Any]] = []
        self._number = 0
        self._waiting: deque[Request] = deque()
        self._busy = 0

    def run(self, seconds: float) -> "Pool":
        self._push(0.0, "arrival", None)
        while self._events[0][0] < seconds:
            now, _, kind, request = heappop(self._events)
            if kind == "arrival":
                self._push(now + self._rng.expovariate(self._rate(now)), kind, None)
                self._arrive(now)
            else:
                self._busy -= kind == "done"
                if not request.is_over:
                    self._end(request, now, kind)
            while self._waiting and self._busy < self._places(now):
                first = self._waiting.popleft()
                if not first.is_over and first.took < inf:
                    self._busy += 1
                    self._push(now + first.took, "done", first)
        return self

    def _push(self, at: float, kind: str, request: Request | None) -> None:
        self._number += 1
        heappush(self._events, (at, self._number, kind, request))

    def _arrive(self, now: float) -> None:
        self.arrived.append(now)
        method, took = self._service(self._rng, now)
        known = self._known.get(method)
        if known is None:
            known = self._known[method] = self.limit.method()
        most = self.limit.limit_at(now)
        self.limits.append((now, self.limit.limit))
        if self.limit.takes_place(known) and self.limit.active >= most:
            self.limit.refuse(now)
            self.refused.append(now)
            return
        request = Request(now, took, self.limit.begin(known, now))
        self._waiting.append(request)
        self._push(now + self._deadline, "deadline", request)

    def _end(self, request: Request, now: float, kind: str) -> None:
        request.is_over = True
        if kind != "done":
            request.place.outcome = RequestOutcome.GIVEN_UP
        self.limit.end(request.place, now)
        if kind == "done":
            self.served.append((now, now - request.at))

    # What is seen from one second to another

    def goodput(self, begin: float, end: float) -> float:
        """Of the capacity of 8 places."""
        number = sum(begin <= at < end for at, _ in self.served)
        return number / (end - begin) * COST / 8

    def p99(self, begin: float, end: float) -> float:
        took = sorted(took for at, took in self.served if begin <= at < end)
        return took[int(0.99 * len(took))]

    def refusals(self, begin: float, end: float) -> float:
        refused = sum(begin <= at < end for at in self.refused)
        return refused / sum(begin <= at < end for at in self.arrived)

    def limit_from(self, begin: float, end: float) -> float:
        """In the mean."""
        return fmean(limit for at, limit in self.limits if begin <= at < end)


def times(load: float) -> Callable[[float], float]:
    """So many times the capacity of 8 places."""
    return lambda _now: load * 8 / COST


def steps(*values: float) -> Callable[[float], float]:
    """Each for 30 s, the last for ever."""
    return lambda now: values[min(len(values) - 1, int(now / 30.0))]


# With nobody before them; 4.6 times the mean, and the longer of two.
ALONE: dict[Service, float] = {
    even: COST,
    exponential: 4.6 * COST,
    two_methods: 1.9 * COST,
}


@pytest.mark.slow
@pytest.mark.parametrize("load", [2.0, 10.0])
@pytest.mark.parametrize("service", ALONE)
def test_the_pool_is_full_and_what_is_let_in_hardly_waits(
    service: Service, load: float
) -> None:
    pool = Pool(times(load), service).run(80.0)
    least = 0.93 if service is exponential else 0.97
    assert pool.goodput(20.0, 80.0) >= least
    assert pool.p99(20.0, 80.0) <= 2.0 * ALONE[service]


@pytest.mark.parametrize("load", [2.0, 5.0, 10.0])
@pytest.mark.parametrize("service", ALONE)
def test_who_starts_in_a_flood_serves_nearly_all_the_time(
    service: Service, load: float
) -> None:
    """The first second fills the queue, and the second is that of the probe."""
    pool = Pool(times(load), service).run(10.0)
    assert pool.goodput(0.0, 1.0) >= 0.9
    assert pool.goodput(1.0, 2.0) >= 0.35
    assert pool.goodput(0.0, 10.0) >= 0.85


def test_a_queue_that_is_over_is_suspected_no_more() -> None:
    """It was too short to be verified. What comes much later finds many places."""

    def rate(now: float) -> float:
        return times(2.0)(now) if now < 0.47 else 5.0 if now < 10.0 else 2_000.0

    pool = Pool(rate, places=lambda now: 8 if now < 5.0 else 1_000).run(10.2)
    assert pool.limit.limit == inf
    assert pool.refusals(5.0, 10.2) == 0.0


def test_what_came_before_a_latency_was_known_is_in_flight() -> None:
    limit = ConcurrencyLimit()
    method = limit.method()
    requests = [limit.begin(method, 0.001 * number) for number in range(20)]
    assert limit.active == 0
    limit.end(requests[0], COST)
    assert limit.active == 19
    limit.begin(method, COST)
    for request in requests[1:]:
        limit.end(request, 2 * COST)
    assert limit.active == 1


def test_without_a_limit_hardly_anything_is_in_time() -> None:
    pool = Pool(times(2.0))
    pool.limit.limit_at = lambda now: inf  # type: ignore[method-assign]
    pool.run(30.0)
    assert pool.p99(10.0, 30.0) > 0.9


def test_a_fixed_number_of_clients_that_queue_is_limited() -> None:
    """Nobody is refused by a limit that they just meet, and yet it is too high."""
    limit, now, free_at = ConcurrencyLimit(), 0.0, [0.0] * 8
    method = limit.method()
    for _ in range(20):  # one by one, so that a free place is known
        place = limit.begin(method, now)
        limit.end(place, now := now + COST)
    asks: list[tuple[float, int, Place | None]] = [
        (now + 0.001 * client, client, None) for client in range(64)
    ]
    while now < 30.0:
        now, client, begun = heappop(asks)
        if begun is not None:
            limit.end(begun, now)
            heappush(asks, (now, client, None))
        elif limit.active >= limit.limit_at(now):
            limit.refuse(now)
            heappush(asks, (now + 0.1, client, None))
        else:
            free_at.sort()
            free_at[0] = max(now, free_at[0]) + COST
            heappush(asks, (free_at[0], client, limit.begin(method, now)))
    assert 8 <= limit.limit <= 2 * 8


@pytest.mark.slow
@pytest.mark.parametrize("service", [even, exponential])
def test_nothing_drifts_in_half_an_hour(service: Service) -> None:
    pool = Pool(times(2.0), service).run(1800.0)
    for begin in range(300, 1800, 300):
        assert pool.goodput(begin, begin + 300) >= 0.93
        assert pool.p99(begin, begin + 300) <= 2.0 * ALONE[service]
        assert 8 <= pool.limit_from(begin, begin + 300) <= 2 * 8


@pytest.mark.slow
@pytest.mark.parametrize("load", [4.0, 10.0])
@pytest.mark.parametrize("service", [even, exponential])
def test_the_limit_follows_within_ten_seconds(service: Service, load: float) -> None:
    """From 10 to 15 s after the pool has grown, shrunk and grown again.

    The limit of 8 places is 7 now and then where latencies are exponential: estimates
    by 64 of them err by an eighth.
    """
    sizes = (8, 16, 4, 8)
    pool = Pool(times(load), service, steps(*sizes)).run(30.0 * len(sizes))
    for number, places in enumerate(sizes):
        begin = 30.0 * number + 10.0
        assert 0.85 <= pool.limit_from(begin, begin + 5.0) / places <= 2.3
        assert pool.goodput(begin, begin + 20.0) >= 0.88 * places / 8
        assert pool.p99(begin, begin + 20.0) <= 2.2 * ALONE[service]


@pytest.mark.parametrize("service", [even, exponential])
def test_demand_that_the_pool_meets_is_never_refused(service: Service) -> None:
    assert not Pool(times(0.5), service).run(300.0).refused


@pytest.mark.parametrize("service", [even, exponential])
def test_a_limit_outlives_the_flood_without_harm(service: Service) -> None:
    """What comes afterwards and meets no limit changes none."""
    pool = Pool(lambda now: (2.0 if now < 30.0 else 0.3) * 8 / COST, service)
    pool.run(120.0)
    assert pool.refusals(35.0, 120.0) < 0.01
    assert 7 <= pool.limit.limit <= 2 * 8


@pytest.mark.slow
@pytest.mark.parametrize("service", [even, exponential, two_methods])
def test_a_pool_without_an_end_is_not_limited_for_long(service: Service) -> None:
    """It first has 50 in flight and then 500. What is exponential may seem to queue."""
    pool = Pool(
        lambda now: 1000.0 if now < 10.0 else 10_000.0, service, lambda _now: inf
    ).run(30.0)
    assert pool.refusals(0.0, 30.0) <= 0.1
    assert pool.refusals(20.0, 30.0) <= 0.02


@pytest.mark.slow
@pytest.mark.parametrize("much", [2.0, 8.0])
def test_a_pool_without_an_end_that_gets_slower_is_not_limited_for_long(
    much: float,
) -> None:
    """It looks like a full one, until a probe has told; the probe refuses some."""

    def slower(_rng: Random, now: float) -> tuple[str, float]:
        return "even", COST if now < 10.0 else much * COST

    pool = Pool(lambda _now: 1000.0, slower, lambda _now: inf).run(60.0)
    assert pool.refusals(10.0, 20.0) <= 0.3
    assert not pool.refusals(20.0, 60.0)


@pytest.mark.slow
@pytest.mark.parametrize("lasts", [5.0, 3 * CONCURRENCY.long_request])
def test_long_polls_beside_quick_requests_refuse_nobody(lasts: float) -> None:
    def polls(rng: Random, _now: float) -> tuple[str, float]:
        return ("poll", lasts) if rng.random() < 0.01 else ("quick", 0.01)

    pool = Pool(lambda _now: 1000.0, polls, lambda _now: inf, deadline=100.0)
    assert not pool.run(120.0).refused


@pytest.mark.parametrize("slow", [0.5, 1.0])
def test_handlers_that_are_slower_than_their_deadline_refuse_nobody(
    slow: float,
) -> None:
    def late(rng: Random, _now: float) -> tuple[str, float]:
        return "late", 2.0 if rng.random() < slow else COST

    assert not Pool(lambda _now: 500.0, late, lambda _now: inf).run(60.0).refused


@pytest.mark.slow
def test_handlers_of_which_most_are_too_slow_are_not_probed_again_and_again() -> None:
    """It looks like a queue in which all give up, until a probe that finds none."""

    def late(rng: Random, _now: float) -> tuple[str, float]:
        return "late", 2.0 if rng.random() < 0.98 else COST

    pool = Pool(lambda _now: 500.0, late, lambda _now: inf).run(240.0)
    assert pool.refusals(0.0, 240.0) <= 0.4
    assert pool.refusals(120.0, 240.0) <= 0.3


def test_a_pool_that_stood_still_is_used_as_before() -> None:
    pool = Pool(times(2.0), even, lambda now: 0 if 30.0 < now < 33.0 else 8).run(60.0)
    assert pool.goodput(35.0, 60.0) >= 0.95
    assert pool.p99(35.0, 60.0) <= 4.0 * COST


def test_requests_that_never_end_take_places_for_a_while_only() -> None:
    """They wait for something else, and would fill the limit twice."""
    stuck = []

    def leaking(rng: Random, now: float) -> tuple[str, float]:
        if rng.random() < 0.002:
            stuck.append(now)
            return "one", inf
        return "one", COST

    pool = Pool(times(2.0), leaking, deadline=inf).run(120.0)
    assert len(stuck) > 60
    assert pool.goodput(60.0, 120.0) >= 0.8


@given(
    st.integers(min_value=2, max_value=60),
    st.floats(min_value=0.01, max_value=0.3),
    st.floats(min_value=2.0, max_value=6.0),
    st.integers(min_value=0, max_value=2**30),
)
@examples(5)
# Pools smaller than the first probe: its own requests queue.
@example(3, 0.25, 2.0, 1)
@example(5, 0.25, 6.0, 564377109)
@example(6, 0.3, 6.0, 433420164)
def test_whatever_its_size_the_pool_is_found(
    places: int, cost: float, load: float, seed: int
) -> None:
    """Within a fifth, or one place."""
    pool = Pool(
        lambda _now: load * places / cost,
        lambda _rng, _now: ("one", cost),
        lambda _now: places,
        deadline=20.0 * cost,
        seed=seed,
    ).run(20.0 + 250.0 * cost)
    assert pool.limit.places == pytest.approx(places, rel=0.2, abs=1.0)


def test_what_it_says_of_itself() -> None:
    limit = ConcurrencyLimit()
    assert repr(limit) == "<no limit, 0 in flight>"
    pool = Pool(times(2.0)).run(30.0)
    assert "places," in repr(pool.limit)
    assert pool.limit.limit == pytest.approx(
        CONCURRENCY.headroom * pool.limit.places, abs=1.0
    )
