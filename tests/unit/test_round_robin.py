"""Round robin: whose turn it is when members come and go."""

from random import Random

from lbclient.pickers import RoundRobin
from lbclient.testing import FakeNode, fake_nodes


def picks(picker: RoundRobin, ready: tuple[FakeNode, ...], count: int) -> list[str]:
    return [picker.pick(ready, 0.0).endpoint.address[:2] for _ in range(count)]


def started(*, last: int) -> tuple[RoundRobin, tuple[FakeNode, ...]]:
    """A picker over five nodes that has just picked the node with that number."""
    picker, nodes = RoundRobin(Random(1)), fake_nodes(5)
    while picker.pick(nodes, 0.0) is not nodes[last]:
        pass
    return picker, nodes


def test_everyone_gets_a_turn() -> None:
    picker, nodes = started(last=4)
    assert picks(picker, nodes, 6) == ["b0", "b1", "b2", "b3", "b4", "b0"]


def test_pickers_start_anywhere() -> None:
    nodes = fake_nodes(5)
    firsts = {RoundRobin(Random(seed)).pick(nodes, 0.0) for seed in range(50)}
    assert firsts == set(nodes)


def test_the_turn_goes_on_when_another_leaves() -> None:
    picker, nodes = started(last=2)
    assert picks(picker, nodes[1:], 3) == ["b3", "b4", "b1"]
    assert picks(picker, nodes[1:4], 2) == ["b2", "b3"]


def test_the_turn_of_one_that_left_goes_to_the_next() -> None:
    picker, nodes = started(last=2)
    assert picks(picker, (*nodes[:3], nodes[4]), 2) == ["b4", "b0"]


def test_one_that_joins_does_not_restart_the_round() -> None:
    picker, nodes = started(last=2)
    first = FakeNode(fake_nodes(6)[5].endpoint)
    assert picks(picker, (first, *nodes), 4) == ["b3", "b4", "b5", "b0"]


def test_one_that_joins_for_another_does_not_move_the_turn() -> None:
    picker, nodes = started(last=2)
    new = FakeNode(fake_nodes(6)[5].endpoint)
    assert picks(picker, (new, *nodes[:4]), 4) == ["b3", "b5", "b0", "b1"]


def test_one_that_flaps_does_not_cost_the_others_a_turn() -> None:
    picker, nodes = started(last=4)
    seen = [picks(picker, nodes if i % 2 else nodes[1:], 1)[0] for i in range(400)]
    assert max(map(seen.count, ("b1", "b2", "b3", "b4"))) <= 100
    assert min(map(seen.count, ("b1", "b2", "b3", "b4"))) >= 80


def test_all_new_members_start_anywhere() -> None:
    starts = set()
    for seed in range(50):
        picker = RoundRobin(Random(seed))
        picker.pick(fake_nodes(2), 0.0)
        others = tuple(FakeNode(node.endpoint) for node in fake_nodes(7)[2:])
        starts.add(picker.pick(others, 0.0).endpoint.address)
    assert len(starts) == 5


def test_it_tells_whose_turn_is_next() -> None:
    picker, _ = started(last=1)
    assert repr(picker) == "<round robin over 5, next b2:1>"
    assert repr(RoundRobin(Random(1))) == "<round robin, not started>"
