"""How long a connection stays that was given up for a new one."""

import asyncio
from typing import Any

import pytest

from lbclient.client.backends.former_connections import (
    FAREWELL,
    UNUSED_AFTER,
    FormerConnections,
)
from lbclient.core.load import Load
from tests.waiting import eventually


class Channel:
    """As much of grpc.aio's as is looked at."""

    def __init__(self, *calls: Any) -> None:
        self._active_calls = calls
        self.closed_at: float | None = None

    async def close(self, grace: float | None = None) -> None:
        self.closed_at = asyncio.get_running_loop().time()


class Call:
    is_over = False

    def done(self) -> bool:
        return self.is_over


def former_connections(load: Load) -> FormerConnections:
    clock = asyncio.get_running_loop().time
    return FormerConnections("10.0.0.1:50051", 2.0, load, clock)


@pytest.mark.parametrize("is_used", [False, True])
async def test_one_that_was_well_goes_at_once_but_for_its_calls(is_used: bool) -> None:
    """Calls of the backend that are on other connections do not keep it."""
    load, call = Load(), Call()
    load.begin()
    channel: Any = Channel(*([call] if is_used else []))
    former = former_connections(load)
    began_at = asyncio.get_running_loop().time()
    former.add(channel, "a double", lambda: True, UNUSED_AFTER)
    if is_used:
        await asyncio.sleep(1.5 * FAREWELL)
        assert channel.closed_at is None
        call.is_over = True
        await asyncio.sleep(FAREWELL)
    await eventually(lambda: channel.closed_at is not None)
    assert not len(former)
    if not is_used:
        assert channel.closed_at - began_at < 1.0
