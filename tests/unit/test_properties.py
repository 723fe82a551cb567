"""What subsets are worth, by hand where they are few, by the texts where many."""

from collections.abc import Iterator
from statistics import fmean

import pytest

from lbclient.subsets.properties import (
    Balance,
    balance,
    choose,
    churn,
    diversity,
    ideal_churn,
    spread,
    utilizations,
)


def in_turn(client: int, backends: int, size: int) -> Iterator[int]:
    """Backends 0, 1, 2, ... from where the client before ended."""
    for place in range(backends):
        yield (client * size + place) % backends


# CACM 2023, table 1: 5 clients, 10 backends, 4 each.
TABLE_1 = [
    [0, 1, 2, 3],
    [4, 5, 6, 7],
    [8, 9, 0, 1],
    [2, 3, 4, 5],
    [6, 7, 8, 9],
]


def test_a_subset_is_the_start_of_the_order() -> None:
    assert choose(in_turn, 5, 10, 4) == TABLE_1


def test_a_size_beyond_the_backends_takes_them_all() -> None:
    assert choose(in_turn, 2, 3, 5) == [[0, 1, 2], [2, 0, 1]]


def test_connections_are_counted_on_every_backend_also_on_unused_ones() -> None:
    found = balance(TABLE_1[:3], 11)
    assert found.connections == (2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 0)
    assert (found.least, found.most, found.unused) == (0, 2, 1)
    assert found.mean == pytest.approx(12 / 11)
    assert found.max_over_mean == pytest.approx(2 / (12 / 11))
    assert found.min_over_mean == 0
    assert found.histogram == {0: 1, 1: 8, 2: 2}


def test_utilization_is_relative_to_what_whole_connections_allow() -> None:
    # 12 on 10 backends: somebody must have 2, so 2 at most is perfect.
    assert balance(TABLE_1[:3], 10).utilization == 1.0
    assert Balance((3, 1, 1)).utilization == pytest.approx(2 / 3)


def test_utilizations_are_those_of_more_and_more_clients() -> None:
    subsets = [[0, 1], [0, 2], [0, 1], [3, 1], [2, 3]]
    expected = [balance(subsets[:clients], 4).utilization for clients in range(1, 6)]
    assert list(utilizations(subsets, 4)) == expected
    assert min(expected) < 1.0


def test_diversity_knows_the_set_and_not_its_order() -> None:
    found = diversity([[0, 1, 2], [2, 1, 0], [0, 3, 4], [5, 6, 7]])
    assert found.distinct == 3
    assert found.max_overlap == 3
    assert found.mean_overlap == fmean([3, 3, 1, 0])


def test_a_client_alone_overlaps_with_nobody() -> None:
    found = diversity([[0, 1]])
    assert (found.distinct, found.mean_overlap, found.max_overlap) == (1, 0, 0)


def test_a_replaced_connection_is_opened_once_and_dropped_once() -> None:
    found = churn([[0, 1], [2, 3], [4, 5]], [[1, 0], [2, 9], [4, 5, 6]])
    assert found.opened == (0, 1, 1)
    assert found.dropped == (0, 1, 0)
    assert found.mean == pytest.approx(2 / 3)
    assert found.most == 1


def test_churn_is_of_the_clients_that_stay() -> None:
    assert churn([[0], [1], [2]], [[0], [2]]).opened == (0, 1)
    assert churn([[0]], [[0], [1]]).opened == (0,)


def test_ideal_churn_keeps_old_and_new_backends_equally_busy() -> None:
    # 1000 clients with 20 each: 1000 * 20 / 101 of the connections must move.
    assert ideal_churn(100, 101, 20) == pytest.approx(20 / 101)
    assert ideal_churn(1000, 999, 20) == pytest.approx(20 / 1000)
    assert ideal_churn(100, 100, 20) == 0


def test_ideal_churn_of_a_client_that_takes_all_is_what_comes() -> None:
    assert ideal_churn(10, 13, 20) == pytest.approx(3)
    assert ideal_churn(13, 10, 20) == pytest.approx(0)


def test_spread_is_the_worst_window_of_neighbours() -> None:
    found = spread([[7, 1, 2, 9], [20, 0, 10, 30], [5, 3, 4, 6]], 3)
    assert found.window == 3
    # {1, 2} or {7, 9}; any one; three of the four neighbours.
    assert found.mean_share == pytest.approx(fmean([2 / 4, 1 / 4, 3 / 4]))
    assert found.max_share == pytest.approx(3 / 4)
    assert found.blackouts == 0


def test_a_subset_inside_one_window_is_a_blackout() -> None:
    assert spread(TABLE_1, 4).blackouts == 4  # all but {8, 9, 0, 1}
    assert spread(TABLE_1, 3).blackouts == 0
