"""A backend whose requests begin to cost more, while those of others do not."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

import lbclient
from lbclient.admin import shape
from lbclient.admin.snapshot import snapshot
from lbclient.cli.operate.inspect import channel as told
from lbclient.client import slowdowns
from lbclient.core import relative_costs
from lbclient.metrics import samples
from tests.hosts import PATH, hosting, unary_unary
from tests.waiting import eventually

WORDS = "times as much as usual, compared with the others"


async def echo(request: bytes, context: Any) -> bytes:
    return request


async def calling(channel: lbclient.Channel) -> None:
    call: Any = channel.unary_unary(PATH)
    while True:
        await call(b"", timeout=10)
        await asyncio.sleep(0.005)


async def test_a_backend_beside_an_antagonist_is_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What it takes of its capacity is its own word; the times are cut short."""
    monkeypatch.setattr(slowdowns, "PAUSE", 0.1)
    monkeypatch.setattr(relative_costs, "LEARNING", 3.0)
    monkeypatch.setattr(relative_costs, "SMOOTHING", 1.0)
    caplog.set_level(logging.INFO, "lbclient.balancer")
    shares = [0.2, 0.2, 0.4]  # the third is a slow machine
    addresses = []
    async with AsyncExitStack() as stack:
        for number in range(len(shares)):
            share: Callable[[], float] = partial(shares.__getitem__, number)
            hosted = await stack.enter_async_context(
                hosting(unary_unary(echo), utilization=share, max_load=0, smoothing=1.0)
            )
            addresses.append(hosted.address)
        config = lbclient.ChannelConfig(picker="round_robin")
        target = f"ipv4:{','.join(addresses)}"
        channel = await stack.enter_async_context(
            lbclient.insecure_channel(target, config=config)
        )
        calls = asyncio.create_task(calling(channel))
        stack.callback(calls.cancel)

        def of(number: int) -> Any:
            seen = {one.address: one for one in channel.statistics().backends}
            return seen.get(addresses[number])

        await eventually(lambda: of(2) and of(2).relative_cost)
        assert of(2).relative_cost > 1.5
        assert not of(2).is_slowed
        shares[0] = 1.0
        await eventually(lambda: of(0).is_slowed)
        assert of(0).cost_rise >= relative_costs.USUAL

        seen = channel.statistics()
        gauges = dict(samples.channel_gauges(seen, "t"))
        assert gauges["lbclient_slowed_backends", "t"] >= 1
        gauges = dict(samples.backend_gauges(seen, "t", 9))
        assert gauges["lbclient_backend_slowed", "t", addresses[0]] == 1
        page = snapshot()
        assert shape.flaw(page) == ""
        [seen_there] = page["channels"]
        assert WORDS in " ".join("\n".join(told(seen_there, None, 0.0)).split())
        assert f"{addresses[0]}: the cost of requests is " in caplog.text

        shares[0] = 0.2
        await eventually(lambda: not of(0).is_slowed)
    said = f"{addresses[0]}: the cost of requests is as usual again"
    assert said in caplog.text
