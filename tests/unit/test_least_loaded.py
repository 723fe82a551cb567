"""Least loaded: who counts as idle, and how long an error counts."""

from random import Random

from lbclient.core.model import Outcome, Verdict
from lbclient.pickers import LeastLoaded
from lbclient.testing import FakeNode, fake_nodes

FAILED = Outcome(Verdict.FAILED, 0.001)


def begin(node: FakeNode, count: int = 1) -> None:
    for _ in range(count):
        node.load.begin()


def test_the_fewest_in_flight_gets_the_request() -> None:
    a, b, c = nodes = fake_nodes(3)
    begin(a, 2)
    begin(b, 1)
    begin(c, 3)
    assert LeastLoaded(Random(1)).pick(nodes, 0.0) is b


def test_equals_take_turns() -> None:
    picker, nodes = LeastLoaded(Random(1)), fake_nodes(4)
    begin(nodes[2])
    picked = [nodes.index(picker.pick(nodes, 0.0)) for _ in range(6)]
    start = (0, 1, 3).index(picked[0])
    assert picked == [(0, 1, 3)[(start + i) % 3] for i in range(6)]


def test_requests_that_last_fill_all_evenly() -> None:
    picker, nodes = LeastLoaded(Random(1)), fake_nodes(4)
    for _ in range(12):
        begin(picker.pick(nodes, 0.0))
    assert [node.load.in_flight for node in nodes] == [3, 3, 3, 3]


def test_an_error_counts_as_a_request_in_flight() -> None:
    """Else a backend that fails at once is always the least loaded."""
    a, b = nodes = fake_nodes(2)
    begin(a, 2)
    a.load.finish(FAILED, 10.0)
    begin(b, 1)
    picker = LeastLoaded(Random(1))
    picks = [picker.pick(nodes, 10.0) for _ in range(4)]
    assert picks == [b] * 4


def test_the_trace_of_an_old_error_does_not_lose_every_tie() -> None:
    a, b = nodes = fake_nodes(2)
    begin(a)
    a.load.finish(FAILED, 10.0)
    picker = LeastLoaded(Random(1))
    assert {picker.pick(nodes, 11.0) for _ in range(4)} == {b}
    assert {picker.pick(nodes, 18.0) for _ in range(4)} == {a, b}


def test_many_errors_keep_traffic_away_for_longer_but_20_s_at_most() -> None:
    """A crash fails all calls in flight at once, and the backend may be back soon."""
    a, b = nodes = fake_nodes(2)
    for _ in range(100):
        begin(a)
        a.load.finish(FAILED, 10.0)
    picker = LeastLoaded(Random(1))
    assert {picker.pick(nodes, 29.9) for _ in range(4)} == {b}
    assert {picker.pick(nodes, 30.0) for _ in range(4)} == {a, b}
