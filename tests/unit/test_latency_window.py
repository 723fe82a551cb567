"""Baselines, and what a window makes of them."""

import pytest

from lbclient.core.overload.latency_window import MEMORY, LatencyWindow, MethodBaseline


def method_of(baseline: float) -> MethodBaseline:
    method = MethodBaseline()
    method.observe(baseline)
    return method


def window_of(in_flight: int, seconds: float = 10.0) -> LatencyWindow:
    window = LatencyWindow()
    window.pass_time(seconds, in_flight)
    return window


def test_a_baseline_is_a_mean_that_moves() -> None:
    method = MethodBaseline()
    for latency in (1.0, 2.0, 3.0):
        method.observe(latency)
    assert method.baseline == pytest.approx(2.0)
    for _ in range(10 * MEMORY):
        method.observe(5.0)
    assert method.baseline == pytest.approx(5.0, rel=0.01)


def test_a_window_knows_the_places_by_littles_law() -> None:
    """20 in flight, which take twice the latency of a free place."""
    window, method = window_of(20), method_of(1.0)
    for _ in range(100):
        window.end(method, 2.0, was_served=True)
    assert window.places == pytest.approx(10.0)
    assert window.slowdown == pytest.approx(2.0)


def test_places_are_by_the_baselines_as_they_are_later() -> None:
    window, method = window_of(20), method_of(2.0)
    for _ in range(100):
        window.end(method, 2.0, was_served=True)
    assert window.places == pytest.approx(20.0)
    method.baseline = 0.5
    assert window.places == pytest.approx(5.0)


def test_a_mix_of_methods_is_no_queue() -> None:
    window, quick, slow = window_of(20), method_of(0.1), method_of(2.0)
    for _ in range(50):
        window.end(quick, 0.1, was_served=True)
        window.end(slow, 2.0, was_served=True)
    assert window.places == pytest.approx(20.0)


def test_what_was_given_up_is_no_throughput() -> None:
    """Three of four gave up in the queue: a quarter of the ends had a place."""
    window, method = window_of(20), method_of(1.0)
    for number in range(100):
        window.end(method, 1.0, was_served=number % 4 == 0)
    assert window.places == pytest.approx(5.0)
    assert window.slowdown == pytest.approx(1.0)
    assert not window.has_collapsed


def test_hardly_anybody_served_is_a_collapse() -> None:
    window, method = window_of(20), method_of(1.0)
    for number in range(100):
        window.end(method, 1.0, was_served=number % 20 == 0)
    assert window.has_collapsed


def test_a_window_lasts_for_some_latencies() -> None:
    window, method = window_of(20, seconds=3.0), method_of(1.0)
    for _ in range(100):
        window.end(method, 1.0, was_served=True)
    assert not window.is_complete
    window.pass_time(1.0, 20)
    assert window.is_complete
