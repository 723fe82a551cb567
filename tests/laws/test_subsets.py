"""What every subset algorithm promises, and what only some of them do.

First those over endpoints, then those over numbers with a table of their claims. A
claim is tested where it is made; where it is not, there is a case that breaks it, so
that the table says no less than is true.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbclient.core.model import Endpoint, Endpoints, snapshot
from lbclient.core.protocols import Subset
from lbclient.core.text import printable
from lbclient.subsets import ALGORITHMS, Rendezvous, order, subset
from tests.examples import examples

Algorithm = Callable[[str], Subset]

every_algorithm = pytest.mark.parametrize("algorithm", [Rendezvous])
minimally_disruptive = pytest.mark.parametrize("algorithm", [Rendezvous])

clients = st.text(max_size=20)
endpoints = st.lists(
    st.builds(
        Endpoint,
        st.text(max_size=20).map(printable).map("{}:50051".format),
        st.floats(0.1, 10.0),
        st.sampled_from(["", "a", "b"]),
    ),
    max_size=40,
).map(snapshot)


@every_algorithm
@given(clients, endpoints)
def test_the_order_has_each_endpoint_once(
    algorithm: Algorithm, client: str, snapshot: Endpoints
) -> None:
    assert sorted(algorithm(client)(snapshot)) == list(snapshot)


@every_algorithm
@given(clients, endpoints)
def test_a_client_that_asks_again_gets_the_same_order(
    algorithm: Algorithm, client: str, snapshot: Endpoints
) -> None:
    subset = algorithm(client)
    once = list(subset(snapshot))
    assert list(subset(snapshot)) == once
    assert list(algorithm(client)(snapshot)) == once


@minimally_disruptive
@given(clients, endpoints, st.data())
def test_one_that_leaves_or_joins_moves_nobody_else(
    algorithm: Algorithm, client: str, snapshot: Endpoints, data: st.DataObject
) -> None:
    gone = data.draw(st.sampled_from(snapshot)) if snapshot else None
    rest = tuple(endpoint for endpoint in snapshot if endpoint is not gone)
    before = [each for each in algorithm(client)(snapshot) if each is not gone]
    assert list(algorithm(client)(rest)) == before


@minimally_disruptive
@given(clients, endpoints)
def test_weight_and_zone_move_nobody(
    algorithm: Algorithm, client: str, snapshot: Endpoints
) -> None:
    plain = tuple(Endpoint(endpoint.address) for endpoint in snapshot)
    order = [endpoint.address for endpoint in algorithm(client)(snapshot)]
    assert [endpoint.address for endpoint in algorithm(client)(plain)] == order


@every_algorithm
@examples(10)
@given(st.text(max_size=10))
def test_clients_spread_over_the_backends(algorithm: Algorithm, service: str) -> None:
    """Each of 50 backends is in the subset of about 40 of 200 clients.

    Independent draws of 10 of 50: 40 on average with standard deviation 5.7; beyond
    six of those, 6 to 74, is once in 10^7 examples.
    """
    backends = snapshot([Endpoint(f"10.0.0.{i}:1") for i in range(50)])
    chosen = Counter(
        endpoint.address
        for client in range(200)
        for endpoint in islice(algorithm(f"{service}/{client}")(backends), 10)
    )
    assert len(chosen) == 50
    assert 6 <= min(chosen.values()) <= max(chosen.values()) <= 74


@every_algorithm
def test_ten_thousand_endpoints_have_an_order(algorithm: Algorithm) -> None:
    many = snapshot([Endpoint(f"10.{i >> 8}.{i & 255}.1:1") for i in range(10_000)])
    assert sorted(algorithm("client")(many)) == list(many)


# Over numbers


@dataclass(frozen=True)
class Claims:
    """What holds for an algorithm at all sizes."""

    prefix: bool = False
    """The order does not depend on the size of the subset."""

    steady: bool = False
    """A new backend takes its place in the order, and moves no other."""

    moves: int | None = None
    """The most backends of a subset that change for one backend more."""


CLAIMS = {
    "random": Claims(prefix=True),
    "round_robin": Claims(),
    "deterministic": Claims(),
    "deterministic_leftover": Claims(),
    "consistent": Claims(prefix=True, steady=True, moves=1),
    # The client's start may move by one place, past which the new one may come in.
    "ringsteady": Claims(prefix=True, moves=2),
    "ringsteady_unscaled": Claims(prefix=True, steady=True, moves=1),
    "rocksteadier": Claims(prefix=True, moves=2),
    "rendezvous": Claims(prefix=True, steady=True, moves=1),
    "whole": Claims(prefix=True),
}

tasks = st.integers(0, 5_000)
numbers = st.integers(1, 250)
sizes = st.integers(1, 300)
offsets = st.just(0) | st.integers(1, 2**20)

every_one = pytest.mark.parametrize("name", CLAIMS)
prefix = pytest.mark.parametrize("name", [n for n in CLAIMS if CLAIMS[n].prefix])
no_prefix = pytest.mark.parametrize("name", [n for n in CLAIMS if not CLAIMS[n].prefix])
steady = pytest.mark.parametrize("name", [n for n in CLAIMS if CLAIMS[n].steady])
unsteady = pytest.mark.parametrize("name", [n for n in CLAIMS if not CLAIMS[n].steady])
bounded = pytest.mark.parametrize("name", [n for n in CLAIMS if CLAIMS[n].moves])
unbounded = pytest.mark.parametrize("name", [n for n in CLAIMS if not CLAIMS[n].moves])


def churn(name: str, client: int, before: int, after: int, size: int) -> int:
    """How many backends are new to the client."""
    old = subset(name, client, before, size)
    return len({*subset(name, client, after, size)} - {*old})


def test_every_algorithm_says_what_it_claims() -> None:
    assert list(CLAIMS) == list(ALGORITHMS)


@every_one
@given(tasks, numbers, sizes, offsets)
def test_an_order_has_each_backend_once(
    name: str, client: int, backends: int, size: int, offset: int
) -> None:
    preferred = list(order(name, client, backends, size, offset=offset))
    assert sorted(preferred) == list(range(backends))
    chosen = subset(name, client, backends, size, offset=offset)
    assert chosen == preferred[:size]


@every_one
@examples(10)
@given(st.permutations(range(25)), numbers, sizes, offsets)
def test_nobody_else_has_a_say_in_a_client_s_order(
    name: str, others: list[int], backends: int, size: int, offset: int
) -> None:
    """Who asks first, and how many ask, is all the same: no client causes churn."""

    def asked(clients: list[int]) -> dict[int, list[int]]:
        return {c: subset(name, c, backends, size, offset=offset) for c in clients}

    alone = asked(others[:1])
    everybody = asked(sorted(others))
    assert asked(others) == everybody
    assert everybody.items() >= alone.items()


@every_one
@examples(10)
@given(offsets)
def test_no_backend_is_forgotten_or_everybody_s(name: str, offset: int) -> None:
    """Of 200 clients that choose 10 of 50 a backend has 40 on average.

    Least even are the random places on a circle, where the gaps before a backend
    give it 22 to 66; by chance these have standard deviations of 4.5 and 6.6, so that
    0 and 100 are five of them away.
    """
    held = Counter(
        backend
        for client in range(200)
        for backend in subset(name, client, 50, 10, offset=offset)
    )
    assert len(held) == 50
    assert max(held.values()) < 100


@prefix
@given(tasks, numbers, sizes, sizes, offsets)
def test_a_larger_subset_only_adds(
    name: str, client: int, backends: int, size: int, other: int, offset: int
) -> None:
    small = list(order(name, client, backends, size, offset=offset))
    assert list(order(name, client, backends, other, offset=offset)) == small


@no_prefix
def test_without_that_claim_a_larger_subset_is_another(name: str) -> None:
    assert any(
        not {*subset(name, client, 100, 20)} <= {*subset(name, client, 100, 21)}
        for client in range(10)
    )


@steady
@given(tasks, numbers, sizes, offsets)
def test_a_new_backend_moves_no_other(
    name: str, client: int, backends: int, size: int, offset: int
) -> None:
    wider = order(name, client, backends + 1, size, offset=offset)
    rest = [backend for backend in wider if backend != backends]
    assert rest == list(order(name, client, backends, size, offset=offset))


@unsteady
def test_without_that_claim_a_new_backend_moves_others(name: str) -> None:
    def rest(client: int, backends: int) -> list[int]:
        return [each for each in order(name, client, backends, 5) if each < 120]

    assert any(rest(client, 121) != rest(client, 120) for client in range(200))


@bounded
@given(tasks, numbers, sizes, offsets)
def test_a_new_backend_changes_few_of_a_subset(
    name: str, client: int, backends: int, size: int, offset: int
) -> None:
    most = CLAIMS[name].moves
    assert most is not None
    old = {*subset(name, client, backends, size, offset=offset)}
    new = {*subset(name, client, backends + 1, size, offset=offset)}
    assert len(new - old) <= most


@unbounded
def test_without_that_claim_a_new_backend_changes_more(name: str) -> None:
    assert max(churn(name, client, 60, 61, 20) for client in range(200)) > 2


@examples(25)
@given(st.integers(20, 1200))
def test_rocksteadier_moves_about_as_few_as_it_must(backends: int) -> None:
    """From N to N+1 a client must change k / (N+1) on average.

    One more in a lot that is there changes one place at most. A new lot, after every
    tenth backend, moves the others round the ring: two at most.
    """
    moved = [churn("rocksteadier", c, backends, backends + 1, 20) for c in range(400)]
    assert max(moved) <= 2
    if backends % 10:
        assert max(moved) <= 1
        assert sum(moved) / len(moved) <= 1.25 * 20 / (backends + 1) + 0.01
