"""Stock channels make thousands of calls at the same moment, as `asyncio.gather` does.

gRPC's core ends requests that wait for too many others, before Python has seen them.
"""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack

import grpc

from benchmarks.faults.fleet import NOTHING, Tally, fleet, send_one
from benchmarks.faults.row import Result, Row

CALLS = (1000, 2000)
CHANNELS = 8
DEADLINE = 20.0  # seconds


async def burst(
    kind: str, calls: int, environment: Mapping[str, str] = NOTHING
) -> Tally:
    # Equal channels of grpc.aio share one connection.
    own = [("grpc.use_local_subchannel_pool", 1)]
    tally = Tally()
    async with fleet(1, kind, environment) as [task], AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(
                grpc.aio.insecure_channel(task.address, options=own)
            )
            for _ in range(CHANNELS)
        ]
        for channel in channels:
            await channel.channel_ready()
        await send_one(channels[0], Tally(), DEADLINE)
        await asyncio.sleep(0.5)  # the burst does not come while the server starts
        sent = (
            send_one(channels[number % CHANNELS], tally, DEADLINE)
            for number in range(calls)
        )
        await asyncio.gather(*sent)
    return tally


async def compare(calls: int) -> Row:
    ours, theirs = await burst("ours", calls), await burst("stock", calls)
    return Row(
        f"{calls:,} calls at once",
        "no more are lost than of a stock server",
        Result(len(ours), len(ours.failed()), said=str(dict(ours.by_ending()))),
        Result(len(theirs), len(theirs.failed())),
        holds=len(ours.failed()) <= len(theirs.failed()),
    )


async def run(_seconds: float) -> list[Row]:
    return [await compare(calls) for calls in CALLS]
