"""Connections that carry nothing any more, and say so to nobody.

New connections work. Of one backend of three, then of all three.
"""

import asyncio
from time import monotonic

import grpc

from benchmarks.faults.fleet import SERVERS, Tally, drive, fleet, ours, states, theirs
from benchmarks.faults.link import links
from benchmarks.faults.row import Result, Row
from benchmarks.harness.load import until
from benchmarks.harness.processes import PATIENCE
from lbclient.core.backends.call_answers import MISSES

COUNT, RATE, TIMEOUT, INTERVAL = 3, 60.0, 1.0, 1.0

# What is sent until the first of these calls has missed its deadline, twice over, and
# what it then takes to doubt the backend.
MOST_FAILED = round(2 * RATE * TIMEOUT / COUNT) + MISSES


async def some(channel: grpc.aio.Channel, seconds: float) -> Tally:
    return await drive(channel, RATE, seconds, TIMEOUT)


async def until_well(channel: grpc.aio.Channel, least: float, most: float) -> Tally:
    """Calls for `least` seconds, and then until all of a second are answered."""
    began_at, tally = monotonic(), Tally()
    while True:
        last = await some(channel, 1.0)
        tally += last
        elapsed = monotonic() - began_at
        if elapsed >= most or (elapsed >= least and not last.failed()):
            return tally


def result(tally: Tally, moment: float, said: str = "") -> Result:
    return Result(len(tally), len(tally.failed()), tally.first_good_after(moment), said)


async def half_open(kind: str, stalled: int, seconds: float) -> Row:
    async with (
        fleet(COUNT, kind) as tasks,
        links(tasks) as mine,
        links(tasks) as other,
        # By turns, as the control does: other pickers avoid who does not answer.
        ours(mine, health_interval=INTERVAL, picker="round_robin") as channel,
        theirs(other) as control,
    ):
        await asyncio.gather(some(channel, 2.0), some(control, 2.0))
        for link in (*mine[:stalled], *other[:stalled]):
            link.stall()
        began_at = monotonic()
        good, bad = await asyncio.gather(
            until_well(channel, seconds, PATIENCE),
            until_well(control, seconds, seconds),
        )
        await until(lambda: all(link.dials > 1 for link in mine[:stalled]))
        dials = [link.dials for link in mine[:stalled]]
        said = f"{dials} connections; {states(channel)}"
    who = "one of three backends" if stalled == 1 else "all three backends"
    if stalled == 1:
        promise = f"at most {MOST_FAILED} failed calls"
        holds = len(good.failed()) <= MOST_FAILED
    else:
        promise = "well again without the end of a TCP connection"
        holds = not good.since(good[-1].sent_at - 0.5).failed()
    return Row(
        fault=f"half-open connections to {who}, {SERVERS[kind]}",
        promise=promise,
        ours=result(good, began_at, said),
        theirs=result(bad, began_at),
        holds=holds,
    )


async def run(seconds: float) -> list[Row]:
    return [
        await half_open(kind, stalled, seconds)
        for kind in ("ours", "stock")
        for stalled in (1, COUNT)
    ]
