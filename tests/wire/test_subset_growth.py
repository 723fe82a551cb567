"""A channel whose subset grows while most of its backends' traffic is its own."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

import lbclient
from lbclient.client import subset_growth
from lbclient.config import ChannelConfig, ServerConfig

BACKENDS = 6


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subset_growth, "PAUSE", 0.3)


async def call_again_and_again(method: Any, request: Any) -> None:
    while True:
        await method(request, timeout=10)


async def start_channel(
    start: Any, utilization: float, most: int
) -> tuple[lbclient.Channel, list[Any]]:
    config = ServerConfig(utilization=lambda: utilization)
    tasks = [
        await start(lambda: lbclient.server(config=config)) for _ in range(BACKENDS)
    ]
    target = "ipv4:" + ",".join(task.address for task in tasks)
    own = ChannelConfig(subset_size=2, max_subset_size=most, health_interval=0.2)
    return lbclient.insecure_channel(target, config=own), tasks


@pytest.mark.parametrize(("most", "size"), [(100, BACKENDS), (4, 4)])
async def test_it_grows_as_far_as_it_may(
    start: Any, search: Any, eventually: Any, most: int, size: int
) -> None:
    channel, _ = await start_channel(start, 0.5, most)
    async with channel:
        method, query = search.SearchStub(channel).Search, search.Query(text="x")
        calling = asyncio.create_task(call_again_and_again(method, query))
        try:
            await eventually(lambda: len(channel.statistics().backends) == size)
            assert channel.statistics().subset_size == size
        finally:
            calling.cancel()
            with suppress(asyncio.CancelledError):
                await calling


async def test_in_a_fleet_with_little_to_do_it_keeps_its_size(
    start: Any, search: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    look = subset_growth.SubsetGrowth.look

    def counted(growth: subset_growth.SubsetGrowth) -> None:
        look(growth)
        looks.append(1)

    monkeypatch.setattr(subset_growth.SubsetGrowth, "look", counted)
    channel, _ = await start_channel(start, 0.1, 100)
    async with channel:
        method, query = search.SearchStub(channel).Search, search.Query(text="x")
        calling = asyncio.create_task(call_again_and_again(method, query))
        try:
            await eventually(lambda: len(looks) >= 5)
            assert channel.statistics().subset_size == 2
        finally:
            calling.cancel()
            with suppress(asyncio.CancelledError):
                await calling
