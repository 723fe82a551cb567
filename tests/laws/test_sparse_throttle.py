"""What clients of few requests each do to an overloaded fleet, and after it recovers.

Each fleet is offered ten times its capacity. By its own outcomes none of these clients
would be throttled: each sends less than 3 requests a second.
"""

import pytest

from lbclient.core.throttles.throttle import INACTIVE_BELOW
from tests.laws.sparse_fleet import Fleet

OVERLOAD = 10
FILL, WATCHED = 60, 60  # seconds, until it is watched, and while it is
SOON = 30  # seconds after recovery
MOST = 2.2  # capacities

SPARSE = [(300, 1.0), (100, 2.9), (1000, 0.2)]  # clients, requests a second of each
fleets = pytest.mark.parametrize(("clients", "rate"), SPARSE)

pytestmark = pytest.mark.slow


def overloaded(
    clients: int, rate: float, times: float = OVERLOAD, **how: float
) -> Fleet:
    assert rate < INACTIVE_BELOW
    return Fleet(clients, rate, clients * rate / times, **how)  # type: ignore[arg-type]


def recover(fleet: Fleet, at: int) -> None:
    for backend in fleet.backends:
        backend.is_well = True
    fleet.run(at + SOON + 10)


@fleets
@pytest.mark.parametrize(("backends", "subset"), [(1, 1), (4, 4), (8, 3)])
def test_a_fleet_gets_k_times_its_capacity_and_all_clients_recover_soon(
    clients: int, rate: float, backends: int, subset: int
) -> None:
    fleet = overloaded(clients, rate, backends=backends, subset=subset)
    at = FILL + WATCHED
    fleet.run(at)
    assert fleet.arrived(FILL, at) <= MOST
    assert fleet.accepted(FILL, at) >= 0.9
    recover(fleet, at)
    assert fleet.refused_here(at + SOON, at + SOON + 10) < 0.02


@pytest.mark.parametrize(
    ("clients", "rate", "most"), [(300, 1.0, MOST), (100, 2.9, MOST), (1000, 0.2, 3.3)]
)
def test_at_thirty_times_the_capacity_only_the_floor_counts_beside_k(
    clients: int, rate: float, most: float
) -> None:
    """Who was not refused for two minutes asks: that is 1.25 capacities of the last."""
    fleet = overloaded(clients, rate, times=30)
    fleet.run(FILL + WATCHED)
    assert fleet.arrived(FILL, FILL + WATCHED) <= most


@fleets
@pytest.mark.parametrize("backends", [1, 4])
def test_well_backends_that_refuse_now_and_then_throttle_nobody(
    clients: int, rate: float, backends: int
) -> None:
    fleet = overloaded(clients, rate, backends=backends, subset=backends)
    for backend in fleet.backends:
        backend.is_well, backend.stray = True, 0.02
    fleet.run(FILL)
    assert fleet.refused_here(0, FILL) == 0.0


@fleets
@pytest.mark.parametrize("lie", [0.9, 1.0])
def test_of_two_well_backends_one_that_says_it_refuses_all_matters_little(
    clients: int, rate: float, lie: float
) -> None:
    """Both refuse one in a hundred, and only who was refused listens."""
    fleet = overloaded(clients, rate, backends=2, subset=2)
    fleet.backends[0].lie = lie
    for backend in fleet.backends:
        backend.is_well, backend.stray = True, 0.01
    fleet.run(2 * FILL)
    assert fleet.refused_here(FILL, 2 * FILL) < 0.05


@fleets
def test_one_backend_of_four_that_lies_changes_little(
    clients: int, rate: float
) -> None:
    for lie in (0.0, 1.0):
        fleet = overloaded(clients, rate)
        fleet.backends[0].lie = lie
        fleet.run(FILL + WATCHED)
        # Its share of what the others refuse is missing from the mean, or too large.
        assert 1.0 < fleet.arrived(FILL, FILL + WATCHED) < 3.6
        assert fleet.accepted(FILL, FILL + WATCHED) > 0.9


@fleets
def test_where_no_backend_tells_nobody_is_throttled(clients: int, rate: float) -> None:
    """As by servers of others: what few requests show may be chance."""
    fleet = overloaded(clients, rate)
    for backend in fleet.backends:
        backend.is_mute = True
    fleet.run(FILL)
    assert fleet.refused_here(0, FILL) == 0.0


@fleets
def test_a_fleet_that_grows_threefold_is_used(clients: int, rate: float) -> None:
    fleet = overloaded(clients, rate)
    fleet.run(FILL)
    for backend in fleet.backends:
        backend.capacity *= 3
    fleet.run(FILL + 3 * SOON)
    assert fleet.accepted(FILL + SOON, FILL + 3 * SOON) >= 2.7
    assert fleet.arrived(FILL + SOON, FILL + 3 * SOON) <= 3 * MOST
