"""A pool of threads that gets ten times what it can do; virtual time, seeded.

Ten threads of 50 ms, deadlines of 1 s, half of the load SHEDDABLE, a twentieth
CRITICAL_PLUS. Requests wait for a thread first in, first out, and are refused when they
get one if they waited for too long.
"""

from collections import Counter, deque
from heapq import heappop, heappush
from random import Random

import pytest

from lbclient.core.criticality import Criticality
from lbclient.core.overload.overload_signals import Pressure
from lbclient.server.overload.threads import Threads
from lbclient.server.requests.handler import WAITS

THREADS, TAKES, DEADLINE = 10, 0.05, 1.0
CAPACITY = THREADS / TAKES
FILL, SECONDS = 2.0, 8.0
SHARES = {
    Criticality.CRITICAL_PLUS: 0.05,
    Criticality.CRITICAL: 0.45,
    Criticality.SHEDDABLE: 0.5,
}


ALIKE = {Criticality.CRITICAL: 1.0}


def run(
    times: float, shares: dict[Criticality, float] = SHARES
) -> tuple[Counter[Criticality], list[float]]:
    """Who was served of what came after `FILL`, and in what time."""
    rng, threads, pressure = Random(1), Threads(dict), Pressure(8.0, Random(2))
    waiting: deque[tuple[float, Criticality]] = deque()
    busy: list[float] = []  # when each thread that runs a handler is done
    served: Counter[Criticality] = Counter()
    took = []

    def start(now: float) -> None:
        while waiting and len(busy) < THREADS:
            request = waiting.popleft()
            came_at, criticality = request
            waited = now - came_at
            threads.leave(request)
            threads.waited(waited, DEADLINE - waited)
            if waited > WAITS * (DEADLINE - waited):
                continue
            threads.began(now)
            heappush(busy, now + TAKES)
            if came_at >= FILL:
                served[criticality] += 1
                took.append(waited + TAKES)

    now = 0.0
    while now < FILL + SECONDS:
        now += rng.expovariate(times * CAPACITY)
        while busy and busy[0] <= now:
            start(heappop(busy))
        [criticality] = rng.choices(list(shares), list(shares.values()))
        pressure.observe(threads.load(now, pressure.are_alike), now)
        if pressure.refuses(criticality, 0, now) is None:
            request = now, criticality
            waiting.append(request)
            threads.queue(request, now)
            start(now)
    while busy:
        start(heappop(busy))
    return served, took


@pytest.mark.parametrize("times", [2.0, 10.0])
def test_the_most_critical_have_threads_and_none_is_idle(times: float) -> None:
    served, took = run(times)
    assert served.total() >= 0.97 * CAPACITY * SECONDS
    assert served[Criticality.CRITICAL_PLUS] >= 0.95 * 0.05 * times * CAPACITY * SECONDS
    assert sorted(took)[int(0.99 * len(took))] <= DEADLINE / 2


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
