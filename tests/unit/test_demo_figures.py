"""The demo's table: what is computed from accounts and calls."""

from math import exp, log
from random import Random
from statistics import fmean, stdev

import pytest

from examples.fleet.figures import (
    Balance,
    Call,
    Phase,
    Usage,
    balance,
    failed_on,
    in_flight,
    last_sent,
    percentile,
)
from examples.fleet.traffic import Traffic

CALLS = [
    Call(1.0, 1.5, "a", "OK"),
    Call(1.2, 3.0, "b", "UNAVAILABLE"),
    Call(2.0, 2.1, "a", "OK"),
    Call(2.6, 4.0, "b", "OK"),
]


def test_utilization_is_over_what_a_backend_has_and_its_own_time() -> None:
    before = [Usage(1.0, 10.0, 2.0), Usage(0.0, 5.0, 2.0)]
    after = [Usage(9.0, 15.0, 2.0), Usage(2.0, 9.0, 2.0)]
    assert balance([before, after]).utilization == pytest.approx((0.8, 0.25))
    assert balance([before, after]).error is None


def test_the_error_of_a_balance_is_how_far_it_is_off() -> None:
    """Over many runs of a fleet whose shares are 0.6, 0.5, 0.4, with noise."""
    rng = Random(7)

    def measured() -> Balance:
        busy = [0.0, 0.0, 0.0]
        readings = [[Usage(0.0, 0.0, 1.0)] * 3]
        for at in range(1, 11):
            busy = [
                sum_ + 0.5 * max(0.0, rng.gauss(share, 0.1))
                for sum_, share in zip(busy, (0.6, 0.5, 0.4), strict=True)
            ]
            readings.append([Usage(one, 0.5 * at, 1.0) for one in busy])
        return balance(readings)

    runs = [measured() for _ in range(200)]
    ratios = [run.max_over_mean or 0.0 for run in runs]
    told = fmean(run.error or 0.0 for run in runs)
    assert fmean(ratios) == pytest.approx(1.2, abs=0.02)
    assert told == pytest.approx(stdev(ratios), rel=0.3)


def test_waste_is_what_the_busiest_keeps_the_others_from_using() -> None:
    even = Balance((0.8, 0.4, 0.6))
    assert even.max_over_mean == pytest.approx(0.8 / 0.6)
    assert even.max_over_min == pytest.approx(2.0)
    # (0.8-0.8) + (0.8-0.4) + (0.8-0.6) of 3 reserved.
    assert even.wasted == pytest.approx(0.6 / 3)


def test_ratios_of_an_idle_fleet_are_unknown_rather_than_infinite() -> None:
    assert Balance((0.0, 0.0)).max_over_mean is None
    assert Balance((0.5, 0.0)).max_over_min is None


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [percentile(values, share) for share in (0.5, 0.99, 1.0)] == [50, 99, 100]
    assert percentile([7.0], 0.99) == 7.0


def test_a_phase_counts_all_calls_but_only_the_measured_latencies() -> None:
    phase = Phase("p", "p")
    phase.count(CALLS, since=2.0)
    assert (phase.calls, phase.failed) == (4, 1)
    assert phase.p50 == pytest.approx(0.1)
    assert phase.p99 == pytest.approx(1.4)


def test_in_flight_are_those_that_overlap_the_moment_of_death() -> None:
    assert in_flight(CALLS, "b", 2.5, 2.55) == 1
    assert in_flight(CALLS, "b", 2.5, 2.7) == 2
    assert in_flight(CALLS, "a", 2.5, 2.7) == 0
    assert failed_on(CALLS, "b") == 1


def test_the_last_call_sent_is_looked_for_before_a_time() -> None:
    assert last_sent(CALLS, "b", until=2.5) == 1.2
    assert last_sent(CALLS, "b", until=3.0) == 2.6
    assert last_sent(CALLS, "c", until=3.0) is None


def test_one_seed_gives_one_sequence_of_calls() -> None:
    def draw(seed: int) -> list[float]:
        traffic = Traffic(100.0, 0.02, heavy_tail=True, rng=Random(seed))
        return [draw() for _ in range(10) for draw in (traffic.gap, traffic.cost)]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_gaps_and_costs_have_the_mean_that_was_asked_for() -> None:
    # The standard error of 2,000 gaps is 2 %, that of as many costs 3 %.
    traffic = Traffic(50.0, 0.02, heavy_tail=False, rng=Random(1))
    assert fmean(traffic.gap() for _ in range(2000)) == pytest.approx(0.02, rel=0.08)
    costs = [traffic.cost() for _ in range(2000)]
    assert fmean(costs) == pytest.approx(0.02, rel=0.12)
    # The median of a lognormal with sigma 1 is its mean over e^0.5.
    median = percentile(sorted(costs), 0.5)
    assert median == pytest.approx(0.02 / exp(0.5), rel=0.12)


def test_a_heavier_tail_leaves_the_mean_where_it_is() -> None:
    # With the same chance, a cost is either the lighter tail's in proportion or
    # that 100 to 1000 times, once in 100.
    factors = [
        Traffic(1.0, 1.0, True, Random(seed)).cost()
        / Traffic(1.0, 1.0, False, Random(seed)).cost()
        for seed in range(500)
    ]
    light = min(factors)
    heavy = [factor / light for factor in factors if factor > light * 1.001]
    assert 0 < len(heavy) < 15
    assert all(100 <= factor <= 1000 for factor in heavy)
    assert light * (0.99 + 0.01 * 900 / log(10)) == pytest.approx(1.0)
