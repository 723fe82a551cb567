"""Prequal: who is asked, who is hot, and how long an answer is good for."""

from random import Random

import pytest

from lbclient.core.model import LoadReport, Outcome, Verdict
from lbclient.core.report.latency import LatencyEstimate
from lbclient.pickers import Prequal
from lbclient.testing import FakeNode, fake_nodes

NOW = 100.0
LOT = 0.02  # of the picks at most go by lot where there are probes; 0.01, and chance


def picker(**options: float) -> Prequal:
    """One that throws nothing away unless told to."""
    return Prequal(Random(1), **{"removed": 0.0, "pool": 16, **options})  # type: ignore[arg-type]


def say(
    choice: Prequal, node: FakeNode, active: int, latency: float, now: float = NOW
) -> None:
    report = LoadReport(0.5, 10.0, active=active, latency=latency)
    node.load.observe(report, now)
    choice.probed(node, report, now)


def test_three_are_asked_for_each_pick_and_none_twice() -> None:
    nodes, choice = fake_nodes(20), picker()
    for _ in range(50):
        choice.pick(nodes, NOW)
        assert len(set(map(id, choice.probes))) == len(choice.probes) == 3
        choice.probes.clear()


def test_parts_of_a_probe_are_asked_in_time() -> None:
    nodes, choice = fake_nodes(20), picker(probes=0.25)
    for _ in range(40):
        choice.pick(nodes, NOW)
    assert len(choice.probes) == 10


def test_what_is_wanted_is_bounded_where_nobody_asks() -> None:
    nodes, choice = fake_nodes(20), picker()
    for _ in range(1000):
        choice.pick(nodes, NOW)
    assert len(choice.probes) < 70


def test_of_the_cold_the_fastest_and_of_the_hot_the_emptiest() -> None:
    nodes, choice = fake_nodes(25), picker(quantile=0.5)
    choice.pick(nodes, NOW)
    say(choice, nodes[0], active=3, latency=0.05)
    say(choice, nodes[1], active=5, latency=0.02)
    say(choice, nodes[2], active=9, latency=0.01)
    assert choice.pick(nodes, NOW) is nodes[1]  # nodes[2] is faster, and hot
    choice = picker(quantile=0.0)
    choice.pick(nodes, NOW)
    for node, active in zip(nodes, (1, 7, 5, 6), strict=False):
        say(choice, node, active, 0.05)
    assert choice.pick(nodes, NOW) is nodes[0]  # the only cold one
    assert choice.pick(nodes, NOW) is nodes[2]  # as that one has two by now


def test_who_has_served_nothing_yet_is_not_taken_for_the_fastest() -> None:
    nodes, choice = fake_nodes(25), picker(quantile=1.0)
    choice.pick(nodes, NOW)
    for node, latency in zip(nodes, (0.05, 0.01, 0.03), strict=False):
        say(choice, node, 1, latency)
    say(choice, nodes[3], active=0, latency=0.0)
    assert choice.pick(nodes, NOW) is nodes[1]


def test_an_answer_is_good_for_a_second() -> None:
    nodes, choice = fake_nodes(20), picker()
    choice.pick(nodes, NOW)
    for node in nodes[:2]:
        say(choice, node, 0, 0.01)
    assert choice.pick(nodes, NOW + 0.9) in nodes[:2]
    picks = {choice.pick(nodes, NOW + 1.1) for _ in range(50)}
    assert len(picks) > 10


@pytest.mark.parametrize(
    ("count", "most", "kept"),
    [(1, 16, 1), (3, 16, 3), (5, 16, 4), (10, 16, 4), (20, 16, 4), (40, 16, 8),
     (100, 16, 16), (100, 3, 3), (10, 2, 2)],
)  # fmt: skip
def test_four_answers_are_kept_or_a_fifth_of_the_backends(
    count: int, most: int, kept: int
) -> None:
    """Of 10 backends it once kept two, and most picks went by lot: 2 % failed."""
    nodes, choice = fake_nodes(count), picker(pool=most)
    choice.pick(nodes, NOW)
    for node in nodes * 4:
        say(choice, node, 0, 0.01)
    assert len(choice._pool) == kept


def test_an_answer_is_used_as_often_as_others_come() -> None:
    """(1 + 1) / ((1 - 4/20) x 3 - 1) = 1.43 times, as in the paper."""
    nodes, uses = fake_nodes(20), 0
    for seed in range(200):
        choice = Prequal(Random(seed), removed=1.0)
        choice.pick(nodes, NOW)
        say(choice, nodes[0], 0, 0.01)
        uses += choice._pool[0].uses
    assert 1.3 < uses / 200 < 1.56


def test_the_oldest_and_the_worst_are_thrown_away_in_turn() -> None:
    nodes, choice = fake_nodes(25), picker(removed=1.0)
    choice.pick(nodes, NOW)  # takes the turn of the oldest: there is none
    for node, active in zip(nodes[:4], (1, 9, 2, 2), strict=True):
        say(choice, node, active, 0.01)
    choice._remove_some(NOW)
    assert [probe.node for probe in choice._pool] == [nodes[0], nodes[2], nodes[3]]
    choice._remove_some(NOW)
    assert [probe.node for probe in choice._pool] == [nodes[2], nodes[3]]


def test_who_fails_at_once_is_not_taken_for_fast() -> None:
    nodes, choice = fake_nodes(20), picker(quantile=1.0)
    choice.pick(nodes, NOW)
    nodes[0].load.begin()
    nodes[0].load.finish(Outcome(Verdict.FAILED, 0.0001), NOW)
    for _ in range(3):
        say(choice, nodes[0], 0, 0.015)
        say(choice, nodes[1], 0, 0.02)
    assert choice.pick(nodes, NOW) is nodes[1]


def test_a_part_of_the_picks_goes_by_lot() -> None:
    """Else who is slow would get nothing, and nobody would see it recover."""
    nodes, choice = fake_nodes(2), picker()
    slow = 0
    for _ in range(3000):
        say(choice, nodes[0], 0, 0.001)
        say(choice, nodes[1], 0, 0.1)
        slow += choice.pick(nodes, NOW) is nodes[1]
        choice.probes.clear()
    assert 0 < slow < 3000 * LOT


def test_latencies_are_told_by_how_many_requests_there_were() -> None:
    latencies = LatencyEstimate()
    assert latencies.at(3) == 0.0
    for i in range(100):
        latencies.note(2, 0.01 * (i % 3))
        latencies.note(50, 1.0)
    assert latencies.at(2) == 0.01
    for _ in range(8):
        latencies.note(2, 0.07)
    assert latencies.at(2) == 0.07
    assert latencies.at(60) == latencies.at(4_000_000_000) == 1.0
    latencies.note(4_000_000_000, 9.0)
    assert latencies.at(4_000_000_000) == 9.0
