"""Keys on a simulated fleet: what `benchmarks.keys` shows, in a shorter form.

Bounds are wider than there: with requests twice as dear there is more chance.
"""

from functools import cache

import pytest

from benchmarks.keys import (
    BACKENDS,
    Found,
    Noting,
    Unbounded,
    assigned,
    moves,
    run,
    scenario_of,
)


@cache
def bounded(clients: int, seed: int) -> Found:
    return run(Noting, scenario_of(clients, 60.0, 40.0, cost=0.04), 0.7, seed)


@pytest.mark.parametrize("clients", [1, 40])
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.slow
def test_load_is_bounded_and_nearly_all_that_can_are_on_first_choices(
    clients: int, seed: int
) -> None:
    found = bounded(clients, seed)
    assert found.spread < 1.3
    assert found.first > 0.93 * found.possible
    assert found.errors == 0.0


@pytest.mark.slow
def test_one_client_and_forty_do_the_same() -> None:
    assert bounded(1, 1).first == pytest.approx(bounded(40, 1).first, abs=0.02)


@pytest.mark.slow
def test_without_the_bound_hot_keys_overload_their_backends() -> None:
    found = run(Unbounded, scenario_of(40, 20.0, 20.0, cost=0.04), 0.7, 1)
    assert found.spread > 1.4
    assert found.errors > 0.02
    assert found.first == 1.0


@pytest.mark.slow
def test_a_backend_that_joins_or_leaves_moves_little_else() -> None:
    for one in moves(5, seed=1, quiet=60.0, window=40.0):
        assert one.keys == 1.0
        assert one.calls - one.chance < 1.4 * one.least


def test_the_least_that_moves_is_the_keys_of_one_backend() -> None:
    few, many = assigned(1, BACKENDS - 1), assigned(1, BACKENDS)
    moved = {key for key in few.first if few.first[key] != many.first[key]}
    assert moved == {key for key, home in many.first.items() if home == BACKENDS - 1}
    for one in (few, many):
        assert sum(one.parts.values()) == pytest.approx(1.0)
