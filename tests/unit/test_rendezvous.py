"""Rendezvous hashing: the very order, so that no release reshuffles a fleet."""

from lbclient.core.model import Endpoint
from lbclient.subsets import Rendezvous

ENDPOINTS = tuple(Endpoint(f"10.0.0.{i}:50051") for i in range(5))


def order(client_id: str) -> list[int]:
    return [ENDPOINTS.index(endpoint) for endpoint in Rendezvous(client_id)(ENDPOINTS)]


def drawn(client_id: str, address: str) -> bytes:
    return Rendezvous(client_id).draw(address)


def test_the_order_is_the_same_on_every_machine_and_in_every_release() -> None:
    assert order("search-frontend/0") == [2, 4, 1, 3, 0]
    assert order("search-frontend/1") == [4, 3, 1, 0, 2]
    assert order("") == [3, 4, 1, 2, 0]


def test_an_id_and_an_address_cannot_be_taken_for_another_pair() -> None:
    assert drawn("a", "bc:1") != drawn("ab", "c:1")


def test_no_endpoints_have_an_order_too() -> None:
    assert not Rendezvous("a")(())


def test_an_id_may_hold_what_is_no_unicode() -> None:
    assert len(Rendezvous("\udcff")(ENDPOINTS)) == 5


def test_it_tells_whose_order_it_is() -> None:
    assert repr(Rendezvous("a/1")) == "<rendezvous order of client 'a/1'>"
