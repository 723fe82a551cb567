"""Clients of grpc.aio's own, with nothing but gRPC's `retryPolicy`, and our servers."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest

import lbclient
from lbclient import wire
from lbclient.config import ServerConfig
from lbclient.core.retries.stock_budget import BURST
from tests.hosts import PATH, Host, Hosted, hosting, unary_unary

TASKS = 8
CALLS = 600
OVERLOADED = ServerConfig(signals={"all": lambda: 1000.0})
POLICY = {
    "maxAttempts": 5,
    "initialBackoff": "0.01s",
    "maxBackoff": "0.02s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],
}


async def echo(request: bytes, context: Any) -> bytes:
    return request


def target(*hosts: Hosted) -> str:
    return "ipv4:" + ",".join(host.address for host in hosts)


def stock_channel(*hosts: Hosted) -> grpc.aio.Channel:
    config = {
        "loadBalancingConfig": [{"round_robin": {}}],
        "methodConfig": [{"name": [{}], "retryPolicy": POLICY}],
    }
    options = [("grpc.service_config", json.dumps(config))]
    return grpc.aio.insecure_channel(target(*hosts), options)


async def ends(channel: grpc.aio.Channel, calls: int, at_once: int) -> Counter[str]:
    """How the calls end, of which so many are in flight at a time."""
    method: Any = channel.unary_unary(PATH)
    places, seen = asyncio.Semaphore(at_once), Counter[str]()

    async def call() -> None:
        async with places:
            try:
                await method(b"", timeout=100)
            except grpc.aio.AioRpcError as error:
                seen[error.code().name] += 1
            else:
                seen["OK"] += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(calls):
            group.create_task(call())
    return seen


def refused(hosted: Hosted) -> Counter[str]:
    told = hosted.server.statistics().refused
    return Counter({reason: sum(by.values()) for reason, by in told.items()})


@pytest.mark.parametrize("at_once", [1, 20, CALLS])
async def test_where_all_refuse_stock_clients_make_at_most_a_fifth_more(
    at_once: int,
) -> None:
    """Three arrivals a call it was, and five with as many attempts."""
    async with AsyncExitStack() as stack:
        hosts = [
            await stack.enter_async_context(
                hosting(unary_unary(echo), config=OVERLOADED)
            )
            for _ in range(TASKS)
        ]
        async with stock_channel(*hosts) as channel:
            seen = await ends(channel, CALLS, at_once)
        told = sum(map(refused, hosts), Counter[str]())
        attempts = [host.server.statistics().attempts for host in hosts]
    assert seen == {"UNAVAILABLE": CALLS}
    arrived = sum((Counter(one.requests) for one in attempts), Counter[str]())
    assert arrived["0"] == CALLS
    assert CALLS < arrived.total() <= 1.2 * CALLS
    assert arrived.total() == told["overloaded"] + told["overloaded-dont-retry"]
    assert all(one.withheld for one in attempts)


async def test_whoever_is_out_of_quota_is_not_sent_again(host: Host) -> None:
    """Three arrivals a call it was: another task would refuse as well."""
    hosted = await host(unary_unary(echo), config=ServerConfig(default_quota=0.0))
    async with stock_channel(hosted) as channel:
        assert await ends(channel, 20, 1) == {"RESOURCE_EXHAUSTED": 20}
    assert refused(hosted)["quota"] == 20


async def test_beside_one_overloaded_task_stock_clients_are_served_elsewhere(
    host: Host, eventually: Any
) -> None:
    load = [0.0]
    config = ServerConfig(signals={"all": lambda: load[0]})
    hosted = await host(unary_unary(echo), config=config)
    async with (
        hosting(unary_unary(echo)) as idle,
        stock_channel(hosted, idle) as channel,
    ):
        while not all(attempts_of(task)["0"] for task in (hosted, idle)):
            await ends(channel, 1, 1)  # until both are connected
        load[0] = 1000.0
        await eventually(lambda: hosted.server.statistics().admitted["CRITICAL"] < 0.01)
        calls = round(BURST)
        assert await ends(channel, calls, 1) == {"OK": calls}
        assert refused(hosted)["overloaded"] > 0


def attempts_of(hosted: Hosted) -> Mapping[str, int]:
    requests: Mapping[str, int] = hosted.server.statistics().attempts.requests
    return requests


async def test_our_channels_retry_where_stock_clients_may_not(
    host: Host, eventually: Any
) -> None:
    """They have a budget of their own, and know the word."""
    hosted = await host(unary_unary(echo), config=OVERLOADED)
    async with stock_channel(hosted) as channel:
        await ends(channel, 50, 1)  # uses up what the server grants
    withheld = hosted.server.statistics().attempts.withheld
    assert withheld > 0
    trailers: Any = None
    try:
        method: Any = hosted.channel.unary_unary(PATH)
        await method(b"", timeout=100)
    except grpc.aio.AioRpcError as error:
        trailers = dict(tuple(error.trailing_metadata()))
    assert trailers[wire.REFUSAL_KEY] == "overloaded"
    assert trailers[wire.PUSHBACK_KEY] == "-1"
    async with hosting(unary_unary(echo)) as idle:
        config = lbclient.ChannelConfig(picker="round_robin", throttle=0.0)
        both = target(hosted, idle)
        async with lbclient.insecure_channel(both, config=config) as channel:
            await channel.channel_ready()
            await eventually(
                lambda: (
                    [b.state for b in channel.statistics().backends] == ["ready"] * 2
                )
            )
            await ends(channel, 20, 1)  # every second one meets the overloaded task
            assert channel.statistics().retries == 20 / 10
    assert hosted.server.statistics().attempts.withheld >= withheld + 1
