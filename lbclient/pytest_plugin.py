"""Fixtures of `lbclient.testing` for pytest, which loads this module when it starts.

So it imports nothing of lbclient's, nor grpc, until a test asks for a fixture. They are
plain fixtures: they work with pytest-asyncio, anyio, or neither.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from lbclient.testing import FakeChannel, LocalFleet


@pytest.fixture
def lbclient_fleet(
    request: pytest.FixtureRequest,
) -> "Iterator[Callable[..., LocalFleet]]":
    """Makes fleets: `async with lbclient_fleet(register, 3) as fleet: ...`.

    A test that fails shows how many requests each backend got. See `LocalFleet`.
    """
    from lbclient.testing import LocalFleet

    fleets: list[LocalFleet] = []

    def make(*arguments: Any, **options: Any) -> LocalFleet:
        fleet = LocalFleet(*arguments, **options)
        fleets.append(fleet)
        return fleet

    yield make
    for fleet in fleets:
        request.node.add_report_section("teardown", "lbclient fleet", repr(fleet))


@pytest.fixture
def lbclient_channel(request: pytest.FixtureRequest) -> "Iterator[FakeChannel]":
    """A channel whose answers the test scripts; one that fails shows its calls."""
    from lbclient.testing import FakeChannel

    channel = FakeChannel()
    yield channel
    request.node.add_report_section("teardown", "lbclient channel", repr(channel))
