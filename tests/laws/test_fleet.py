"""The pickers on one small simulated fleet: who balances it, who fails requests.

Half of the backends are 2.5 times as fast, the load is 70 % of what all can do. The
bounds leave room for the seed; `python -m benchmarks.fleet` shows more.
"""

from functools import cache

import pytest

from benchmarks.fleet import Fleet, Result, Simulation
from lbclient.pickers import PICKERS

FLEET = Fleet(backends=8, clients=4, warm_up=12.0, seconds=8.0)


@cache
def run(name: str, fleet: Fleet) -> Result:
    return Simulation(fleet, PICKERS[name]).run()


@pytest.mark.slow
def test_the_default_balances_a_fleet_of_fast_and_slow_machines() -> None:
    result = run("weighted_least_loaded", FLEET)
    assert result.spread <= 1.03  # 1.006 to 1.013 for seeds 1 to 5
    assert result.errors == 0.0


@pytest.mark.slow
def test_only_load_reports_tell_fast_from_slow() -> None:
    assert run("round_robin", FLEET).spread >= 1.3
    assert run("least_loaded", FLEET).spread >= 1.1
    assert run("weighted_round_robin", FLEET).spread <= 1.1


@pytest.mark.slow
def test_the_default_has_the_shortest_tail() -> None:
    by_key = {"consistent_hashing", "cache_aware"}  # the default's rule without keys
    tails = {name: run(name, FLEET).p99 for name in PICKERS if name not in by_key}
    assert min(tails, key=lambda name: tails[name]) == "weighted_least_loaded"


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.2, 0.6])
def test_clients_with_hardly_a_request_balance_too(load: float) -> None:
    """Where weights are all there is to go by, noise must not rank backends."""
    fleet = Fleet(backends=4, clients=50, load=load, warm_up=20.0, seconds=20.0)
    assert run("weighted_least_loaded", fleet).spread <= 1.1


@pytest.mark.slow
def test_a_backend_that_fails_at_once_draws_no_traffic() -> None:
    """It says nothing and is always idle: round robin fails an eighth."""
    fleet = Fleet(backends=8, clients=4, fast=1.0, failing=1, warm_up=5.0)
    assert run("round_robin", fleet).errors == pytest.approx(1 / 8, rel=0.1)
    assert run("weighted_round_robin", fleet).errors <= 0.03
    assert run("least_loaded", fleet).errors <= 0.003
    assert run("weighted_least_loaded", fleet).errors <= 0.003


@pytest.mark.slow
def test_backends_that_report_nothing_still_take_their_part() -> None:
    fleet = Fleet(backends=8, clients=4, silent=4, seconds=8.0)
    assert run("weighted_least_loaded", fleet).errors == 0.0
