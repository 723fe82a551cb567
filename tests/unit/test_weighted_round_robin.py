"""Weighted round robin against gRFC A58, and where it goes beyond it."""

from collections.abc import Sequence
from random import Random

import pytest

from lbclient.core.model import LoadReport, Outcome, Verdict
from lbclient.pickers import WeightedRoundRobin
from lbclient.pickers.weighted_round_robin import strides
from lbclient.testing import FakeNode, fake_nodes

READY = 100.0  # long after every blackout of nodes that are ready since 0.0


class Start(Random):
    """Chance that always draws the same start."""

    def __init__(self, sequence: int) -> None:
        super().__init__(0)
        self.sequence = sequence

    def getrandbits(self, k: int) -> int:
        return self.sequence % (1 << k)


def nodes_with(
    *reports: LoadReport | None, reported_at: float = READY
) -> tuple[FakeNode, ...]:
    nodes = fake_nodes(len(reports))
    for node, report in zip(nodes, reports, strict=True):
        if report is not None:
            node.load.observe(report, reported_at)
    return nodes


def nodes_weighing(*weights: float) -> tuple[FakeNode, ...]:
    return nodes_with(*(LoadReport(utilization=1.0, qps=w) for w in weights))


def fail(node: FakeNode, count: int = 10) -> None:
    for _ in range(count):
        node.load.begin()
        node.load.finish(Outcome(Verdict.FAILED, 0.0), READY)


def rounded(shares: Sequence[float]) -> list[float]:
    return [round(share, 3) for share in shares]


@pytest.mark.parametrize(
    ("weights", "golden"),
    [
        ((2, 3, 6), [1, 2, 2, 0, 1, 2, 2, 1, 2, 0, 2, 1]),
        ((1, 2, 3), [1, 2, 2, 0, 1, 2, 1, 2, 2, 0, 1, 2]),
    ],
)
def test_it_picks_as_grpc_does(weights: tuple[float, ...], golden: list[int]) -> None:
    nodes = nodes_weighing(*weights)
    picker = WeightedRoundRobin(Start(0))
    assert [nodes.index(picker.pick(nodes, READY)) for _ in golden] == golden


def test_the_sequence_goes_on_across_updates() -> None:
    nodes = nodes_weighing(2, 3, 6)
    picker = WeightedRoundRobin(Start(0))
    picks = [nodes.index(picker.pick(nodes, READY + i)) for i in range(12)]
    assert picks == [1, 2, 2, 0, 1, 2, 2, 1, 2, 0, 2, 1]


def test_the_sequence_wraps_at_32_bits() -> None:
    nodes = nodes_weighing(2, 3, 6)
    picker = WeightedRoundRobin(Start(2**32 - 3))
    picks = [nodes.index(picker.pick(nodes, READY)) for _ in range(15)]
    golden = [1, 2, 2, 0, 1, 2, 2, 1, 2, 0, 2, 1]  # as from 0
    assert golden in [picks[skipped:][:12] for skipped in range(4)]


def test_pickers_start_anywhere() -> None:
    nodes = nodes_weighing(1, 1, 1, 1)
    firsts = {WeightedRoundRobin(Random(i)).pick(nodes, READY) for i in range(50)}
    assert firsts == set(nodes)


@pytest.mark.parametrize(
    ("report", "share"),
    [
        (LoadReport(utilization=0.5, qps=100.0), 1.333),  # 200 : 100
        (LoadReport(utilization=0.5, qps=100.0, eps=50.0), 1.0),  # 100 : 100
        (LoadReport(utilization=2.0, qps=100.0), 0.667),  # 50 : 100
    ],
)
def test_a_weight_is_qps_over_utilization_and_errors(
    report: LoadReport, share: float
) -> None:
    nodes = nodes_with(report, LoadReport(utilization=1.0, qps=100.0))
    assert rounded(WeightedRoundRobin(Start(0)).weights(nodes, READY))[0] == share


def test_the_error_penalty_is_an_option() -> None:
    failing = LoadReport(utilization=0.5, qps=100.0, eps=50.0)
    nodes = nodes_with(failing, LoadReport(utilization=1.0, qps=100.0))
    picker = WeightedRoundRobin(Start(0), error_penalty=3.0)  # 50 : 100
    assert rounded(picker.weights(nodes, READY)) == [0.667, 1.333]


@pytest.mark.parametrize(
    "report",
    [
        None,
        LoadReport(utilization=0.0, qps=100.0),
        LoadReport(utilization=0.5, qps=0.0),
        LoadReport(utilization=1e-300, qps=1e300),
        LoadReport(utilization=1e300, qps=1e-300),
        LoadReport(utilization=0.5, qps=5e-324, eps=1e300),
    ],
)
def test_who_says_nothing_sound_gets_the_mean(report: LoadReport | None) -> None:
    one, three = (LoadReport(utilization=1.0, qps=qps) for qps in (1.0, 3.0))
    nodes = nodes_with(one, report, three)
    shares = rounded(WeightedRoundRobin(Start(0)).weights(nodes, READY))
    assert shares == [0.5, 1.0, 1.5]


def test_one_known_weight_is_plain_round_robin() -> None:
    nodes = nodes_with(LoadReport(utilization=1.0, qps=9.0), None, None)
    picker = WeightedRoundRobin(Start(0))
    assert [nodes.index(picker.pick(nodes, READY)) for _ in range(6)] == [0, 1, 2] * 2


def test_reports_count_only_after_the_blackout() -> None:
    nodes = nodes_weighing(1, 3)
    picker = WeightedRoundRobin(Start(0))
    assert rounded(picker.weights(nodes, 9.9)) == [1.0, 1.0]
    assert rounded(picker.weights(nodes, 10.0)) == [0.5, 1.5]


def test_the_blackout_starts_again_when_a_backend_does() -> None:
    nodes = nodes_weighing(1, 2, 3)
    nodes[0].load.enter_ready(READY)
    nodes[0].load.observe(LoadReport(utilization=1.0, qps=1.0), READY)
    picker = WeightedRoundRobin(Start(0), slow_start=0.0)
    assert rounded(picker.weights(nodes, READY + 5)) == [1.0, 0.8, 1.2]
    assert rounded(picker.weights(nodes, READY + 10)) == [0.5, 1.0, 1.5]


def test_a_cold_newcomer_whose_ramp_yields_is_given_less_soon() -> None:
    """Once a second was too seldom: it was full by then, and refused."""
    nodes = nodes_weighing(1, 1, 1)
    nodes[2].load.enter_ready(READY)
    for node in nodes:
        node.load.observe(LoadReport(utilization=1.0, qps=1.0, active=9), READY)
    picker = WeightedRoundRobin(Start(0))
    at_first = [picker.pick(nodes, READY) for _ in range(30)]
    assert at_first.count(nodes[2]) == 10
    nodes[2].load.observe(LoadReport(utilization=0.3, qps=1.0, active=10), READY)
    later = [picker.pick(nodes, READY + 0.3) for _ in range(30)]
    assert later.count(nodes[2]) <= 3


def test_a_report_expires_at_180_seconds() -> None:
    nodes = nodes_weighing(1, 3)
    picker = WeightedRoundRobin(Start(0))
    assert rounded(picker.weights(nodes, READY + 179.9)) == [0.5, 1.5]
    assert rounded(picker.weights(nodes, READY + 180.0)) == [1.0, 1.0]


@pytest.mark.parametrize(("option", "period"), [(1.0, 1.0), (0.01, 0.1)])
def test_new_reports_count_from_the_next_update(option: float, period: float) -> None:
    nodes = nodes_weighing(1, 1)
    picker = WeightedRoundRobin(Start(0), update_period=option)
    picker.pick(nodes, READY)
    nodes[1].load.observe(LoadReport(utilization=1.0, qps=99.0), READY)
    early = [picker.pick(nodes, READY + period * 0.99) for _ in range(10)]
    assert early.count(nodes[1]) == 5
    late = [picker.pick(nodes, READY + period) for _ in range(10)]
    assert late.count(nodes[1]) >= 9


def test_a_change_of_members_counts_at_once() -> None:
    nodes = nodes_weighing(1, 1, 98)
    picker = WeightedRoundRobin(Start(0))
    picker.pick(nodes[:2], READY)
    picks = [picker.pick(nodes, READY) for _ in range(100)]
    assert picks.count(nodes[2]) >= 97


def test_weights_are_clamped_to_a_hundredth_and_ten_times_the_mean() -> None:
    assert strides([1.0] * 99 + [1e6])[-1] == 65535
    assert set(strides([1.0] * 99 + [1e6])[:-1]) == {66}  # 65535 / 10 / 100, rounded
    assert strides([1e-9, 1.0])[0] == 328  # 65535 / 2 / 100, rounded


def test_halves_are_rounded_away_from_zero() -> None:
    assert strides([8192.5, 65535.0]) == [8193, 65535]  # round() would say 8192


def test_failures_that_the_backend_hides_cost_it_its_weight() -> None:
    nodes = nodes_weighing(100, 100)
    fail(nodes[0])  # qps / (1.0 + 1.0)
    assert rounded(WeightedRoundRobin(Start(0)).weights(nodes, READY)) == [0.667, 1.333]


def test_a_silent_backend_that_fails_keeps_a_hundredth() -> None:
    """It is known to nobody what it serves: only that it serves nothing."""
    report = LoadReport(utilization=0.5, qps=100.0)
    nodes = nodes_with(None, report, report)
    fail(nodes[0])
    shares = rounded(WeightedRoundRobin(Start(0)).weights(nodes, READY))
    assert shares[0] == pytest.approx(0.01, rel=0.01)


def test_among_silent_backends_too_who_fails_loses() -> None:
    nodes = nodes_with(None, None, None)
    fail(nodes[0])
    picker = WeightedRoundRobin(Start(0))
    picks = [picker.pick(nodes, READY) for _ in range(1000)]
    assert 1 <= picks.count(nodes[0]) <= 5  # a hundredth of the mean, 2/3


def test_when_all_fail_all_get_their_turn() -> None:
    nodes = nodes_with(None, None, None)
    for node in nodes:
        fail(node)
    picker = WeightedRoundRobin(Start(0))
    assert [nodes.index(picker.pick(nodes, READY)) for _ in range(6)] == [0, 1, 2] * 2


def test_updates_of_the_scheduler_are_counted_as_grpc_counts_them() -> None:
    report = LoadReport(utilization=1.0, qps=30.0)
    nodes = nodes_with(report, report, None)
    picker = WeightedRoundRobin(Start(0))
    for now in (READY, READY, READY + 300.0):
        picker.pick(nodes, now)
    seen = picker.updates
    assert (seen.fallbacks, seen.not_yet_usable, seen.stale) == (1, 2, 2)
    assert (seen.weights.sum, sum(seen.weights.counts)) == (60.0, 6)
    picker.weights(nodes, READY)  # a look is no update
    assert sum(seen.weights.counts) == 6
