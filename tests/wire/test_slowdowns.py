"""A backend whose requests begin to cost more, while those of others do not."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import lbclient
from lbclient.admin import shape
from lbclient.admin.snapshot import snapshot
from lbclient.cli.operate.inspect import channel as told
from lbclient.cli.operate.inspect import server as told_server
from lbclient.client.backends import slowdowns
from lbclient.core.outliers import fleet_cost, relative_costs
from lbclient.metrics import samples
from tests.hosts import PATH, hosting, unary_unary
from tests.waiting import eventually

OWN_WORDS = "times its usual one, compared with the fleet"
WORDS = "times as much as usual, compared with the others"


async def echo(request: bytes, context: Any) -> bytes:
    return request


async def calling(channel: lbclient.Channel) -> None:
    call: Any = channel.unary_unary(PATH)
    while True:
        await call(b"", timeout=10)
        await asyncio.sleep(0.005)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The times are cut short."""
    monkeypatch.setattr(slowdowns, "PAUSE", 0.1)
    tuning = replace(relative_costs.TUNING, learning=3.0, smoothing=1.0)
    monkeypatch.setattr(relative_costs, "TUNING", tuning)
    monkeypatch.setattr(fleet_cost, "RELATIVE_COSTS", tuning)
    monkeypatch.setattr(fleet_cost, "SMOOTHING", 1.0)
    monkeypatch.setattr(fleet_cost, "PAUSE", 0.1)
    monkeypatch.setattr(fleet_cost, "TELL_AFTER", 0.2)
    monkeypatch.setattr(fleet_cost, "TELL_AFTER_EACH", 0.0)


async def test_a_backend_beside_an_antagonist_is_told_of(
    soon: None, caplog: pytest.LogCaptureFixture
) -> None:
    """What it takes of its capacity is its own word. Its client says so, and it itself,
    by what the client tells it of the others."""
    caplog.set_level(logging.INFO, "lbclient")
    shares = [0.2, 0.2, 0.4]  # the third is a slow machine
    addresses, servers = [], []
    async with AsyncExitStack() as stack:
        for number in range(len(shares)):
            share: Callable[[], float] = partial(shares.__getitem__, number)
            hosted = await stack.enter_async_context(
                hosting(unary_unary(echo), utilization=share, max_load=0, smoothing=1.0)
            )
            addresses.append(hosted.address)
            servers.append(hosted.server)
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

        def own(number: int) -> Any:
            return servers[number].statistics().cost

        await eventually(lambda: of(2) and of(2).relative_cost)
        assert of(2).relative_cost > 1.5
        assert not of(2).is_slowed
        await eventually(lambda: all(own(number).rise for number in range(3)))
        assert own(2).relative > 1.5
        assert not own(2).is_slowed
        shares[0] = 1.0
        await eventually(lambda: of(0).is_slowed)
        assert of(0).cost_rise >= relative_costs.TUNING.usual

        await eventually(lambda: own(0).is_slowed)
        await eventually(
            lambda: (of(0).own_cost_rise or 0.0) >= relative_costs.TUNING.usual
        )
        assert OWN_WORDS in caplog.text
        gauges = dict(samples.server_gauges(servers[0].statistics()))
        assert gauges["lbclient_server_slowed",] == 1
        assert gauges["lbclient_server_cost_rise",] >= relative_costs.TUNING.usual

        seen = channel.statistics()
        gauges = dict(samples.channel_gauges(seen, "t"))
        assert gauges["lbclient_slowed_backends", "t"] >= 1
        gauges = dict(samples.backend_gauges(seen, "t", 9))
        assert gauges["lbclient_backend_slowed", "t", addresses[0]] == 1
        page = snapshot()
        assert shape.flaw(page) == ""
        [seen_there] = page["channels"]
        assert WORDS in " ".join("\n".join(told(seen_there, None, 0.0)).split())
        own_page = " ".join("\n".join(told_server(page["servers"][0], None, 0)).split())
        assert "compared with the fleet: it has slowed down" in own_page
        assert f"{addresses[0]}: the cost of requests is " in caplog.text

        shares[0] = 0.2
        await eventually(lambda: not (of(0).is_slowed or own(0).is_slowed))
    said = f"{addresses[0]}: the cost of requests is as usual again"
    assert said in caplog.text
