"""Peak EWMA: bad news at once, good news in time."""

from collections import Counter
from random import Random

import pytest

from lbclient.core.errors import ConfigError
from lbclient.core.load import Load
from lbclient.core.model import Outcome, Verdict
from lbclient.pickers import PeakEwma
from lbclient.testing import FakeNode, fake_nodes
from tests.held import held_by

DECAY = 10.0


def answer(node: FakeNode, latency: float, now: float) -> None:
    node.load.begin()
    node.load.finish(Outcome(Verdict.SERVED, latency), now)


def shares(picker: PeakEwma, nodes: tuple[FakeNode, ...], now: float) -> list[float]:
    picker.pick(nodes, now)  # takes the news
    return list(picker.weights(nodes, now))


def ratio(picker: PeakEwma, nodes: tuple[FakeNode, ...], now: float) -> float:
    """How many times as long the second is expected to take as the first."""
    first, second = shares(picker, nodes, now)
    return first / second


def told(*latencies: float) -> tuple[PeakEwma, tuple[FakeNode, ...]]:
    """A picker that saw one answer of each of so many backends, at 0 s."""
    nodes = fake_nodes(len(latencies))
    picker = PeakEwma(Random(1), decay=DECAY)
    picker.pick(nodes, 0.0)
    for node, latency in zip(nodes, latencies, strict=True):
        answer(node, latency, 0.0)
    picker.pick(nodes, 0.0)  # takes the news
    return picker, nodes


def test_the_faster_one_is_picked() -> None:
    picker, nodes = told(0.020, 0.021)
    assert {picker.pick(nodes, 0.0) for _ in range(10)} == {nodes[0]}


def test_requests_in_flight_make_it_take_longer() -> None:
    picker, (fast, slow) = told(0.010, 0.025)
    picks = Counter[str]()
    for _ in range(12):
        node = picker.pick((fast, slow), 0.0)
        node.load.begin()
        picks[node.endpoint.address] += 1
    # Level when 10 ms x (in flight + 1) is 25 ms x the same: 2.5 to 1.
    assert picks[fast.endpoint.address] == pytest.approx(12 * 2.5 / 3.5, abs=1)


def test_one_slow_answer_is_believed_at_once() -> None:
    picker, nodes = told(0.010, 0.010)
    answer(nodes[1], 0.5, 0.0)
    assert ratio(picker, nodes, 0.0) == pytest.approx(0.5 / 0.010)


def test_fast_answers_are_believed_in_time() -> None:
    picker, nodes = told(0.010, 0.5)
    before = ratio(picker, nodes, 0.0)
    for tick in range(1, 11):
        now = tick * DECAY / 10
        for node in nodes:
            answer(node, 0.010, now)
        picker.pick(nodes, now)
    after = ratio(picker, nodes, DECAY)
    assert before == pytest.approx(50.0)
    assert after == pytest.approx(1.0 + 49.0 / 2.718, rel=0.05)


def test_who_is_avoided_is_tried_again_with_one_more_in_flight() -> None:
    """Without answers its latency fades to the mean, the other one's is kept up."""
    picker, nodes = told(0.010, 0.5)
    nodes[0].load.begin()
    now = 0.0
    while picker.pick(nodes, now) is nodes[0]:
        answer(nodes[0], 0.010, now)
        now += 0.5
        assert now < DECAY * 5
    assert now > DECAY


def test_who_only_fails_does_not_become_fast() -> None:
    """In simulation a sinkhole kept its whole share, once its latency had faded."""
    picker, nodes = told(0.010, 0.010)
    picks = Counter[str]()
    for tick in range(1000):
        now = tick * 0.1
        node = picker.pick(nodes, now)
        picks[node.endpoint.address] += 1
        if node is nodes[0]:
            answer(node, 0.010, now)
        else:
            node.load.begin()
            node.load.finish(Outcome(Verdict.FAILED, 0.0001), now)
    # One error keeps it from all others until it has faded to less than half: 1 in 7 s
    # would be so if that were all, and every time that it is equal chance decides.
    assert picks["b1:1"] < 0.1 * sum(picks.values())


def test_several_answers_between_two_picks_count_as_their_mean() -> None:
    picker, nodes = told(0.010, 0.010)
    for latency in (0.2, 0.4):
        answer(nodes[1], latency, 0.0)
    assert ratio(picker, nodes, 0.0) == pytest.approx(30.0, rel=0.02)


def test_the_unknown_is_as_fast_as_the_other() -> None:
    picker, nodes = told(0.010, 0.010)
    three = fake_nodes(3)
    known = (*nodes, three[2])
    picker.pick(known, 0.0)
    known[0].load.begin()
    picks = {picker.pick((known[0], known[2]), 0.0) for _ in range(10)}
    assert picks == {known[2]}


def test_failures_are_no_fast_answers() -> None:
    picker, nodes = told(0.010, 0.010)
    nodes[1].load.begin()
    nodes[1].load.finish(Outcome(Verdict.FAILED, 0.0001), 0.0)
    assert ratio(picker, nodes, 0.0) == pytest.approx(1.0)
    assert {picker.pick(nodes, 0.0) for _ in range(10)} == {nodes[0]}


def test_who_was_full_for_a_moment_keeps_its_latency() -> None:
    picker, nodes = told(0.010, 0.5)
    picker.pick(nodes[:1], 0.0)
    assert ratio(picker, nodes, 0.0) == pytest.approx(50.0)


def test_who_left_is_forgotten() -> None:
    picker, nodes = told(0.010, 0.5)
    nodes[1].load.leave_ready()
    picker.pick(nodes[:1], 0.0)
    assert held_by(picker, Load) == [nodes[0].load]


def test_a_decay_out_of_bounds_is_refused() -> None:
    with pytest.raises(ConfigError, match="decay"):
        PeakEwma(Random(1), decay=0.0)
