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


def run(times: float) -> tuple[Counter[Criticality], list[float]]:
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
        [criticality] = rng.choices(list(SHARES), list(SHARES.values()))
        pressure.observe(threads.load(now), now)
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
