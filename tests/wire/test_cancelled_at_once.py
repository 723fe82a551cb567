"""A task that is cancelled just after it began to wait for a call ends the call.

grpc.aio waits for a task of its own there, which the cancellation ends before it has
begun: the call is never sent, and never over. Who else waits for its end waited for
ever, and the call was counted as in flight.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest

import lbclient
from tests.hosts import PATH, Host, method_handler
from tests.waiting import eventually

TURNS = range(4)  # of the loop, after which the task is cancelled

Wait = Callable[[Any], Awaitable[Any]]


async def iterate(call: Any) -> None:
    async for _ in call:
        pass


WAITS: dict[str, tuple[str, Wait]] = {
    "iterates": ("unary_stream", iterate),
    "reads": ("unary_stream", lambda call: call.read()),
    "waits for the connection": (
        "unary_stream",
        lambda call: call.wait_for_connection(),
    ),
    "waits for the connection of one answer": (
        "unary_unary",
        lambda call: call.wait_for_connection(),
    ),
}


async def answer(request: bytes, context: Any) -> bytes:
    await asyncio.Event().wait()
    return request


async def answers(request: bytes, context: Any) -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield request


@pytest.mark.parametrize("name", WAITS)
async def test_the_call_ends_and_who_asks_is_told(host: Host, name: str) -> None:
    kind, wait = WAITS[name]
    handler = method_handler(kind, answer if kind == "unary_unary" else answers)
    _, address, _ = await host(handler, max_load=0)
    async with lbclient.insecure_channel(f"ipv4:{address}") as channel:
        await channel.channel_ready()
        for turns in TURNS:
            asked: list[asyncio.Task[Any]] = []

            async def call_and_wait(asked: Any = asked) -> None:
                call = getattr(channel, kind)(PATH)(b"")
                asked.append(asyncio.create_task(call.code()))
                await wait(call)

            task = asyncio.create_task(call_and_wait())
            for _ in range(turns + 1):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asked[0] is grpc.StatusCode.CANCELLED
        await eventually(lambda: channel.statistics().in_flight == 0)
