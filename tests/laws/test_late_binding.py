"""What a backend declines: laws of `core.overload.late_binding`."""

from hypothesis import given
from hypothesis import strategies as st

from lbclient.core.overload.late_binding import (
    LEAST_COST,
    LEAST_LOAD,
    MEMORY,
    MOST_UTILIZATION,
    LateBinding,
)

TICK = 0.1  # seconds
loads = st.lists(st.floats(0.0, 50.0), min_size=1, max_size=100)
utilizations = st.floats(0.01, MOST_UTILIZATION - 0.01)
costs = st.floats(2 * LEAST_COST, 10.0)  # seconds of a request
cpus = st.sampled_from((0.5, 1.0, 4.0, 32.0))


def played(
    loads: list[float], utilization: float, cost: float, cpus: float
) -> LateBinding:
    binding = LateBinding()
    for at, load in enumerate(loads):
        qps = utilization * cpus / cost
        binding.sample(at * TICK, load, utilization, qps, cpus)
    return binding


@given(loads, utilizations, costs, cpus)
def test_who_is_busier_than_ever_declines_and_who_is_idlest_does_not(
    seen: list[float], utilization: float, cost: float, cpus: float
) -> None:
    binding = played(seen, utilization, cost, cpus)
    assert binding.declines(max(*seen, LEAST_LOAD) + 0.001)
    assert not binding.declines(min(seen) - 0.001)


@given(loads, utilizations, costs, cpus, st.floats(0.0, LEAST_LOAD - 0.001))
def test_who_has_an_idle_processor_declines_nothing(
    seen: list[float], utilization: float, cost: float, cpus: float, load: float
) -> None:
    assert not played(seen, utilization, cost, cpus).declines(load)


@given(loads, st.floats(MOST_UTILIZATION + 0.01, 3.0), costs, cpus, st.floats(0.0, 1e6))
def test_who_is_full_declines_nothing(
    seen: list[float], utilization: float, cost: float, cpus: float, load: float
) -> None:
    assert not played(seen, utilization, cost, cpus).declines(load)


@given(loads, utilizations, st.floats(1e-6, LEAST_COST / 2), cpus, st.floats(0.0, 1e6))
def test_short_requests_are_not_declined(
    seen: list[float], utilization: float, cost: float, cpus: float, load: float
) -> None:
    assert not played(seen, utilization, cost, cpus).declines(load)


@given(st.floats(0.0, 1e6))
def test_before_it_has_served_anything_it_declines_nothing(load: float) -> None:
    binding = LateBinding()
    assert not binding.declines(load)
    binding.sample(0.0, load, 0.5, 0.0, 1.0)
    assert not binding.declines(load + 1.0)


@given(st.floats(LEAST_LOAD, 50.0), utilizations, costs)
def test_a_load_that_stays_becomes_the_usual_one(
    load: float, utilization: float, cost: float
) -> None:
    """From ten times the memory on it is the mean, within 5e-5 of it."""
    ticks = round(10 * MEMORY / TICK)
    binding = played([0.0, *[load] * ticks], utilization, cost, 1.0)
    assert not binding.declines(load * (1.0 - 5e-5))
    assert binding.declines(load * 1.001)
