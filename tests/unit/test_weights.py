"""What a resolver says that a backend is worth, until the backend says more."""

from random import Random

import pytest

from lbclient.core.errors import ConfigError
from lbclient.core.model import Endpoint, LoadReport, Outcome, Verdict
from lbclient.pickers import PICKERS
from lbclient.testing import FakeNode

every_weighted = pytest.mark.parametrize(
    "name", ["weighted_least_loaded", "weighted_round_robin"]
)


def fleet() -> tuple[FakeNode, ...]:
    nodes = tuple(FakeNode(Endpoint(f"b{n}:1", weight=n)) for n in (100.0, 300.0))
    for node in nodes:
        node.load.enter_ready(0.0)
    return nodes


def shares(name: str, report: LoadReport | None) -> list[float]:
    """Of 4,000 picks in 40 s, after as many."""
    nodes, picker = fleet(), PICKERS[name](Random(7))
    counts = dict.fromkeys(nodes, 0)
    for n in range(8000):
        now = n / 100
        node = picker.pick(nodes, now)
        node.load.begin()
        node.load.finish(Outcome(Verdict.SERVED, 0.001, report), now)
        counts[node] += n >= 4000
    return [counts[node] / 4000 for node in nodes]


@every_weighted
def test_without_reports_shares_are_as_the_resolver_says(name: str) -> None:
    assert shares(name, None) == pytest.approx([0.25, 0.75], abs=0.02)


def test_reports_tell_better() -> None:
    """Both say that they do as many requests a second at the same utilization."""
    report = LoadReport(0.5, 100.0)
    assert shares("weighted_round_robin", report) == pytest.approx([0.5, 0.5], abs=0.02)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf"), "2"])
def test_a_weight_is_a_number_above_0(weight: float) -> None:
    with pytest.raises(ConfigError, match="weight"):
        Endpoint("a:1", weight=weight)
