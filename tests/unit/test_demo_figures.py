"""The demo's table: what is computed from accounts and calls."""

from importlib import import_module
from pathlib import Path
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


@pytest.mark.parametrize(
    ("busiest", "error", "kept"),
    [(1.1, 0.01, True), (1.3, 0.01, False), (1.3, 0.1, None), (1.3, None, False)],
)
def test_a_balance_within_the_error_of_its_promise_is_neither_kept_nor_missed(
    busiest: float,
    error: float | None,
    kept: bool | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The demo's programs import their neighbours by bare names.
    fleet = Path(__file__).parents[2] / "examples" / "fleet"
    monkeypatch.syspath_prepend(fleet)
    found = Balance((busiest, 2.0 - busiest), error)
    phase = Phase("weighted_least_loaded", "weighted least loaded", balance=found)
    [finding] = import_module("report").verdict([phase], 1.0, True)
    assert finding.kept is kept
    assert "promised 1.15" in finding.text
