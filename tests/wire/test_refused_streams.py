"""Our client and a server that has no room for its health stream: calls go on."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from grpc import StatusCode

import lbclient
from lbclient import wire
from lbclient.client.health.stream_checks import NO_ROOM
from lbclient.config import ChannelConfig
from lbclient.server import Server
from tests.hosts import PATH, Host, hosting, stream_stream
from tests.wire.conftest import ECHO, connect

Eventually = Callable[..., Awaitable[None]]

STREAMS = {wire.WATCH_METHOD, wire.ORCA_METHOD, wire.SERVING_WATCH_METHOD}


def watch(channel: grpc.aio.Channel, method: str) -> Any:
    follow: Any = channel.unary_stream(method)
    return follow(b"")


def refused(server: Server) -> int:
    return sum(server.statistics().streams_refused.values())


def backend_of(channel: lbclient.Channel) -> Any:
    (backend,) = channel.statistics().backends
    return backend


async def test_our_client_calls_a_server_that_refuses_it_a_stream(
    host: Host, eventually: Eventually
) -> None:
    """It knows state and load from the refusal, and is let in when there is room."""
    server, address, _ = await host(ECHO, max_streams=1, utilization=lambda: 0.5)
    await eventually(lambda: server.statistics().utilization == pytest.approx(0.5))
    config = ChannelConfig(health_interval=0.2)
    async with (
        connect(address) as other,
        lbclient.insecure_channel(address, config=config) as channel,
    ):
        held = watch(other, wire.WATCH_METHOD)
        await held.read()
        await asyncio.wait_for(channel.channel_ready(), 20)
        assert backend_of(channel).reason == NO_ROOM
        assert backend_of(channel).utilization == pytest.approx(0.5)
        await eventually(lambda: refused(server) >= 2)
        assert backend_of(channel).state == "ready", "it owes no reports"
        call: Any = channel.unary_unary(PATH)
        assert await call(b"hello", timeout=20) == b"hello"
        held.cancel()
        await eventually(lambda: server.statistics().streams["health"] == 1)
        await eventually(lambda: backend_of(channel).report_age < 0.3)


async def test_our_client_asks_less_and_less_often(
    host: Host, eventually: Eventually
) -> None:
    server, address, _ = await host(ECHO, max_streams=1)
    config = ChannelConfig(health_interval=0.2, idle_after=0)
    async with (
        connect(address) as other,
        lbclient.insecure_channel(address, config=config) as channel,
    ):
        held = watch(other, wire.WATCH_METHOD)
        await held.read()
        await asyncio.wait_for(channel.channel_ready(), 20)
        began_at = asyncio.get_running_loop().time()
        # By pauses of 0.1 s, jittered, it would be twenty times in these two seconds.
        await eventually(lambda: asyncio.get_running_loop().time() - began_at > 2.0)
        assert refused(server) <= 6
        held.cancel()


async def test_our_client_hears_that_a_server_which_refuses_it_leaves(
    host: Host, eventually: Eventually
) -> None:
    server, address, _ = await host(ECHO, max_streams=1)
    config = ChannelConfig(health_interval=0.2)
    async with (
        connect(address) as other,
        lbclient.insecure_channel(address, config=config) as channel,
    ):
        held = watch(other, wire.WATCH_METHOD)
        await held.read()
        await asyncio.wait_for(channel.channel_ready(), 20)
        server.lame_duck()
        await eventually(lambda: backend_of(channel).state == "lame duck")
        held.cancel()


async def test_our_client_waits_for_reports_as_long_as_the_server_tells(
    host: Host, eventually: Eventually
) -> None:
    """Else it would find silent who has too many to report to each as it asks."""
    server, address, _ = await host(ECHO)
    config = ChannelConfig(health_interval=0.2)
    async with lbclient.insecure_channel(address, config=config) as channel:
        await asyncio.wait_for(channel.channel_ready(), 20)
        streams = server._streams
        streams._paced[0.1] = 501  # as if there were 500 others: 1.002 s
        await eventually(lambda: server.statistics().report_floor > 1.0)
        changed = backend_of(channel).state_age
        ages: list[float] = []

        def was_held_back() -> bool:
            """And came then."""
            assert backend_of(channel).state == "ready"
            ages.append(backend_of(channel).report_age)
            return ages[-1] < 0.5 < max(ages)

        await eventually(was_held_back, lambda: ages)
        assert backend_of(channel).state_age > changed
        streams._paced[0.1] = 1


class RateLimited:
    """A stock server behind a rate limit for health checks."""

    def __init__(self, methods: set[str]) -> None:
        self.asked: list[str] = []
        self._methods = methods

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        async def refuse(_: Any, context: Any) -> None:
            await context.abort(StatusCode.RESOURCE_EXHAUSTED, "rate limited")

        if details.method not in self._methods:
            return None
        self.asked.append(details.method)
        return stream_stream(refuse)


@pytest.mark.parametrize(
    "methods",
    [
        {wire.WATCH_METHOD},
        {wire.SERVING_WATCH_METHOD, wire.ORCA_METHOD},
        {*STREAMS, wire.CHECK_METHOD, wire.SERVING_CHECK_METHOD},
    ],
    ids=["ours", "others", "all"],
)
async def test_a_rate_limit_for_health_checks_says_nothing_against_a_server(
    methods: set[str],
) -> None:
    limited: Any = RateLimited(methods)
    server = grpc.aio.server(handlers=[limited])
    async with (
        hosting(ECHO, server=server) as (_, address, _),
        lbclient.insecure_channel(address) as channel,
    ):
        await asyncio.wait_for(channel.channel_ready(), 20)
        call: Any = channel.unary_unary(PATH)
        assert await call(b"hello", timeout=20) == b"hello"
        assert limited.asked
