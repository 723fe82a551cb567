"""What every subset algorithm promises, and what only some of them do."""

from collections import Counter
from collections.abc import Callable
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbclient.model import Endpoint, Endpoints, snapshot
from lbclient.protocols import Subset
from lbclient.subsets import Rendezvous

Algorithm = Callable[[str], Subset]

every_algorithm = pytest.mark.parametrize("algorithm", [Rendezvous])
minimally_disruptive = pytest.mark.parametrize("algorithm", [Rendezvous])

clients = st.text(max_size=20)
endpoints = st.lists(
    st.builds(
        Endpoint,
        st.text(min_size=1, max_size=20),
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
@settings(max_examples=10)
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
