"""What the tests share: users, and the application without its lifespan."""

from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from shop.app import api, app
from shop.catalog import Catalog, of_worker
from shop.users import User, read_users

import lbclient.testing

TOKEN = "a-token"
USERS = {"token-of-bob": User("bob", "web", "CRITICAL_PLUS")}
OF_BOB = {"Authorization": "Bearer token-of-bob"}


@pytest.fixture
def catalog(lbclient_channel: lbclient.testing.FakeChannel) -> Iterator[None]:
    """The application calls `lbclient_channel`, whose answers the test scripts."""
    api.dependency_overrides[of_worker] = lambda: Catalog(lbclient_channel, TOKEN)
    yield
    del api.dependency_overrides[of_worker]


@pytest.fixture
async def shop() -> AsyncIterator[httpx.AsyncClient]:
    """A client of the application, in this process."""
    api.dependency_overrides[read_users] = lambda: USERS
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        yield client
    del api.dependency_overrides[read_users]
