"""A pool of threads that gets more than it can do; virtual time, seeded.

Ten threads of 50 ms, deadlines of 1 s. Requests wait for a thread first in, first out,
and are refused when they get one if they waited for too long.
"""

from collections import Counter, deque
from heapq import heappop, heappush
from math import inf
from random import Random

import pytest

from lbclient.core.criticality import Criticality
from lbclient.core.overload.overload_signals import Pressure
from lbclient.server.overload.threads import Threads
from lbclient.server.requests.handler import WAITS

THREADS, TAKES, DEADLINE = 10, 0.05, 1.0
CAPACITY = THREADS / TAKES
FILL, SECONDS = 2.0, 8.0
ALIKE = {Criticality.CRITICAL: 1.0}


def mixed(critical: float) -> dict[Criticality, float]:
    """The shares of the load, if that is CRITICAL, and a tenth of it CRITICAL_PLUS."""
    return {
        Criticality.CRITICAL_PLUS: 0.1 * critical,
        Criticality.CRITICAL: 0.9 * critical,
        Criticality.SHEDDABLE: 1.0 - critical,
    }


class Pool:
    """The threads, and the line before them, of a server that refuses as ours do."""

    def __init__(self) -> None:
        self._threads, self._pressure = Threads(dict), Pressure(8.0, Random(2))
        self._waiting: deque[tuple[float, Criticality]] = deque()
        self._busy: list[float] = []  # when each thread that runs a handler is done
        self.served: Counter[Criticality] = Counter()  # of what came after `FILL`
        self.took: list[float] = []

    def pass_time(self, until: float) -> None:
        while self._busy and self._busy[0] <= until:
            self._start(heappop(self._busy))

    def come(self, criticality: Criticality, now: float) -> None:
        pressure, threads = self._pressure, self._threads
        pressure.observe(threads.load(now, pressure.are_alike), now)
        if pressure.refuses(criticality, 0, now) is not None:
            return
        first, lower = threads.first_below(criticality)  # as `Gate.make_way`
        if lower is not None and pressure.is_refusing():
            threads.leave(first)
            pressure.give_way(lower, now)
        request = now, criticality
        self._waiting.append(request)
        threads.queue(request, now, criticality)
        self._start(now)

    def _start(self, now: float) -> None:
        threads = self._threads
        while self._waiting and len(self._busy) < THREADS:
            request = self._waiting.popleft()
            came_at, criticality = request
            waited = now - came_at
            has_waited = threads.leave(request)
            threads.waited(waited, DEADLINE - waited)
            if not has_waited or waited > WAITS * (DEADLINE - waited):
                continue
            threads.began(now)
            heappush(self._busy, now + TAKES)
            if came_at >= FILL:
                self.served[criticality] += 1
                self.took.append(waited + TAKES)


def run(
    times: float, shares: dict[Criticality, float]
) -> tuple[Counter[Criticality], list[float]]:
    """Who was served of what came after `FILL`, and in what time."""
    rng, pool, now = Random(1), Pool(), 0.0
    while now < FILL + SECONDS:
        now += rng.expovariate(times * CAPACITY)
        pool.pass_time(now)
        [criticality] = rng.choices(list(shares), list(shares.values()))
        pool.come(criticality, now)
    pool.pass_time(inf)
    return pool.served, pool.took


@pytest.mark.slow
@pytest.mark.parametrize(
    ("times", "critical"),
    [(1.2, 0.7), (2.0, 0.35), (2.0, 0.5), (3.0, 0.3), (10.0, 0.5)],
)
def test_the_most_critical_have_threads_and_none_is_idle(
    times: float, critical: float
) -> None:
    """Where CRITICAL is about what fits, 0.97 of it: arrivals come in clusters."""
    shares = mixed(critical)
    served, took = run(times, shares)
    comes = {one: share * times * CAPACITY * SECONDS for one, share in shares.items()}
    assert served.total() >= 0.97 * CAPACITY * SECONDS
    plus = served[Criticality.CRITICAL_PLUS]
    assert plus >= 0.95 * comes[Criticality.CRITICAL_PLUS]  # by what chance sends
    fits = min(comes[Criticality.CRITICAL], served.total() - plus)
    assert served[Criticality.CRITICAL] >= 0.97 * fits
    assert sorted(took)[int(0.99 * len(took))] <= 0.36 * DEADLINE


@pytest.mark.parametrize("times", [1.2, 10.0])
def test_where_all_are_alike_none_is_idle_and_none_is_late(times: float) -> None:
    served, took = run(times, ALIKE)
    assert served.total() >= 0.97 * CAPACITY * SECONDS
    assert sorted(took)[int(0.99 * len(took))] <= DEADLINE / 2


@pytest.mark.parametrize(("callers", "deadline"), [(120, 2.0), (60, 1.0), (150, 5.0)])
def test_callers_that_ask_again_at_once_are_not_refused(
    callers: int, deadline: float
) -> None:
    """They are served after 0.3 of their deadline, however long that lasts."""
    threads, pressure = Threads(dict), Pressure(8.0, Random(2))
    waiting = deque((number, 0.0) for number in range(callers))
    for request in waiting:
        threads.queue(request, 0.0)
    refused, now = 0, 0.0
    for number in range(callers, 4000):
        if number % THREADS == 0:  # all threads are done at the same time
            now += TAKES
        request = _, came_at = waiting.popleft()
        threads.leave(request)
        threads.waited(now - came_at, deadline - (now - came_at))
        threads.began(now)
        pressure.observe(threads.load(now, pressure.are_alike), now)
        refused += pressure.refuses(Criticality.CRITICAL, 0, now) is not None
        waiting.append((number, now))
        threads.queue(waiting[-1], now)
    assert refused == 0
