"""A channel counts the attempts that it sends, and those refused, as servers do."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import grpc
import pytest

import lbclient
from lbclient import wire
from lbclient.config import ChannelConfig, ServerConfig
from tests.hosts import PATH, Hosted, hosting, unary_unary
from tests.waiting import eventually
from tests.wire.conftest import earn

OVERLOADED = ServerConfig(signals={"all": lambda: 1000.0})
WELL = ServerConfig()
CALLS = 60


async def echo(request: bytes, context: Any) -> bytes:
    return request


@asynccontextmanager
async def fleet(
    *configs: ServerConfig,
) -> AsyncIterator[tuple[list[Hosted], lbclient.Channel]]:
    async with AsyncExitStack() as stack:
        hosts = [
            await stack.enter_async_context(hosting(unary_unary(echo), config=config))
            for config in configs
        ]
        target = "ipv4:" + ",".join(host.address for host in hosts)
        config = ChannelConfig(picker="round_robin", throttle=0.0)
        channel = lbclient.insecure_channel(target, config=config)
        async with channel:
            await channel.channel_ready()
            await eventually(
                lambda: (
                    [one.state for one in channel.statistics().backends]
                    == ["ready"] * len(hosts)
                )
            )
            method: Any = channel.unary_unary(PATH)
            for _ in range(CALLS):
                with suppress(grpc.aio.AioRpcError):
                    await method(b"", timeout=10)
            yield hosts, channel


def arrived(hosts: list[Hosted]) -> dict[str, int]:
    counts = (Counter(host.server.statistics().attempts.requests) for host in hosts)
    return dict(sum(counts, Counter[str]()))


async def test_where_all_refuse_so_are_the_retries() -> None:
    async with fleet(OVERLOADED, OVERLOADED, OVERLOADED) as (hosts, channel):
        said = channel.statistics()
        assert said.sent_attempts == {"0": CALLS, "1": 0, "2": 0} | arrived(hosts)
    assert said.refused_attempts == said.sent_attempts
    assert said.retries == said.sent_attempts["1"] + said.sent_attempts["2"] > 0


async def test_where_one_refuses_the_retries_are_served() -> None:
    async with fleet(OVERLOADED, WELL, WELL) as (hosts, channel):
        said = channel.statistics()
        assert said.sent_attempts == {"0": CALLS, "1": 0, "2": 0} | arrived(hosts)
    assert said.refused_attempts["0"] > 0
    assert said.sent_attempts["1"] > 0
    assert (said.refused_attempts["1"], said.refused_attempts["2"]) == (0, 0)


async def test_a_quota_says_nothing_of_load() -> None:
    async with fleet(ServerConfig(default_quota=0.0)) as (_, channel):
        said = channel.statistics()
    assert said.attempts["rejected"] == CALLS
    assert said.refused_attempts == {"0": 0, "1": 0, "2": 0}


async def test_attempts_beyond_the_third_count_as_third() -> None:
    config = ChannelConfig(throttle=0.0, max_attempts=5)

    async def refuse(request: bytes, context: Any) -> None:
        trailers = ((wire.REFUSAL_KEY, "overloaded"),)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "no", trailers)

    async with (
        hosting(unary_unary(refuse), server=grpc.aio.server()) as hosted,
        lbclient.insecure_channel(f"ipv4:{hosted.address}", config=config) as channel,
    ):
        await earn(channel, 5)
        method: Any = channel.unary_unary(PATH)
        with pytest.raises(grpc.aio.AioRpcError):
            await method(b"", timeout=30)
        said = channel.statistics()
    assert said.sent_attempts == {"0": 51, "1": 1, "2": 3}
    assert said.refused_attempts == {"0": 1, "1": 1, "2": 3}
