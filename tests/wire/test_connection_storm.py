"""Everybody connects at once, and who was there before does not notice.

As after an outage of the network, or when all clients of a job are restarted together.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import search_pb2_grpc as pb_grpc

import lbclient
from tests.ports import HOST
from tests.waiting import eventually
from tests.wire.rollout.fleet import (
    LOOKS,
    Fleet,
    Load,
    are_ready,
    ask,
)

RATE = 200.0  # calls a second of the client that was there before
CONNECTIONS = 500
CLIENTS = 50

# RFC 9113, section 3.4: what a client begins with; its settings may be empty.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])

Storm = Callable[[int], Awaitable[None]]


async def bare_connections(port: int) -> None:
    """Until each has been greeted by the server."""

    async def connect() -> None:
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(PREFACE + SETTINGS)
        length_and_type = await reader.readexactly(4)
        assert length_and_type[3] == SETTINGS[3]
        writers.append(writer)

    writers: list[asyncio.StreamWriter] = []
    await asyncio.gather(*(connect() for _ in range(CONNECTIONS)))
    for writer in writers:
        writer.close()
        await writer.wait_closed()


async def clients_of_ours(port: int) -> None:
    """Until each has been answered."""
    async with AsyncExitStack() as stack:
        stubs: list[Any] = []
        for _ in range(CLIENTS):
            channel = lbclient.insecure_channel(f"ipv4:{HOST}:{port}")
            stubs.append(pb_grpc.SearchStub(await stack.enter_async_context(channel)))
        await asyncio.gather(*map(ask, stubs))


@pytest.mark.parametrize("storm", [bare_connections, clients_of_ours])
async def test_a_connection_storm_costs_no_call(storm: Storm) -> None:
    async with (
        Fleet(1) as fleet,
        lbclient.insecure_channel(fleet.target()) as channel,
        asyncio.TaskGroup() as group,
    ):
        await eventually(lambda: are_ready([channel]), turns=LOOKS)
        load = Load([channel], RATE)
        group.create_task(load.run())
        await eventually(lambda: load.answered, turns=LOOKS)
        before = load.begun
        await storm(fleet.tasks[0].port)
        during = load.begun - before
        await eventually(lambda: load.begun - before > RATE, turns=LOOKS)
        load.end()
    print(  # noqa: T201  # for those who ask, by pytest -s
        f"\n{during} calls during the storm, {load.begun - before} with those after it"
    )
    assert (load.failures, load.answered) == ([], load.begun)
