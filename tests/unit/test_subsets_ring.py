"""The ring: its order is that of the places, whatever way it is computed."""

from fractions import Fraction
from functools import cache
from itertools import islice

import pytest

from lbclient.subsets.ring import first, rank, reverse, select, walk

SIZES = (*range(1, 140), 255, 256, 257, 999, 1000, 1023, 1024, 1025)


@cache
def place(number: int) -> Fraction:
    """Where a number stands: its binary digits, mirrored at the point."""
    at, half = Fraction(0), Fraction(1, 2)
    while number:
        number, digit = divmod(number, 2)
        at += digit * half
        half /= 2
    return at


def sorted_ring(tasks: int) -> list[int]:
    return sorted(range(tasks), key=place)


def test_eight_tasks_stand_at_the_eighths() -> None:
    eighths = [0, 4, 2, 6, 1, 5, 3, 7]
    assert [place(n) * 8 for n in range(8)] == eighths
    assert [reverse(n, 3) for n in range(8)] == eighths


def test_the_fifth_of_256_stands_at_160() -> None:
    assert reverse(5, 8) == 160
    assert Fraction(160, 256) == place(5)


def test_the_printed_rings_come_out() -> None:
    assert list(walk(0, 6)) == [0, 4, 2, 1, 5, 3]
    assert list(walk(0, 10)) == [0, 8, 4, 2, 6, 1, 9, 5, 3, 7]


def test_walk_select_and_rank_agree_with_a_sort() -> None:
    for tasks in SIZES:
        ring = sorted_ring(tasks)
        assert list(walk(0, tasks)) == ring
        assert [select(th, tasks) for th in range(tasks)] == ring
        assert [rank(task, tasks) for task in ring] == list(range(tasks))


def test_a_walk_goes_once_round_from_anywhere() -> None:
    for tasks in (1, 2, 3, 10, 31, 32, 33):
        ring = sorted_ring(tasks)
        for start, task in enumerate(ring):
            assert list(walk(task, tasks)) == ring[start:] + ring[:start]


def test_a_walk_over_a_million_starts_at_once() -> None:
    for start in (0, 1, 123_456, 999_999):
        ring = list(islice(walk(select(start, 1_000_000), 1_000_000), 20))
        ranks = [rank(task, 1_000_000) for task in ring]
        assert ranks == [(start + step) % 1_000_000 for step in range(20)]


@pytest.mark.parametrize("clients", [None, 77])
@pytest.mark.parametrize("scaled", [True, False])
def test_a_client_starts_at_the_next_task_clockwise(
    scaled: bool, clients: int | None
) -> None:
    for tasks in (1, 2, 3, 6, 10, 63, 64, 65):
        ring = sorted_ring(tasks)
        places = {
            task: Fraction(r, tasks) if scaled else place(task)
            for r, task in enumerate(ring)
        }
        for client in range(77):
            here = Fraction(rank(client, 77), 77) if clients else place(client)
            nearest = min(ring, key=lambda task: (places[task] - here) % 1)
            assert first(client, tasks, scaled=scaled, clients=clients) == nearest


def test_client_one_of_the_article_starts_at_backend_one() -> None:
    assert list(walk(first(1, 6), 6)) == [1, 5, 3, 0, 4, 2]
