"""What forgetting must keep to, whatever the samples and whenever they come."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbclient.core.counting.ewma import DecayingCount, Ewma

taus = st.floats(0.01, 1e3)
gaps = st.floats(0.0, 1e4)
amounts = st.floats(0.0, 1e6)
samples = st.lists(st.tuples(gaps, amounts), min_size=1, max_size=50)


@given(taus, samples)
def test_a_mean_stays_between_its_samples(
    tau: float, samples: list[tuple[float, float]]
) -> None:
    mean = Ewma(tau)
    times = accumulate(gap for gap, _ in samples)
    values = [value for _, value in samples]
    for now, value in zip(times, values, strict=True):
        mean.update(value, now)
    slack = 1e-6 * (1.0 + max(values))
    assert min(values) - slack <= mean.value <= max(values) + slack


@given(taus, samples, amounts)
def test_a_signal_that_stays_becomes_the_mean(
    tau: float, samples: list[tuple[float, float]], last: float
) -> None:
    """After 40 tau the past weighs e^-40, 4e-18."""
    mean = Ewma(tau)
    now = 0.0
    for gap, value in samples:
        now += gap
        mean.update(value, now)
    for _ in range(40):
        now += tau
        mean.update(last, now)
    assert mean.value == pytest.approx(last, rel=1e-6, abs=1e-6)


@given(taus, st.floats(0.0, 10.0), amounts, amounts, st.integers(1, 20))
def test_a_mean_does_not_depend_on_how_often_it_is_told(
    tau: float, elapsed: float, before: float, since: float, parts: int
) -> None:
    often, once = Ewma(tau), Ewma(tau)
    for mean in (often, once):
        mean.update(before, 0.0)
        mean.update(before, tau)
    for part in range(1, parts + 1):
        often.update(since, tau + elapsed * part / parts)
    once.update(since, tau + elapsed)
    assert often.value == pytest.approx(once.value, rel=1e-6, abs=1e-6)


@given(taus, samples, gaps)
def test_a_count_never_exceeds_what_was_added_and_only_fades(
    tau: float, samples: list[tuple[float, float]], later: float
) -> None:
    count = DecayingCount(tau)
    now = total = 0.0
    for gap, amount in samples:
        now += gap
        total += amount
        count.add(now, amount)
        assert amount <= count.read(now) * (1 + 1e-9) <= total * (1 + 1e-6)
    assert 0.0 <= count.read(now + later) <= count.read(now)


@given(taus, samples, gaps)
def test_reading_changes_nothing(
    tau: float, samples: list[tuple[float, float]], later: float
) -> None:
    watched, unseen = DecayingCount(tau), DecayingCount(tau)
    now = 0.0
    for gap, amount in samples:
        watched.read(now + gap / 2)
        now += gap
        watched.add(now, amount)
        unseen.add(now, amount)
        watched.read(now + later)
    assert watched.read(now) == unseen.read(now)
