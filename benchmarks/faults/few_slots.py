"""Servers with few streams on a connection, or few threads, beneath health checks."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

import lbclient
from benchmarks.faults import slot_server
from benchmarks.faults.fleet import HOST, ROUND_ROBIN, Tally, drive
from benchmarks.faults.row import Result, Row
from benchmarks.harness.processes import running

# What `slot_server` is started with, and how many channels call it. With two slots the
# calls use no more than one at a time, or plain grpc.aio would be late, too.
CASES = {
    "1 stream, stock": ("aio", 1, "plain", 1),
    "1 stream, stock with health": ("aio", 1, "health", 1),
    "1 stream, stock with ORCA": ("aio", 1, "orca", 1),
    "1 stream, stock with both": ("aio", 1, "both", 1),
    "2 streams, stock with health": ("aio", 2, "health", 1),
    "2 streams, stock with both": ("aio", 2, "both", 1),
    "1 stream, ours": ("ours", 1, "plain", 1),
    "2 streams, ours": ("ours", 2, "plain", 1),
    "10 threads, a Watch holds one": ("sync", 10, "health", 10),
    "10 threads, a Watch holds one for 1 s more": ("sync", 10, "late", 10),
}
RATE = 25.0  # calls a second, of all channels
TIMEOUT = 1.0  # seconds


@asynccontextmanager
async def server(kind: str, size: int, offers: str) -> AsyncIterator[str]:
    """The address of a server in a process of its own."""
    async with running(slot_server.serve, kind, size, offers) as process:
        yield f"{HOST}:{await process.hear()}"


async def load(channels: list[grpc.aio.Channel], seconds: float) -> Tally:
    rate = RATE / len(channels)
    tallies = await asyncio.gather(
        *(drive(channel, rate, seconds, TIMEOUT) for channel in channels)
    )
    for channel in channels:
        await channel.close()
    return Tally(call for tally in tallies for call in tally)


async def compare(name: str, seconds: float, **settings: str) -> tuple[Tally, Tally]:
    """The calls of our channels, and those of as many of grpc.aio's."""
    kind, size, offers, count = CASES[name]
    config = lbclient.ChannelConfig(**settings)  # type: ignore[arg-type]
    async with server(kind, size, offers) as address:
        mine: list[grpc.aio.Channel] = [
            lbclient.insecure_channel(f"ipv4:{address}", config=config)
            for _ in range(count)
        ]
        ours = await load(mine, seconds)
    async with server(kind, size, offers) as address:
        # Equal channels of grpc.aio share one connection.
        own = [*ROUND_ROBIN, ("grpc.use_local_subchannel_pool", 1)]
        plain = [
            grpc.aio.insecure_channel(f"ipv4:{address}", options=own)
            for _ in range(count)
        ]
        theirs = await load(plain, seconds)
    return ours, theirs


async def run(seconds: float) -> list[Row]:
    rows = []
    for name in CASES:
        ours, theirs = await compare(name, seconds / 2)
        rows.append(
            Row(
                f"health streams and few slots: {name}",
                "no call fails where none of grpc.aio's does",
                Result(len(ours), len(ours.failed())),
                Result(len(theirs), len(theirs.failed())),
                holds=len(ours.failed()) <= len(theirs.failed()),
            )
        )
    return rows
