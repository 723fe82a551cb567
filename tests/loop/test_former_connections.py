"""How long a connection stays that was given up for a new one."""

import asyncio
from typing import Any

import pytest

from lbclient.client.backends.former_connections import (
    REPLACED_PERIOD,
    UNUSED_AFTER,
    FormerConnections,
)
from lbclient.core.load import Load


class Channel:
    """As much of grpc.aio's as is looked at."""

    def __init__(self, *calls: Any) -> None:
        self._active_calls = calls
        self.closed_at: float | None = None

    async def close(self, grace: float | None = None) -> None:
        self.closed_at = asyncio.get_running_loop().time()


class Call:
    is_over = False

    def cancel(self) -> bool:
        return True

    def done(self) -> bool:
        return self.is_over


def former_connections(load: Load) -> FormerConnections:
    clock = asyncio.get_running_loop().time
    return FormerConnections("10.0.0.1:50051", 2.0, load, clock)


@pytest.mark.parametrize("is_used", [False, True])
@pytest.mark.parametrize("is_left_to_core", [False, True])
async def test_one_without_calls_goes_at_once(
    is_used: bool, is_left_to_core: bool
) -> None:
    """Calls of the backend that are on other connections do not keep it."""
    load, call = Load(), Call()
    load.begin()
    channel: Any = Channel(*([call] if is_used else []))
    former = former_connections(load)
    former.add(channel, "a double", lambda: is_left_to_core)
    await asyncio.sleep(2 * UNUSED_AFTER)
    assert (channel.closed_at is None) == is_used
    if is_used:
        await asyncio.sleep(REPLACED_PERIOD / 6)
        call.is_over = True
        await asyncio.sleep(REPLACED_PERIOD / 4)  # it is looked at less and less often
    assert channel.closed_at is not None
    assert not len(former)


@pytest.mark.parametrize("is_left_to_core", [False, True])
async def test_calls_stay_on_one_until_its_time_is_over(is_left_to_core: bool) -> None:
    load, call = Load(), Call()
    channel: Any = Channel(call)
    former = former_connections(load)
    began_at = asyncio.get_running_loop().time()
    former.add(channel, "a double", lambda: is_left_to_core)
    await asyncio.sleep(0.99 * REPLACED_PERIOD)
    assert channel.closed_at is None
    await asyncio.sleep(REPLACED_PERIOD / 2)
    if not is_left_to_core:
        assert channel.closed_at == pytest.approx(began_at + REPLACED_PERIOD)
        return
    assert channel.closed_at is None
    call.is_over = True
    await asyncio.sleep(REPLACED_PERIOD)
    assert channel.closed_at is not None
    assert not len(former)
