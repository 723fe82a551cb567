"""What a server tells of its signals: smoothed, never 0, and not without a bound."""

from math import inf, nan

import pytest

from lbclient.core.report.named_metrics import LEAST, LONGEST, MOST, NamedMetrics


def test_a_signal_is_told_smoothed() -> None:
    metrics = NamedMetrics(2.0)
    for at in range(100):
        metrics.take({"load": 1.0 if at % 2 else 0.5, "memory": 0.26}, at / 10)
    assert metrics.read() == {
        "load": pytest.approx(0.75, abs=0.02),
        "memory": pytest.approx(0.26),
    }


def test_an_idle_signal_is_told_and_an_unknown_one_is_not() -> None:
    metrics = NamedMetrics(2.0)
    assert metrics.read() == {}
    metrics.take({"load": 0.0, "endless": inf, "none": nan, "less": -1.0}, 0.1)
    assert metrics.read() == {"load": LEAST}


def test_a_signal_that_is_lost_does_not_fade_away() -> None:
    """It would look as if the server became idle."""
    metrics = NamedMetrics(2.0)
    metrics.take({"pool": 0.8}, 0.1)
    metrics.take({}, 0.2)
    assert metrics.read() == {}
    metrics.take({"pool": 0.3}, 0.3)
    assert metrics.read() == {"pool": pytest.approx(0.3)}


def test_names_are_few_and_short() -> None:
    metrics = NamedMetrics(2.0)
    strange = {"é" * LONGEST: 1.0, "\ud800": 1.0, "a\nb": 1.0}
    metrics.take({**strange, **{f"pool {n}": 1.0 for n in range(3 * MOST)}}, 0.1)
    assert [*metrics.read()] == [f"pool {n}" for n in range(MOST)]
