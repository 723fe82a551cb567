"""The objective of the weights: who is to be busier than others, and how far."""

from math import exp
from random import Random

import pytest

from lbclient.core.errors import ConfigError
from lbclient.core.load import Load
from lbclient.core.model import LoadReport
from lbclient.pickers.equalizer import Equalizer
from lbclient.pickers.objective import Objective, Speed
from lbclient.pickers.weighted_least_loaded import WeightedLeastLoaded
from lbclient.testing import fake_nodes

SPEEDS = 1.0, 2.5, 1.0, 2.5


def settled(
    load: float,
    speeds: tuple[float, ...],
    favor_fast: float = 1.0,
    headroom: float = 0.0,
    noise: float = 0.0,
    shown: tuple[float, ...] = (),
) -> list[float]:
    """The utilizations to which a fleet comes that the control alone divides. `shown`
    is what backends report instead, in parts of it."""
    nodes, rng = fake_nodes(len(speeds)), Random(1)
    control = Equalizer(0.3, 1.0, 1.0, 180.0, Objective(favor_fast, headroom))
    total = load * sum(speeds)
    for second in range(2, 200):
        shares = [share / len(nodes) for share in control.weights(nodes)]
        pairs = zip(shares, speeds, strict=True)
        used = [total * share / speed for share, speed in pairs]
        for i, node in enumerate(nodes):
            told = used[i] * (shown[i] if shown else 1.0) * exp(rng.gauss(0.0, noise))
            rate = 100.0 * used[i] * speeds[i]
            node.load.observe(LoadReport(utilization=told, qps=rate), second)
        control.step(nodes, second)
    return used


@pytest.mark.parametrize("load", [0.6, 0.7, 0.85, 0.95])
def test_what_is_free_is_by_speed_the_same_everywhere(load: float) -> None:
    slow, fast, *_ = settled(load, SPEEDS)
    assert (1.0 - slow) == pytest.approx((1.0 - fast) * 2.5, rel=0.02)
    assert fast < 1.0


def test_half_the_exponent_goes_half_the_way() -> None:
    slow, fast, *_ = settled(0.7, SPEEDS, favor_fast=0.5)
    assert (1.0 - slow) == pytest.approx((1.0 - fast) * 2.5**0.5, rel=0.02)


def test_nobody_is_busier_than_headroom_allows() -> None:
    fast = settled(0.7, SPEEDS)[1]
    assert fast > 0.77
    fast = settled(0.7, SPEEDS, headroom=0.25)[1]
    assert fast == pytest.approx(0.75, abs=0.01)


def test_where_all_are_busier_than_that_utilization_is_nearly_equal() -> None:
    slow, fast, *_ = settled(0.9, SPEEDS, headroom=0.3)
    assert 1.0 <= fast / slow < 1.1


def test_in_overload_utilization_is_equal() -> None:
    slow, fast, *_ = settled(1.2, SPEEDS)
    assert fast == pytest.approx(slow, rel=0.01)


def test_equal_machines_are_equally_busy() -> None:
    """What they report differs by chance, and so do the speeds that come of it."""
    used = settled(0.5, (1.0,) * 8, noise=0.05)
    even = settled(0.5, (1.0,) * 8, favor_fast=1e-9, noise=0.05)
    assert max(used) / min(used) < max(even) / min(even) + 0.01


def test_a_slow_machine_keeps_a_part() -> None:
    """Or nobody would know how it is when it is needed."""
    slow, fast, *_ = settled(0.1, (1.0, 2.5, 1.0, 2.5))
    assert slow > 0.1 * fast


def test_a_liar_draws_no_more_than_the_bound_allows() -> None:
    lies = (0.02, *[1.0] * 19)
    honest = settled(0.3, (1.0,) * 20, shown=lies)
    even = settled(0.3, (1.0,) * 20, favor_fast=1e-9, shown=lies)
    assert honest[0] == pytest.approx(even[0], rel=0.01)


def test_a_speed_is_what_is_served_for_the_utilization() -> None:
    speed = Speed()
    speed.observe(LoadReport(utilization=0.1, qps=60.0, eps=10.0), 0.5)
    assert speed.log is not None
    assert exp(speed.log) == pytest.approx(100.0)


def test_speeds_go_by_the_utilization_that_weights_go_by() -> None:
    """Here a named metric: processors do not matter, and all are alike by it."""
    nodes, control = (
        fake_nodes(4),
        Equalizer(0.3, 1.0, 0.0, 180.0, Objective(1.0, 0.15)),
    )
    for node in nodes:
        node.load = Load(lambda report: report.metrics["kv"])
        node.load.ready_at = 0.0
    for second in range(1, 60):
        for number, node in enumerate(nodes):
            cpu = 0.1 if number < 2 else 0.4
            told = LoadReport(cpu, qps=20.0, metrics={"kv": 0.5})
            node.load.observe(told, float(second))
        control.step(nodes, float(second))
    assert control.weights(nodes) == pytest.approx([1.0] * 4)


def test_the_first_reports_count_alike() -> None:
    """One alone would decide for half a minute."""
    speed = Speed()
    for qps in (80.0, 50.0, 50.0, 50.0, 50.0):
        speed.observe(LoadReport(qps=qps), 0.5)
    assert speed.log is not None
    assert exp(speed.log) == pytest.approx(100.0 * 1.6**0.2)


@pytest.mark.parametrize(
    "report", [LoadReport(), LoadReport(0.01, 9.0), LoadReport(0.5, 1.0)]
)
def test_who_does_too_little_tells_no_speed(report: LoadReport) -> None:
    speed = Speed()
    speed.observe(report, report.utilization)
    assert speed.log is None


@pytest.mark.parametrize("options", [{"favor_fast": 1.5}, {"headroom": 1.0}])
def test_what_cannot_be_is_refused(options: dict[str, float]) -> None:
    (name,) = options
    with pytest.raises(ConfigError, match=name):
        WeightedLeastLoaded(Random(1), **options)
