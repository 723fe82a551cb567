"""What the algorithms are worth: the figures of CACM 2023, and what follows from it.

Exact values hold for any generator of chance. Where one is at work, the tolerances
have room for all of eighteen generators that were tried.
"""

from collections.abc import Iterable
from functools import cache, partial
from itertools import islice
from statistics import fmean

import pytest

from lbclient.subsets import ALGORITHMS, job_offset, order
from lbclient.subsets.properties import (
    Subsets,
    balance,
    choose,
    churn,
    diversity,
    ideal_churn,
    scenarios,
    spread,
)
from lbclient.subsets.ringsteady import ringsteady
from lbclient.subsets.rocksteadier import LOT, rocksteadier

MANY = 1000  # clients


@cache
def chosen(algorithm: str, clients: int, backends: int, size: int = 20) -> Subsets:
    return choose(ALGORITHMS[algorithm], clients, backends, size)


@cache
def figure_2(algorithm: str) -> tuple[list[float], list[float]]:
    """Utilization where clients are fewer than backends, and where they are not."""
    fewer: list[float] = []
    others: list[float] = []
    for clients, backends, found in scenarios(
        ALGORITHMS[algorithm], 256, range(20, 257), 20
    ):
        (fewer if clients < backends else others).append(found)
    return fewer, others


def mean_and_worst(values: Iterable[float]) -> tuple[float, float]:
    values = list(values)
    return fmean(values), min(values)


# Connections.


@pytest.mark.parametrize(
    ("clients", "backends", "size", "least", "most"),
    [
        (100, 100, 20, 20, 20),
        (1000, 1000, 20, 19, 21),
        (10_000, 1000, 20, 199, 201),
        (50, 1000, 20, 0, 2),
        (100, 1000, 20, 1, 3),
        (200, 1000, 20, 3, 5),
        (500, 1000, 20, 9, 11),
        (1000, 100, 20, 200, 200),
        (300, 300, 10, 10, 10),
        (300, 300, 30, 30, 30),
        (300, 300, 90, 90, 90),
        (10_000, 10_000, 20, 19, 21),
        (1000, 1000, 100, 100, 100),
    ],
)
@pytest.mark.slow
def test_rocksteadier_connects_whole_lots_evenly(
    clients: int, backends: int, size: int, least: int, most: int
) -> None:
    found = balance(chosen("rocksteadier", clients, backends, size), backends)
    assert (found.least, found.most) == (least, most)


@pytest.mark.parametrize(
    ("clients", "backends", "size"),
    [
        (40, 60, 1),
        (70, 110, 17),
        (200, 130, 40),
        (130, 200, 61),
        (30, 50, 49),
        (500, 1000, 20),
    ],
)
def test_lots_are_to_rocksteadier_what_tasks_are_to_ringsteady(
    clients: int, backends: int, size: int
) -> None:
    # What whole rows of the table give, and what is left as of a smaller job.
    lots = backends // LOT
    rows, left = divmod(size, lots)
    of_lots = choose(ringsteady, clients // LOT, lots, left)
    expected = [
        rows * clients // LOT + connections
        for connections in balance(of_lots, lots).connections
        for _ in range(LOT)
    ]
    found = balance(choose(rocksteadier, clients, backends, size), backends)
    assert list(found.connections) == expected


def test_figure_2_has_as_many_scenarios_as_its_bounds_allow() -> None:
    # Its bounds on N are printed as "kN <= 256", and mean k <= N <= 256.
    fewer, others = figure_2("ringsteady")
    expected = sum(
        clients * 20 > backends
        for clients in range(1, 257)
        for backends in range(20, 257)
    )
    assert len(fewer) + len(others) == expected == 59_148


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "mean", "tolerance"),
    [
        ("ringsteady", 0.9569, 0.00005),
        ("ringsteady_unscaled", 0.9545, 0.00005),
        ("rocksteadier", 0.945, 0.003),
        ("deterministic_leftover", 0.983, 0.005),
        ("random", 0.65, 0.02),
        ("round_robin", 1.0, 0.0),
    ],
)
def test_utilization_over_all_scenarios_is_that_of_figure_2(
    algorithm: str, mean: float, tolerance: float
) -> None:
    fewer, others = figure_2(algorithm)
    assert fmean(fewer + others) == pytest.approx(mean, abs=tolerance)


@pytest.mark.slow
def test_rocksteadier_is_never_far_from_even() -> None:
    fewer, others = figure_2("rocksteadier")
    mean, worst = mean_and_worst(fewer)
    assert mean == pytest.approx(0.929, abs=0.003)
    assert worst >= 0.66
    mean, worst = mean_and_worst(others)
    assert mean == pytest.approx(0.9625, abs=0.003)
    assert worst >= 0.85


@pytest.mark.slow
def test_deterministic_subsets_with_leftovers_converge_to_even() -> None:
    _, others = figure_2("deterministic_leftover")
    assert min(others) >= 0.94


@pytest.mark.slow
def test_scaled_backends_are_more_even_under_many_clients() -> None:
    few, many = map(fmean, figure_2("ringsteady"))
    few_unscaled, many_unscaled = map(fmean, figure_2("ringsteady_unscaled"))
    assert many > many_unscaled
    assert few < few_unscaled


def test_scaled_clients_and_backends_are_perfectly_even() -> None:
    for clients in (7, 30, 59):
        for found in scenarios(
            partial(ringsteady, clients=clients), clients, range(20, 60), 20
        ):
            if found[0] == clients:
                assert found[2] == 1.0


def busiest_while_out(algorithm: str, out: range) -> float:
    """Over the mean of those that are not out; 20 of 1000, replaced by the next."""
    subsets = [
        list(islice((b for b in order(algorithm, c, MANY, 20) if b not in out), 20))
        for c in range(MANY)
    ]
    return max(balance(subsets, MANY).connections) * (MANY - len(out)) / (MANY * 20)


@pytest.mark.parametrize("algorithm", ["rocksteadier", "deterministic"])
def test_while_backends_are_out_the_others_are_about_as_busy(algorithm: str) -> None:
    """As replacements differ: where they do not, a neighbour has twice the load."""
    assert busiest_while_out(algorithm, range(7, 8)) <= 1.15
    assert busiest_while_out(algorithm, range(100)) <= 1.35
    assert busiest_while_out("round_robin", range(7, 8)) >= 1.9


def test_the_offsets_of_many_small_jobs_keep_them_from_piling_up() -> None:
    def connections(offset: bool) -> tuple[int, int]:
        subsets = [
            list(islice(order("rocksteadier", task, MANY, 20, offset=number), 20))
            for job in range(50)
            for number in [job_offset(f"job-{job}") if offset else 0]
            for task in range(4)
        ]
        found = balance(subsets, MANY)
        return found.most, found.unused

    assert connections(offset=False) == (50, MANY - 4 * 20)
    most, unused = connections(offset=True)
    # Random subsets would be Poisson with a mean of 4: 18 backends without a client,
    # one in 3,600 with more than 12. These come in fours, so they vary more.
    assert most <= 20
    assert unused <= 80


# Churn.


def backend_churn(
    algorithm: str, backends: int, resized: int, size: int
) -> tuple[float, int]:
    found = churn(
        chosen(algorithm, MANY, backends, size), chosen(algorithm, MANY, resized, size)
    )
    return round(found.mean, 3), found.most


# Of the texts' own example and of larger jobs, with 1000 clients: what a client opens
# on average, and at most.
RESIZES = [
    (10, 11, 4),
    (100, 101, 20),
    (100, 110, 20),
    (100, 200, 20),
    (1000, 1001, 20),
    (1000, 1010, 20),
    (1000, 1100, 20),
    (1000, 2000, 20),
    (1000, 999, 20),
]
OPENED = {
    "rocksteadier": [
        (0.350, 1),
        (0.191, 1),
        (1.820, 2),
        (10.0, 10),
        (0.379, 1),
        (0.550, 1),
        (2.0, 3),
        (9.640, 10),
        (0.019, 1),
    ],
    "ringsteady": [
        (0.554, 1),
        (0.550, 1),
        (2.014, 3),
        (10.012, 11),
        (0.429, 1),
        (0.456, 2),
        (2.224, 4),
        (9.992, 11),
        (0.413, 1),
    ],
    "ringsteady_unscaled": [
        (0.313, 1),
        (0.195, 1),
        (1.816, 3),
        (9.932, 11),
        (0.019, 1),
        (0.190, 1),
        (1.740, 3),
        (9.760, 10),
        (0.020, 1),
    ],
}


@pytest.mark.parametrize("algorithm", OPENED)
@pytest.mark.parametrize("resize", RESIZES, ids=lambda r: f"{r[0]} to {r[1]}")
def test_a_resize_moves_as_few_connections_as_it_must(
    algorithm: str, resize: tuple[int, int, int]
) -> None:
    assert backend_churn(algorithm, *resize) == OPENED[algorithm][RESIZES.index(resize)]


@pytest.mark.parametrize(
    "algorithm", ["random", "round_robin", "deterministic", "deterministic_leftover"]
)
def test_shuffles_and_turns_move_many_for_one_more(algorithm: str) -> None:
    found, _ = backend_churn(algorithm, 100, 101, 20)
    assert found > 20 * ideal_churn(100, 101, 20)


@pytest.mark.parametrize("algorithm", ["consistent", "rendezvous"])
def test_hashing_moves_at_most_one_for_one_more(algorithm: str) -> None:
    found, most = backend_churn(algorithm, 100, 101, 20)
    assert found == pytest.approx(ideal_churn(100, 101, 20), abs=0.1)
    assert most == 1


def test_only_scaled_clients_move_when_there_are_more_of_them() -> None:
    def scaled(clients: int) -> Subsets:
        return choose(partial(ringsteady, clients=clients), clients, 100, 20)

    assert churn(scaled(100), scaled(101)).mean > 0.5
    for name in ALGORITHMS:
        found = churn(chosen(name, 100, 100), chosen(name, 101, 100))
        assert (found.most, len(found.opened)) == (0, 100), name


@pytest.mark.parametrize(
    "algorithm",
    [
        "random",
        "consistent",
        "ringsteady",
        "ringsteady_unscaled",
        "rocksteadier",
        "rendezvous",
    ],
)
@pytest.mark.parametrize("size", [19, 21, 25, 40])
def test_another_size_only_adds_or_drops(algorithm: str, size: int) -> None:
    found = churn(chosen(algorithm, 100, 200), chosen(algorithm, 100, 200, size))
    assert set(found.opened) == {max(0, size - 20)}
    assert set(found.dropped) == {max(0, 20 - size)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm", ["round_robin", "deterministic", "deterministic_leftover"]
)
def test_what_deals_backends_out_moves_nearly_all_for_another_size(
    algorithm: str,
) -> None:
    found = churn(chosen(algorithm, MANY, 1000), chosen(algorithm, MANY, 1000, 21))
    assert found.mean > 20
    assert fmean(found.dropped) > 19


# Diversity and spread.


@pytest.mark.slow
@pytest.mark.parametrize("backends", [1000, 100, 50])
def test_every_client_of_rocksteadier_has_a_subset_of_its_own(backends: int) -> None:
    assert diversity(chosen("rocksteadier", MANY, backends)).distinct == MANY


def test_no_two_clients_of_rocksteadier_are_much_alike() -> None:
    assert diversity(chosen("rocksteadier", MANY, 1000)).max_overlap <= 12


def test_no_two_deterministic_clients_are_much_alike() -> None:
    found = diversity(chosen("deterministic_leftover", MANY, 1000))
    assert (found.distinct, found.max_overlap) == (MANY, 6)


def test_round_robin_and_rings_are_full_of_twins() -> None:
    assert diversity(chosen("round_robin", MANY, 1000)).distinct == 50
    assert diversity(chosen("ringsteady", MANY, 1000)).distinct == 984
    unscaled = diversity(chosen("ringsteady_unscaled", MANY, 1000))
    assert (unscaled.distinct, unscaled.mean_overlap) == (1000, 19)


@pytest.mark.parametrize(
    ("backends", "window", "share"),
    [(1000, 20, 0.15), (1000, 100, 0.25), (100, 10, 0.25), (100, 20, 0.35)],
)
def test_a_rolling_restart_takes_little_of_any_subset_of_rocksteadier(
    backends: int, window: int, share: float
) -> None:
    found = spread(chosen("rocksteadier", MANY, backends), window)
    assert found.max_share <= share
    assert found.blackouts == 0


@pytest.mark.parametrize("algorithm", ["deterministic", "deterministic_leftover"])
def test_an_update_in_order_takes_little_of_a_list_that_is_shuffled(
    algorithm: str,
) -> None:
    """Without the shuffle, as by round robin, all of it."""
    found = spread(chosen(algorithm, MANY, 1000), 20)
    assert (found.max_share, found.blackouts) == (0.25, 0)


def test_the_ring_spreads_a_subset_whatever_the_number_of_backends() -> None:
    """A tenth restarts: at most twice its share, for every 13th number."""
    for backends in range(21, 1201, 13):
        found = spread(chosen("ringsteady", 200, backends), max(1, backends // 10))
        assert found.max_share <= 0.2, backends


def test_a_rolling_restart_takes_all_of_every_subset_of_round_robin() -> None:
    assert spread(chosen("round_robin", MANY, 1000), 20).blackouts == MANY
