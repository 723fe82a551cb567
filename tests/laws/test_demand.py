"""Health checks and connections follow the rate of calls, and do not flap."""

from itertools import pairwise
from math import exp, inf
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given

from lbclient.core.backends.demand import (
    CREDIT,
    MEMORY,
    PARTS,
    SEVERAL,
    SLOWEST,
    Demand,
    ReportInterval,
)
from tests.examples import examples

FASTEST = 1.0
LOOK = 1.0  # seconds between two looks
HOUR = 3600.0


def calls_at(rng: Random, rate: float, seconds: float) -> list[int]:
    """By second, as chance has it."""
    counts = [0] * int(seconds)
    at = rng.expovariate(rate)
    while at < len(counts):
        counts[int(at)] += 1
        at += rng.expovariate(rate)
    return counts


def paces(counts: list[int]) -> list[float]:
    report_interval = ReportInterval(FASTEST, 0.0)
    started, seen = 0, []
    for second, count in enumerate(counts, 1):
        started += count
        report_interval.observe(started, 0, float(second))
        seen.append(report_interval.every)
    return seen


def cost(seen: list[float]) -> float:
    """Reports, and calls that ask for another pace, each with a report at once."""
    return sum(LOOK / every for every in seen) + 2 * changes(seen)


def changes(seen: list[float]) -> int:
    return sum(a != b for a, b in pairwise(seen))


@examples(30)
@given(seed=st.integers(0, 1000), gap=st.floats(0.2, 1000.0))
def test_no_rate_of_calls_costs_more_in_health_checks(seed: int, gap: float) -> None:
    """But for the credit at first, and the slowest pace. A report more a call or so
    goes with a pace that changes, so it is twice as many at the very most."""
    counts = calls_at(Random(seed), 1 / gap, HOUR)
    most = CREDIT + HOUR / SLOWEST + 2 * sum(counts)
    assert cost(paces(counts)) <= most + 2 * 3  # down to the slowest


@examples(30)
@given(seed=st.integers(0, 1000), calls=st.integers(2, 50))
def test_a_client_that_calls_often_hears_often(seed: int, calls: int) -> None:
    counts = calls_at(Random(seed), float(calls), 600.0)
    assert set(paces(counts)) == {FASTEST}


@pytest.mark.parametrize("gap", [0.2, 0.9, 1.1, 3, 5, 15, 20, 50, 70, 200])
def test_a_steady_rate_changes_the_pace_for_a_while_only(gap: float) -> None:
    counts = [0] * int(HOUR)
    at = 0.0
    while at < HOUR:
        counts[int(at)] += 1
        at += gap
    settled = paces(counts)[int(HOUR / 2) :]
    assert len(set(settled)) == 1


def test_who_calls_again_hears_often_again_at_once() -> None:
    counts = [0] * 600 + [20] * 5
    seen = paces(counts)
    assert seen[599] == SLOWEST
    assert seen[601] == FASTEST


def test_a_call_that_is_not_answered_makes_reports_frequent() -> None:
    """Long before the slow pace would tell of a frozen backend."""
    report_interval = ReportInterval(FASTEST, 0.0)
    for second in range(600):
        report_interval.observe(0, 0, float(second))
    assert report_interval.every == SLOWEST
    report_interval.observe(1, 1, 600.0)
    report_interval.observe(1, 1, 601.0)
    assert report_interval.every == FASTEST


def test_a_call_that_is_open_is_a_use() -> None:
    report_interval = ReportInterval(FASTEST, 0.0)
    report_interval.observe(1, 1, 1.0)
    report_interval.observe(1, 1, HOUR)
    assert report_interval.used_at == HOUR
    report_interval.observe(1, 0, HOUR + 1)
    assert report_interval.used_at == HOUR


IDLE_AFTER = 300.0
BACKENDS = 20


def connections(counts: list[int], rng: Random) -> list[int]:
    """How many a channel has, second by second, as its balancer goes by demand."""
    demand = Demand(IDLE_AFTER, 0.0)
    used_at = dict.fromkeys(range(BACKENDS), 0.0)  # those that are connected
    calls, seen = 0, []
    for now, count in enumerate(counts, 1):
        for _ in range(count):
            if not used_at:
                used_at[rng.randrange(BACKENDS)] = now
            used_at[rng.choice(list(used_at))] = now
        calls += count
        least, most = demand.worth(calls, now)
        away = [b for b in range(BACKENDS) if b not in used_at]
        used_at.update(dict.fromkeys(away[: max(0, least - len(used_at))], now))
        idle = [b for b, at in used_at.items() if at <= now - IDLE_AFTER]
        for backend in idle[: max(0, len(used_at) - most)]:
            del used_at[backend]
        seen.append(len(used_at))
    return seen


def test_a_low_rate_keeps_few_connections_and_a_high_one_all() -> None:
    few = connections(calls_at(Random(7), 1 / 60, 2 * HOUR), Random(8))[-1]
    many = connections(calls_at(Random(7), 1.0, 2 * HOUR), Random(8))
    assert 1 <= few <= IDLE_AFTER / 60
    assert set(many) == {BACKENDS}


def test_nobody_who_calls_has_no_connection_left() -> None:
    seen = connections([0] * int(HOUR), Random(7))
    assert seen[-1] == 0


def test_when_calls_come_again_so_do_connections() -> None:
    counts = [0] * int(HOUR) + [10] * 60
    seen = connections(counts, Random(7))
    assert seen[int(HOUR) - 1] == 0
    assert seen[int(HOUR) + BACKENDS * SEVERAL // 10] == BACKENDS


@examples(20)
@given(seed=st.integers(0, 1000), gap=st.floats(0.5, 600.0))
def test_a_steady_rate_opens_and_closes_seldom(seed: int, gap: float) -> None:
    """Evenly spaced calls, on backends as chance has it: once the number has settled
    it only moves by one where the last connection goes and comes with single calls."""
    counts = [0] * int(4 * HOUR)
    at = 0.0
    while at < len(counts):
        counts[int(at)] += 1
        at += gap
    seen = connections(counts, Random(seed))[int(HOUR) :]
    if gap < IDLE_AFTER / SEVERAL:
        assert sum(b > a for a, b in pairwise(seen)) == 0
    else:
        assert max(seen) <= SEVERAL


def test_what_was_called_before_a_long_sleep_is_forgotten() -> None:
    demand = Demand(IDLE_AFTER, 0.0)
    for part in range(2 * PARTS):
        calls = 100 * part
        demand.worth(calls, IDLE_AFTER / PARTS * part)
    assert demand.worth(calls, HOUR) == (0, 0)


@pytest.mark.parametrize("gap", [0.1, 5.0, 60.0])
def test_the_mean_time_between_calls_is_told(gap: float) -> None:
    """After four times the memory e^-4 of the calls is missing, and one or less."""
    demand, now = Demand(IDLE_AFTER, 0.0), 4 * MEMORY
    for call in range(1, int(now / gap) + 1):
        demand.worth(call, call * gap)
    expected = gap / (1 - exp(-4))
    assert demand.gap(now) == pytest.approx(expected, rel=gap / MEMORY)


@given(pause=st.floats(0.0, 20 * HOUR))
def test_it_is_never_less_than_the_time_since_the_last_call(pause: float) -> None:
    demand = Demand(IDLE_AFTER, 0.0)
    demand.worth(1000, 100.0)
    demand.worth(1000, 100.0 + pause / 2)
    assert demand.gap(100.0 + pause) >= pause - 1e-6
    assert demand.gap(100.0 + pause) >= demand.gap(100.0 + pause / 2)


def test_who_never_called_has_no_time_between_calls() -> None:
    assert Demand(IDLE_AFTER, 0.0).gap(HOUR) == inf
