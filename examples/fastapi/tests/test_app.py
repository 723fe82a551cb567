"""The application without a network: users, deadlines, errors, ports."""

import grpc
import httpx
import pytest
from conftest import OF_BOB, TOKEN
from shop.catalog_pb2 import SearchReply, SearchRequest

from lbclient.testing import FakeChannel, failure

pytestmark = pytest.mark.usefixtures("catalog")

FOUND = SearchReply(items=["oak table"])


async def test_a_user_finds_what_the_catalog_has(
    shop: httpx.AsyncClient, lbclient_channel: FakeChannel
) -> None:
    lbclient_channel.answer("Search", FOUND)
    answer = await shop.get("/search?text=oak", headers=OF_BOB)
    assert (answer.status_code, answer.json()) == (200, ["oak table"])
    [call] = lbclient_channel.calls
    assert call.request == SearchRequest(text="oak")
    assert call.metadata["authorization"] == f"Bearer {TOKEN}"


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer nobody"}])
async def test_nobody_else_calls_the_catalog(
    shop: httpx.AsyncClient, lbclient_channel: FakeChannel, headers: dict[str, str]
) -> None:
    answer = await shop.get("/search?text=oak", headers=headers)
    assert answer.status_code == 401
    assert lbclient_channel.calls == []


async def test_a_call_has_the_time_that_the_request_has(
    shop: httpx.AsyncClient, lbclient_channel: FakeChannel
) -> None:
    lbclient_channel.answer("Search", FOUND)
    await shop.get("/search?text=oak", headers=OF_BOB)
    await shop.get("/search?text=oak", headers={**OF_BOB, "X-Timeout": "0.5"})
    usual, short = (call.timeout or 0.0 for call in lbclient_channel.calls)
    assert 0.5 < usual <= 2.0
    assert 0.0 < short <= 0.5


async def test_a_request_without_time_calls_nobody(
    shop: httpx.AsyncClient, lbclient_channel: FakeChannel
) -> None:
    headers = {**OF_BOB, "X-Timeout": "1e-9"}
    answer = await shop.get("/search?text=oak", headers=headers)
    assert answer.status_code == 504
    assert lbclient_channel.calls == []


@pytest.mark.parametrize(
    ("code", "status"),
    [("UNAVAILABLE", 503), ("DEADLINE_EXCEEDED", 504), ("UNAUTHENTICATED", 502)],
)
async def test_a_failed_call_is_an_answer_without_details(
    shop: httpx.AsyncClient, lbclient_channel: FakeChannel, code: str, status: int
) -> None:
    lbclient_channel.answer("Search", failure(grpc.StatusCode[code], "of 10.0.0.3"))
    answer = await shop.get("/search?text=oak", headers=OF_BOB)
    assert answer.status_code == status
    assert answer.json() == {"detail": f"catalog: {code}"}


async def test_operators_have_a_port_of_their_own(shop: httpx.AsyncClient) -> None:
    for path in ("/live", "/metrics/", "/debug/lbz.json"):
        assert (await shop.get(path)).status_code == 404
        answer = await shop.get(f"http://localhost:9464{path}")
        assert answer.status_code == 200
    assert (await shop.get("http://localhost:9464/search")).status_code == 404


async def test_it_is_not_ready_before_its_channel_is(shop: httpx.AsyncClient) -> None:
    assert (await shop.get("http://localhost:9464/ready")).status_code == 503
