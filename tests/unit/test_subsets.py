"""Subsets by number: what the two articles print, and what may be asked for."""

import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from itertools import chain, islice
from math import ceil, floor, gcd, log
from types import FrameType
from typing import Any

import pytest

from lbclient.core.errors import ConfigError
from lbclient.subsets import ALGORITHMS, job_offset, order, subset
from lbclient.subsets.deterministic import shuffled as shuffled_backends
from lbclient.subsets.ringsteady import ringsteady
from lbclient.subsets.rocksteadier import (
    LOT,
    ROWS,
    rocksteadier,
    row_by_row,
    row_from_own,
    shuffled,
)

every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)
lazy_algorithm = pytest.mark.parametrize(
    "algorithm",
    [
        "random",
        "round_robin",
        "ringsteady",
        "ringsteady_unscaled",
        "rocksteadier",
        "whole",
    ],
)


def connections(algorithm: str, clients: int, backends: int, size: int) -> list[int]:
    """How many clients each backend has."""
    chosen = Counter(
        backend
        for client in range(clients)
        for backend in subset(algorithm, client, backends, size)
    )
    return [chosen[backend] for backend in range(backends)]


# SRE book, ch. 20


def test_the_rounds_of_the_book_come_out() -> None:
    assert shuffled_backends(range(12), 0) == [0, 6, 3, 5, 1, 7, 11, 9, 2, 4, 8, 10]
    assert shuffled_backends(range(12), 1) == [8, 11, 4, 0, 5, 6, 10, 3, 2, 7, 9, 1]


def test_what_the_book_prints_of_round_two_is_what_its_clients_use() -> None:
    """Ten clients use two cuts of it; the printed rest has another seed."""
    assert [subset("deterministic", client, 12, 3) for client in (8, 9)] == [
        [8, 3, 7],
        [2, 1, 4],
    ]


def test_the_clients_of_a_round_cut_up_its_list() -> None:
    cuts = [subset("deterministic", client, 12, 3) for client in range(8)]
    assert [*chain(*cuts[:4])] == shuffled_backends(range(12), 0)
    assert [*chain(*cuts[4:])] == shuffled_backends(range(12), 1)


def test_ten_clients_of_the_book_give_each_backend_two_or_three() -> None:
    assert set(connections("deterministic", 10, 12, 3)) == {2, 3}


@pytest.mark.parametrize(
    ("size", "least", "most"), [(90, (56, 76), (105, 130)), (30, (9, 20), (40, 59))]
)
def test_random_subsets_are_as_uneven_as_in_the_book(
    size: int, least: tuple[int, int], most: tuple[int, int]
) -> None:
    """300 clients of 300 backends; the range of 4000 draws and some more.

    The book prints 57 and 109 for 90 (its least is rare: one draw in 400), 15 and 45
    for 30.
    """
    held = connections("random", 300, 300, size)
    assert least[0] <= min(held) <= least[1]
    assert most[0] <= max(held) <= most[1]


@pytest.mark.parametrize(
    ("algorithm", "size"),
    [
        ("deterministic", 10),
        ("deterministic_leftover", 90),
        ("rocksteadier", 10),
        ("rocksteadier", 30),
        ("rocksteadier", 90),
    ],
)
def test_300_clients_of_300_backends_connect_evenly(algorithm: str, size: int) -> None:
    assert set(connections(algorithm, 300, 300, size)) == {size}


def test_what_the_book_leaves_over_makes_its_connections_uneven() -> None:
    """90 does not divide 300: each round leaves 30 out. The prose says 1 at most."""
    held = connections("deterministic", 300, 300, 90)
    assert (min(held), max(held)) == (80, 97)


# CACM 2023


def test_round_robin_gives_table_1() -> None:
    assert [subset("round_robin", client, 10, 4) for client in range(5)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 0, 1],
        [2, 3, 4, 5],
        [6, 7, 8, 9],
    ]


def test_round_robin_has_few_distinct_subsets() -> None:
    for backends in range(1, 25):
        for size in range(1, backends):
            distinct = {
                frozenset(subset("round_robin", client, backends, size))
                for client in range(2 * backends)
            }
            assert len(distinct) == backends // gcd(size, backends)


def test_leftovers_take_turns() -> None:
    pairs = [(2 * turn % 10, 2 * turn % 10 + 1) for turn in range(6)]
    for turn, pair in enumerate(pairs):
        cuts = [subset("deterministic_leftover", 2 * turn + i, 10, 4) for i in (0, 1)]
        assert sorted([*cuts[0], *cuts[1], *pair]) == list(range(10))


def test_ringsteady_gives_client_one_its_order() -> None:
    assert subset("ringsteady", 1, 6, 6) == [1, 5, 3, 0, 4, 2]
    assert subset("ringsteady_unscaled", 1, 6, 6) == [1, 5, 3, 0, 4, 2]


def test_as_many_clients_as_backends_start_at_their_own() -> None:
    for tasks in (1, 2, 7, 10, 50, 64):
        for client in range(tasks):
            assert subset("ringsteady_unscaled", client, tasks, 1) == [client]
        for size in (1, 3, tasks):
            held = connections("ringsteady_unscaled", tasks, tasks, size)
            assert set(held) == {min(size, tasks)}


def test_with_both_scaled_connections_are_as_even_as_they_can_be() -> None:
    for clients in (1, 2, 9, 16, 31, 59):
        for backends in (1, 3, 10, 32, 59):
            for size in (1, 4, 20):
                held = [0] * backends
                for client in range(clients):
                    ring = ringsteady(client, backends, size, clients=clients)
                    for backend in islice(ring, size):
                        held[backend] += 1
                mean = clients * min(size, backends) / backends
                assert set(held) <= {floor(mean), ceil(mean)}


@pytest.mark.parametrize(("clients", "mean"), [(101, 1.18), (110, 0.74), (200, 0.72)])
def test_scaled_clients_are_moved_by_new_ones(clients: int, mean: float) -> None:
    """What makes it useless for a job that is resized; 200 backends, 20 each."""

    def chosen(client: int, of: int) -> set[int]:
        return set(islice(ringsteady(client, 200, 20, clients=of), 20))

    moved = [len(chosen(c, clients) - chosen(c, 100)) for c in range(100)]
    assert sum(moved) / 100 == mean
    assert max(moved) == 2


def test_a_scaled_client_is_one_of_the_clients() -> None:
    with pytest.raises(ConfigError, match=r"client = 7: want .* clients, 7"):
        ringsteady(7, 10, 3, clients=7)


# CACM 2023, Rocksteadier


def test_the_rows_are_in_the_order_of_the_ring() -> None:
    assert list(ROWS) == [0, 8, 4, 2, 6, 1, 9, 5, 3, 7]


def table_3() -> list[list[int]]:
    """The cells of table 3 that the text names, its rows 0, 3, 4 and 9, as columns."""
    named: list[dict[int, int]] = [
        {0: 8, 3: 4, 4: 7, 9: 6},
        {0: 13, 3: 14, 4: 18, 9: 10},
        {0: 22, 3: 21, 9: 20},
        {3: 39, 9: 30},
        {3: 46, 9: 44},
        {3: 52, 9: 55},
    ]
    columns = []
    for lot, cells in enumerate(named):
        rest = iter(sorted({*range(lot * 10, lot * 10 + 10)} - {*cells.values()}))
        columns.append([cells[r] if r in cells else next(rest) for r in range(10)])
    return columns


def test_a_table_is_read_row_by_row() -> None:
    read_13 = [4, 14, 21, 39, 46, 52, 7, 18]
    assert list(islice(row_by_row(table_3(), 3, 55), 8)) == read_13


def test_padding_is_skipped_and_the_last_row_goes_on_in_the_first() -> None:
    read_19 = [6, 10, 20, 30, 44, 8, 13, 22]
    assert list(islice(row_by_row(table_3(), 9, 55), 8)) == read_19


def test_ten_clients_share_out_the_backends() -> None:
    """With one backend of each lot a client, a lot of clients has each one once."""
    for backends in (10, 60, 1000):
        for client_lot in (0, 1, 5, 99):
            shares = [
                subset("rocksteadier", client_lot * LOT + i, backends, backends // LOT)
                for i in range(LOT)
            ]
            assert sorted(chain(*shares)) == list(range(backends))


def test_a_lot_of_clients_sees_the_lots_of_backends_in_ring_order() -> None:
    for client in (0, 13, 27, 995):
        ring = subset("ringsteady", client // LOT, 12, 12)
        lots = [backend // LOT for backend in subset("rocksteadier", client, 120, 12)]
        assert lots == ring


def test_each_client_of_a_lot_starts_in_the_row_with_its_number() -> None:
    for row, label in enumerate(ROWS):
        first = subset("rocksteadier", 3 * LOT + label, 100, 1)
        assert first[0] in [shuffled(3, lot)[row] for lot in range(10)]


def test_a_client_comes_to_one_row_after_the_other() -> None:
    for client in range(2 * LOT):
        order = subset("rocksteadier", client, LOT, LOT)
        assert [row_from_own(client, backend) for backend in order] == [*range(LOT)]


def test_every_pair_of_lots_has_its_own_shuffle() -> None:
    """Each task is in each place in a tenth of the shuffles.

    Of 2500 shuffles that is 250, with a standard deviation of 15: six of them are
    missed by a fair shuffle once in 10**7 times.
    """
    places: Counter[tuple[int, int]] = Counter()
    distinct = set()
    for client_lot in range(50):
        for lot in range(50):
            tasks = [task - lot * LOT for task in shuffled(client_lot, lot)]
            places.update(enumerate(tasks))
            distinct.add(tuple(tasks))
    assert len(places) == LOT * LOT
    assert max(abs(count - 250) for count in places.values()) < 6 * 15
    assert len(distinct) > 2490  # of 10! = 3,628,800, two of 2500 are one now and then


def test_a_backend_that_fills_a_padding_place_moves_nobody() -> None:
    for backends in (1, 9, 11, 55, 99, 1234):
        for client in (0, 1, 13, 250):
            wider = rocksteadier(client, backends + 1, 1)
            rest = [backend for backend in wider if backend != backends]
            assert rest == list(rocksteadier(client, backends, 1))


@pytest.mark.parametrize(
    ("before", "after", "size", "mean", "most"),
    [
        (10, 11, 4, 0.350, 1),
        (100, 101, 20, 0.191, 1),
        (100, 110, 20, 1.820, 2),
        (100, 200, 20, 10.000, 10),
        (1000, 999, 20, 0.019, 1),
        (1000, 1001, 20, 0.379, 1),
        (1000, 1010, 20, 0.550, 1),
        (1000, 1100, 20, 2.000, 3),
        (1000, 2000, 20, 9.640, 10),
    ],
)
def test_a_resize_moves_as_many_as_it_must(
    before: int, after: int, size: int, mean: float, most: int
) -> None:
    """1000 clients. Whole lots move as the ring does, whatever the shuffles are."""
    moved = [churn("rocksteadier", c, before, after, size) for c in range(1000)]
    assert sum(moved) / 1000 == mean
    assert max(moved) == most


def churn(algorithm: str, client: int, before: int, after: int, size: int) -> int:
    """How many backends are new to the client."""
    new = subset(algorithm, client, after, size)
    return len({*new} - {*subset(algorithm, client, before, size)})


def test_doubling_the_backends_moves_half_of_each_subset() -> None:
    for few in (20, 55, 137, 600):
        moved = [churn("rocksteadier", c, few, 2 * few, 20) for c in range(400)]
        assert max(moved) <= 12
        assert abs(sum(moved) / 400 - 10) <= 0.5


# Client jobs


def test_without_a_name_a_job_is_where_the_article_has_it() -> None:
    assert job_offset("") == 0


def test_a_job_has_the_same_offset_in_every_release() -> None:
    assert job_offset("search-frontend") == 122_730
    assert job_offset("\udcff") == 902_819


def test_offsets_of_jobs_are_bounded_and_differ() -> None:
    offsets = [job_offset(f"job-{i}") for i in range(1000)]
    assert all(1 <= offset <= 2**20 for offset in offsets)
    assert len({*offsets}) >= 995  # of 2**20, two of 1000 are one by chance: 0.5 pairs


@every_algorithm
def test_an_offset_moves_a_job_by_whole_lots(algorithm: str) -> None:
    moved = subset(algorithm, 7, 100, 5, offset=3)
    assert moved == subset(algorithm, 7 + 3 * LOT, 100, 5)


def test_many_small_jobs_do_not_pile_up() -> None:
    """50 jobs of 4 clients, 20 of 1000 backends each: four connections on average."""

    def held(job: int, offset: int) -> list[int]:
        subsets = (subset("rocksteadier", c, 1000, 20, offset=offset) for c in range(4))
        return [*chain(*subsets)]

    piled = Counter(b for job in range(50) for b in held(job, 0))
    apart = Counter(b for job in range(50) for b in held(job, job_offset(f"job-{job}")))
    assert (len(piled), max(piled.values())) == (80, 50)
    assert len(apart) > 950
    assert max(apart.values()) <= 16


# What may be asked for


@every_algorithm
def test_who_asks_for_more_than_there_are_gets_all(algorithm: str) -> None:
    for client in (0, 1, 12):
        for backends in (1, 7, 10):
            for size in (backends, backends + 1, 5 * backends):
                chosen = subset(algorithm, client, backends, size)
                assert sorted(chosen) == list(range(backends))


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("client", (-1, 1.0, True, "1", None)),
        ("backends", (0, -3, 10.0, True)),
        ("size", (0, -1, 2.5, False)),
        ("offset", (-1, 0.0, True)),
    ],
)
def test_a_wrong_number_is_named_with_its_bound(
    field: str, values: tuple[object, ...]
) -> None:
    sound = {"client": 0, "backends": 10, "size": 3, "offset": 0}
    low = 1 if field in ("backends", "size") else 0
    for value in values:
        with pytest.raises(ConfigError) as raised:
            subset("rocksteadier", **(sound | {field: value}))  # type: ignore[arg-type]
        assert (raised.value.field, raised.value.value) == (field, value)
        assert raised.value.want == f"a whole number, at least {low}"


def test_an_unknown_algorithm_is_named_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"algorithm = 'steady': want one of random,"):
        subset("steady", 0, 10, 3)


def test_the_checks_do_not_wait_for_the_first_backend() -> None:
    with pytest.raises(ConfigError):
        order("rocksteadier", -1, 10, 3)


# What it costs


def lines_run(work: Callable[[], object]) -> int:
    """How many lines of Python that takes: time, without the machine's moods."""
    lines = 0

    def count(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


@lazy_algorithm
def test_a_hundred_times_the_backends_cost_little_more(algorithm: str) -> None:
    """The first 20 of a million take at most 1.5 times the steps of 10,000.

    That is the ratio of their logarithms, and only a part of the work grows with it.
    """
    client = 98_765  # one that nobody has asked for, whose lots are not in the cache
    few = lines_run(lambda: subset(algorithm, client, 10_000, 20))
    many = lines_run(lambda: subset(algorithm, client, 1_000_000, 20))
    assert many <= log(1_000_000, 10_000) * few


@lazy_algorithm
def test_no_list_of_all_backends_is_made(algorithm: str) -> None:
    """A list of a million numbers takes 8 MB; other threads take some memory, too."""
    tracemalloc.start()
    try:
        subset(algorithm, 12_345, 1_000_000, 20)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000
