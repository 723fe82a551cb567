"""Criticality travels with a call, and a client holds back what would be refused."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

import lbclient
from lbclient import Criticality, wire
from lbclient.config import ChannelConfig
from lbclient.retry import ATTEMPTS, Refusal
from lbclient.throttle import COLD
from tests.wire.conftest import eventually

CALLS = round(COLD) + 200
KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


class Refusing:
    """A server that refuses as long as `word` is one, and notes what it is told."""

    def __init__(self, word: str = "") -> None:
        self.word = word
        self.told: list[Any] = []

    async def _take(self, context: Any) -> None:
        told = dict(context.invocation_metadata())
        self.told.append(told.get(wire.CRITICALITY_KEY))
        if self.word:
            trailers = ((wire.REFUSAL_KEY, self.word),)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "too much", trailers)

    async def unary(self, request: Any, context: Any) -> bytes:
        await self._take(context)
        return b"done"

    async def stream(self, request: Any, context: Any) -> AsyncIterator[bytes]:
        await self._take(context)
        yield b"done"

    def handlers(self) -> dict[str, Any]:
        return {
            "unary_unary": grpc.unary_unary_rpc_method_handler(self.unary),
            "unary_stream": grpc.unary_stream_rpc_method_handler(self.stream),
            "stream_unary": grpc.stream_unary_rpc_method_handler(self.unary),
            "stream_stream": grpc.stream_stream_rpc_method_handler(self.stream),
        }


@asynccontextmanager
async def to(
    *backends: Refusing, config: ChannelConfig | None = None
) -> AsyncIterator[lbclient.Channel]:
    """A channel to servers that do as told."""
    servers, addresses = [], []
    for backend in backends:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("test.Any", backend.handlers()),)
        )
        addresses.append(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
        await server.start()
        servers.append(server)
    target = "ipv4:" + ",".join(addresses)
    async with lbclient.insecure_channel(target, config=config) as channel:
        await channel.channel_ready()
        yield channel
    await asyncio.gather(*(server.stop(None) for server in servers))


async def call(channel: lbclient.Channel, kind: str = "unary_unary", **how: Any) -> Any:
    method = getattr(channel, kind)(f"/test.Any/{kind}")
    request = iter([b"x"]) if kind.startswith("stream") else b"x"
    made = method(request, timeout=5, **how)
    if kind.endswith("stream"):
        return [answer async for answer in made]
    return await made


# --- criticality -------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_carries_the_criticality_of_its_context(kind: str) -> None:
    server = Refusing()
    async with to(server) as channel:
        await call(channel, kind)
        with lbclient.criticality(Criticality.SHEDDABLE):
            await call(channel, kind)
            async with asyncio.TaskGroup() as group:
                group.create_task(call(channel, kind))
            with lbclient.criticality(Criticality.CRITICAL):
                await call(channel, kind)
        await call(channel, kind)
    assert server.told == [None, "SHEDDABLE", "SHEDDABLE", None, None]


async def test_what_a_call_says_itself_comes_first_and_the_channel_last() -> None:
    server = Refusing()
    own = ((wire.CRITICALITY_KEY, "CRITICAL_PLUS"), ("other", "kept"))
    config = ChannelConfig(criticality="SHEDDABLE_PLUS")
    async with to(server, config=config) as channel:
        await call(channel)
        with lbclient.criticality(Criticality.SHEDDABLE):
            await call(channel)
            await call(channel, metadata=own)
    assert server.told == ["SHEDDABLE_PLUS", "SHEDDABLE", "CRITICAL_PLUS"]


def test_a_criticality_has_a_name_that_is_one() -> None:
    with lbclient.criticality("SHEDDABLE"):
        pass
    with (
        pytest.raises(lbclient.ConfigError, match="CRITICAL_PLUS"),
        lbclient.criticality("urgent"),
    ):
        pass


# --- throttling --------------------------------------------------------------------


async def refused(channel: lbclient.Channel, count: int) -> list[grpc.aio.AioRpcError]:
    """What so many calls, one after another, raise."""
    errors = []
    for _ in range(count):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(channel)
        errors.append(caught.value)
    return errors


async def test_a_client_holds_back_what_would_be_refused() -> None:
    server = Refusing(Refusal.DONT_RETRY.value)
    async with to(server) as channel:
        errors = await refused(channel, CALLS)
        said = channel.statistics()
        here = [error for error in errors if isinstance(error, lbclient.Throttled)]
        assert len(here) == said.throttled == CALLS - len(server.told) > 0
        assert said.calls == {"UNAVAILABLE": CALLS}
        assert said.attempts["rejected"] == len(server.told)
        assert "0 were accepted" in str(here[-1])
        assert f"{len(here)} here" in str(here[-1])
        # Of another criticality nothing was refused.
        before = len(server.told)
        with lbclient.criticality(Criticality.CRITICAL_PLUS):
            await refused(channel, 20)
        assert len(server.told) == before + 20


async def test_a_client_that_shall_not_throttle_does_not() -> None:
    server = Refusing(Refusal.DONT_RETRY.value)
    async with to(server, config=ChannelConfig(throttle=0)) as channel:
        await refused(channel, CALLS)
        assert channel.statistics().throttled == 0
    assert len(server.told) == CALLS


async def test_errors_of_the_application_throttle_nobody() -> None:
    server = Refusing("no word that we know")
    async with to(server) as channel:
        await refused(channel, CALLS)
        assert channel.statistics().throttled == 0
    assert len(server.told) == CALLS


# --- what a refusal says about retrying ----------------------------------------------


async def test_what_one_backend_refuses_another_gets_at_once() -> None:
    one, other = Refusing(Refusal.OVERLOADED.value), Refusing()
    config = ChannelConfig(picker="round_robin")
    async with to(one, other, config=config) as channel:
        await eventually(
            lambda: {b.state for b in channel.statistics().backends} == {"ready"}
        )
        assert [await call(channel) for _ in range(6)] == [b"done"] * 6
        assert channel.statistics().retries == len(one.told) > 0


@pytest.mark.parametrize(
    ("word", "attempts"),
    [
        (Refusal.OVERLOADED, ATTEMPTS),
        (Refusal.DONT_RETRY, 1),
        (Refusal.QUOTA, 1),
    ],
)
async def test_a_refusal_says_whether_to_try_again(
    word: Refusal, attempts: int
) -> None:
    server = Refusing(word.value)
    async with to(server) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="too much"):
            await call(channel)
    assert len(server.told) == attempts
