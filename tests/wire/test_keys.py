"""Calls with keys over loopback: what a picker sees of them, and where they go."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from random import Random
from typing import Any

import grpc
import pytest

import lbclient
from lbclient import CallHints, ChannelConfig, Criticality
from lbclient.core.protocols import N
from lbclient.core.spillover import Spillover
from lbclient.pickers import RoundRobin
from lbclient.wire import REFUSAL_KEY
from tests.hosts import Host, stream_stream, unary_stream, unary_unary
from tests.waiting import eventually

ECHO, PAGES, CHAT = "/test.Keys/Echo", "/test.Keys/Pages", "/test.Keys/Chat"


class Seeing:
    """Round robin that tells which calls it has seen."""

    def __init__(self, rng: Random) -> None:
        self._inner = RoundRobin(rng)
        self.seen: list[CallHints] = []

    def pick(self, ready: Sequence[N], now: float) -> N:
        raise AssertionError("a picker that sees calls is asked by pick_for")

    def pick_for(self, call: CallHints, ready: Sequence[N], now: float) -> N:
        self.seen.append(call)
        return self._inner.pick(ready, now)

    def weights(self, ready: Sequence[N], now: float) -> Sequence[float]:
        return self._inner.weights(ready, now)


async def echo(request: bytes, _: Any) -> bytes:
    return request


async def pages(request: bytes, _: Any) -> AsyncIterator[bytes]:
    yield request


async def chat(requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


async def refuse(_: bytes, context: Any) -> bytes:
    trailers = ((REFUSAL_KEY, "overloaded"),)
    await context.abort(grpc.StatusCode.UNAVAILABLE, "too much", trailers)
    return b""


METHODS = {
    ECHO: unary_unary(echo),
    PAGES: unary_stream(pages),
    CHAT: stream_stream(chat),
}
REFUSING = {**METHODS, ECHO: unary_unary(refuse)}

Seen = Callable[..., tuple[lbclient.Channel, list[CallHints]]]


@pytest.fixture
async def seeing() -> AsyncIterator[Seen]:
    channels = []

    def make(
        *addresses: str, **settings: Any
    ) -> tuple[lbclient.Channel, list[CallHints]]:
        picker = Seeing(Random(7))
        config = ChannelConfig(picker=lambda _: picker, **settings)
        target = f"ipv4:{','.join(addresses)}"
        channel = lbclient.insecure_channel(target, config=config)
        channels.append(channel)
        return channel, picker.seen

    yield make
    for channel in channels:
        await channel.close()


async def test_a_picker_sees_method_keys_criticality_and_cost(
    host: Host, seeing: Seen
) -> None:
    channel, seen = seeing((await host(METHODS)).address)
    await channel.channel_ready()
    with (
        lbclient.key("session-42", "tenant-7", cost=2.5),
        lbclient.criticality("SHEDDABLE"),
    ):
        await channel.unary_unary(ECHO)(b"", timeout=5)
        async for _ in channel.unary_stream(PAGES)(b"", timeout=5):
            pass
        async for _ in channel.stream_stream(CHAT)(iter([b"a", b"b"]), timeout=5):
            pass
    await channel.unary_unary(ECHO)(b"", timeout=5)
    keys, level = ("session-42", "tenant-7"), Criticality.SHEDDABLE
    assert seen == [
        CallHints(ECHO, keys, level, 2.5),
        CallHints(PAGES, keys, level, 2.5),
        CallHints(CHAT, keys, level, 2.5),
        CallHints(ECHO),
    ]


async def test_a_call_that_waits_keeps_its_keys(host: Host, seeing: Seen) -> None:
    channel, seen = seeing((await host(METHODS)).address)
    with lbclient.key("session-42"):
        call = channel.unary_unary(ECHO)(b"", timeout=5)  # nobody is connected yet
    await call
    assert seen == [CallHints(ECHO, ("session-42",))]


async def test_a_later_attempt_says_where_the_call_was_before(
    host: Host, seeing: Seen
) -> None:
    refusing = await host(REFUSING, server=grpc.aio.server())
    hosts = [refusing, await host(METHODS)]
    channel, seen = seeing(*(one.address for one in hosts))
    await eventually(lambda: len(channel.balancer().pool.ready) == 2)
    for _ in range(2):  # one of them goes to the one that refuses
        with lbclient.key("session-42"):
            await channel.unary_unary(ECHO)(b"", timeout=5)
    [later] = [call for call in seen if call.tried]
    assert later.keys == ("session-42",)
    assert [one.endpoint.address for one in later.tried] == [hosts[0].address]


async def test_a_call_beneath_an_interceptor_keeps_its_keys(host: Host) -> None:
    class Passing(grpc.aio.UnaryUnaryClientInterceptor):
        async def intercept_unary_unary(
            self, go_on: Any, details: Any, request: Any
        ) -> Any:
            await asyncio.sleep(0)
            return await go_on(details, request)

    picker = Seeing(Random(7))
    config = ChannelConfig(picker=lambda _: picker)
    target = f"ipv4:{(await host(METHODS)).address}"
    async with lbclient.insecure_channel(
        target, config=config, interceptors=[Passing()]
    ) as channel:
        with lbclient.key("session-42"):
            await channel.unary_unary(ECHO)(b"", timeout=5)
    assert [call.keys for call in picker.seen] == [("session-42",)]


async def test_zones_and_ejections_hide_no_call_from_a_picker(
    host: Host, seeing: Seen
) -> None:
    """Both stand between a channel and its picker."""
    channel, seen = seeing((await host(METHODS)).address, zone="b", locality=True)
    await channel.channel_ready()
    balancer = channel.balancer()
    balancer.outliers.count = 1  # as if one were ejected, for another method
    with lbclient.key("session-42"):
        await channel.unary_unary(ECHO)(b"", timeout=5)
    balancer.outliers.count = 0
    assert isinstance(balancer.picker, Spillover)
    assert {call.keys for call in seen} == {("session-42",)}
