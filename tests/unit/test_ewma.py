"""Forgetting: what fades, how fast, and that looking changes nothing."""

from math import e, isclose

from lbclient.core.counting.ewma import DecayingCount, Ewma


def test_a_mean_without_samples_is_zero() -> None:
    assert Ewma(2.0).value == 0.0


def test_the_first_sample_is_the_mean() -> None:
    mean = Ewma(2.0)
    mean.update(0.7, now=5.0)
    assert isclose(mean.value, 0.7)


def test_after_tau_the_past_weighs_a_third() -> None:
    mean = Ewma(2.0)
    for tick in range(1001):  # long enough for the start's correction to be over
        mean.update(1.0, now=tick * 0.1)
    mean.update(0.0, now=102.0)
    assert isclose(mean.value, 1 / e, rel_tol=1e-6)


def test_a_sample_counts_as_long_as_it_lasted() -> None:
    often, once = Ewma(2.0), Ewma(2.0)
    for mean in (often, once):
        mean.update(1.0, now=0.0)
        mean.update(1.0, now=1.0)
    for tick in range(1, 11):
        often.update(0.0, now=1.0 + tick / 10)
    once.update(0.0, now=2.0)
    assert isclose(often.value, once.value)


def test_a_clock_that_stands_still_adds_nothing() -> None:
    mean = Ewma(2.0)
    mean.update(1.0, now=0.0)
    mean.update(1.0, now=1.0)
    mean.update(9.0, now=1.0)
    assert isclose(mean.value, 1.0)


def test_a_count_falls_to_a_third_in_tau() -> None:
    count = DecayingCount(10.0)
    count.add(now=3.0)
    assert count.read(3.0) == 1.0
    assert isclose(count.read(13.0), 1 / e)


def test_additions_fade_each_from_its_own_time() -> None:
    count = DecayingCount(10.0)
    count.add(now=0.0)
    count.add(now=10.0, amount=2.0)
    assert isclose(count.read(20.0), 2 / e + 1 / e**2)


def test_a_count_read_before_its_last_addition_does_not_grow() -> None:
    count = DecayingCount(10.0)
    count.add(now=5.0)
    assert count.read(1.0) == 1.0
