"""A channel whose subset grows while most of its backends' traffic is its own."""

import asyncio
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio
import pytest

import lbclient
from lbclient.client.backends import subset_growth
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
    config = ServerConfig(utilization=lambda: utilization, utilization_replaces=True)
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


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each look of a channel."""
    seen: list[int] = []
    look = subset_growth.SubsetGrowth.look

    def counted(growth: subset_growth.SubsetGrowth) -> None:
        look(growth)
        seen.append(1)

    monkeypatch.setattr(subset_growth.SubsetGrowth, "look", counted)
    return seen


async def test_in_a_fleet_with_little_to_do_it_keeps_its_size(
    start: Any, search: Any, eventually: Any, looks: list[int]
) -> None:
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


async def test_calls_that_were_given_up_are_no_traffic(
    start: Any, search: Any, eventually: Any, looks: list[int]
) -> None:
    """Servers do not report them: where all wait in vain all subsets would grow."""
    channel, tasks = await start_channel(start, 0.5, 100)
    policy = '{"loadBalancingConfig": [{"round_robin": {}}]}'
    others = grpc.aio.insecure_channel(
        "ipv4:" + ",".join(task.address for task in tasks),
        options=[("grpc.service_config", policy)],
    )

    async def give_up() -> None:
        slow = search.Query(text="sleep 5")
        while True:
            with suppress(grpc.aio.AioRpcError):
                await search.SearchStub(channel).Search(slow, timeout=0.01)

    async with channel, others:
        served = call_again_and_again(
            search.SearchStub(others).Search, search.Query(text="x")
        )
        calling = [asyncio.create_task(each) for each in (give_up(), served)]
        try:
            await eventually(lambda: len(looks) >= 8)
            assert channel.statistics().subset_size == 2
        finally:
            for each in calling:
                each.cancel()
            await asyncio.gather(*calling, return_exceptions=True)
