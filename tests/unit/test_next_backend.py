"""A later attempt goes to a backend that was not tried, the less loaded of two."""

from random import Random

from lbclient.core.routing.next_backend import two_others
from lbclient.testing import fake_nodes


def test_none_that_was_tried_is_chosen() -> None:
    nodes, rng = fake_nodes(4), Random(1)
    chosen = [two_others(nodes[:1], nodes, rng) for _ in range(100)]
    assert all(len(some) == 2 and nodes[0] not in some for some in chosen)
    assert {some[0] for some in chosen} == set(nodes[1:])


def test_the_less_loaded_comes_first() -> None:
    nodes = fake_nodes(3)
    nodes[1].load.begin()
    assert two_others(nodes[:1], nodes, Random(1)) == [nodes[2], nodes[1]]


def test_fewer_are_left_where_more_were_tried() -> None:
    nodes = fake_nodes(3)
    assert two_others(nodes[:2], nodes, Random(1)) == [nodes[2]]
    assert two_others(nodes, nodes, Random(1)) == []
