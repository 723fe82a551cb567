"""Requests that wait for seconds do not count as load; a queue always does."""

from random import Random

import pytest

from lbclient.core.model import LoadReport, Outcome, Verdict
from lbclient.core.report.waiting import MOST, Waiting
from lbclient.pickers import WeightedLeastLoaded
from lbclient.testing import fake_nodes

TICK = 0.1
SHORT = 0.01  # seconds, of most requests


def sample(
    waiting: Waiting,
    active: int,
    utilization: float,
    cpus: float = 1.0,
    took: float = SHORT,
    long: float = 8.0,
    ticks: range = range(600),
) -> Waiting:
    """Of the requests that end 50 in each tick take about as long as `took`. Those in
    flight take `long`: so many of them end as there are, by Little's law."""
    ended = 0.0
    for tick in ticks:
        for number in range(50):
            waiting.served(took * (0.5 + number / 50))
        ended += active * TICK / long
        while ended >= 1.0:
            waiting.served(long)
            ended -= 1.0
        waiting.sample(tick * TICK, active, utilization, cpus)
    return waiting


def test_who_takes_long_beside_idle_processors_waits() -> None:
    waiting = sample(Waiting(), active=100, utilization=0.2)
    assert 95.0 < waiting.count < 100.0
    assert waiting.runnable(110) == pytest.approx(11, abs=1)
    assert waiting.runnable(3) == 0


@pytest.mark.parametrize("cpus", [1.0, 4.0, 64.0])
@pytest.mark.parametrize("used", [0.01, 0.3, 0.7, 0.9, 1.0, 1.5])
def test_what_a_queue_of_that_utilization_has_does_not_wait(
    used: float, cpus: float
) -> None:
    """An M/M/m has at most m u + u / (1 - u) requests in the mean."""
    queue = cpus * used + used / (1.0 - used) if used < 1.0 else 250.0
    assert sample(Waiting(), round(queue), used, cpus).runnable(5) is None


def test_a_queue_for_something_else_than_processors_does_not_wait() -> None:
    """As for a GPU: all requests take about as long, whatever the processors do."""
    waiting = Waiting()
    for tick in range(600):
        for number in range(20):
            waiting.served(0.5 + number / 20)
        waiting.sample(tick * TICK, 200, 0.1, 4.0)
    assert waiting.runnable(200) is None


def test_what_took_long_while_the_processors_were_full_did_not_wait() -> None:
    waiting = sample(Waiting(), active=0, utilization=0.5)
    for tick in range(600, 800):
        waiting.sample(tick * TICK, 60, 1.0, 1.0)
        for number in range(50 if tick > 700 else 0):
            waiting.served(1.0 if number % 3 == 0 else SHORT)
    assert sample(waiting, 60, 0.5, long=1e9, ticks=range(800, 820)).count == 0.0


def test_those_that_wait_are_known_from_the_first_that_ends_on() -> None:
    """None was for a minute: that does not make them fewer."""
    waiting = sample(Waiting(), active=0, utilization=0.1)
    sample(waiting, active=100, utilization=0.1, ticks=range(600, 650))
    assert waiting.count > 85.0


def test_a_backend_that_stalls_does_not_look_idle() -> None:
    """For no processor time its requests take 50 times as long from 60 s on."""
    waiting = sample(Waiting(), active=20, utilization=0.3)
    stalls = range(600, 650)
    sample(waiting, 2000, 0.3, took=50 * SHORT, ticks=stalls, long=50 * SHORT)
    told = waiting.runnable(2000)
    assert told is not None
    assert told > 1500


def test_a_backend_that_gets_more_of_those_that_wait_tells_them_soon() -> None:
    waiting = sample(Waiting(), active=20, utilization=0.1)
    assert waiting.runnable(20) == pytest.approx(1, abs=1)
    waiting.sample(600 * TICK, 60, 0.1, 1.0)
    told = waiting.runnable(60)
    assert told is not None
    assert 60 - told <= MOST * 20


def test_who_waits_is_told_only_where_one_does() -> None:
    assert sample(Waiting(), active=1, utilization=0.1).runnable(1) is None
    assert Waiting().runnable(7) is None
    waiting = sample(Waiting(), active=100, utilization=0.0)
    assert repr(waiting) == "<100.0 of 100.0 requests wait>"


@pytest.mark.parametrize("idle", [0, 1])
def test_a_client_whose_own_requests_wait_believes_who_tells_fewer(idle: int) -> None:
    """Its own in flight are more than twice those that run: no count is old for that,
    and the one that has fewer gets the next."""
    nodes, choice, now = fake_nodes(2), WeightedLeastLoaded(Random(1)), 100.0
    for node in nodes:
        for _ in range(20):
            node.load.begin()
    for _ in range(30):
        now += 0.2
        choice.pick(nodes, now)
        for number, node in enumerate(nodes):
            report = LoadReport(0.5, 100.0, 0.0, 25, 1 if number == idle else 9)
            node.load.begin()
            node.load.finish(Outcome(Verdict.SERVED, 0.02, report), now)
    assert choice.pick(nodes, now) is nodes[idle]


def test_after_requests_that_took_no_time_others_do_not_seem_to_wait_for_good() -> None:
    """The median fell to the least number that there is; no step leads up from it."""
    waiting = Waiting()
    for _ in range(40_000):
        waiting.served(0.0)
    for tick in range(1000):
        for number in range(50):
            waiting.served(0.0 if number % 5 < 2 else 0.5)
        waiting.sample(tick * TICK, 100, 0.2, 1.0)
    assert waiting.count == 0.0
