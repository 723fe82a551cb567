"""How long streams take until their first message is measured on its own."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

import lbclient
from lbclient.core.load import Load
from lbclient.metrics.samples import channel_counts
from tests.hosts import Host, stream_stream, unary_stream, unary_unary

ECHO, PAGES, CHAT = "/test.Keys/Echo", "/test.Keys/Pages", "/test.Keys/Chat"


async def echo(request: bytes, _: Any) -> bytes:
    return request


async def pages(request: bytes, _: Any) -> AsyncIterator[bytes]:
    for _page in range(len(request)):
        yield request
        await asyncio.sleep(0.2)


async def chat(requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


METHODS = {
    ECHO: unary_unary(echo),
    PAGES: unary_stream(pages),
    CHAT: stream_stream(chat),
}


async def test_the_first_message_of_each_stream_counts_once(host: Host) -> None:
    address = (await host(METHODS)).address
    async with lbclient.insecure_channel(f"ipv4:{address}") as channel:
        await channel.channel_ready()

        def seen() -> tuple[int, float | None]:
            (backend,) = channel.statistics().backends
            return sum(channel.statistics().first_message.counts), backend.first_message

        await channel.unary_unary(ECHO)(b"", timeout=5)
        assert [
            page async for page in channel.unary_stream(PAGES)(b"", timeout=5)
        ] == []
        none = channel.unary_stream(PAGES)(b"", timeout=5)
        assert await none.read() is grpc.aio.EOF
        assert seen() == (0, None)
        iterated = channel.unary_stream(PAGES)(b"xx", timeout=5)
        assert len([page async for page in iterated]) == 2
        assert seen()[0] == 1
        read = channel.unary_stream(PAGES)(b"xx", timeout=5)
        while await read.read() is not grpc.aio.EOF:
            pass
        assert seen()[0] == 2
        talk = channel.stream_stream(CHAT)(iter([b"a", b"b"]), timeout=5)
        assert [answer async for answer in talk] == [b"a", b"b"]
        statistics = channel.statistics()
        assert seen()[0] == 3
        # The streams of pages took 0.4 s each, and their first messages no wait.
        assert statistics.first_message.total < statistics.latency.total
        first, (backend,) = seen()[1], statistics.backends
        assert first is not None
        assert 0.0 < first < backend.latency
        counts = dict(channel_counts(statistics, ""))
        assert counts["lbclient_first_message_seconds_count", ""] == 3


def test_the_mean_follows_late_streams() -> None:
    load = Load()
    load.hear_first(1.0)
    assert load.first_message == 1.0
    for _ in range(200):
        load.hear_first(0.1)
    assert load.first_message == pytest.approx(0.1, abs=0.001)
