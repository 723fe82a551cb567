"""Connections on which nothing arrives after the server's SETTINGS.

So it is behind a firewall that loses what follows. First of one backend of three, from
the client's start; then of all, and then the hole is gone.
"""

import asyncio
from time import monotonic

from benchmarks.faults.fleet import SERVERS, fleet, ours, states, theirs
from benchmarks.faults.half_open import INTERVAL, result, some, until_well
from benchmarks.faults.link import links
from benchmarks.faults.row import Result, Row
from benchmarks.harness.load import until
from benchmarks.harness.processes import PATIENCE

COUNT = 3


async def one_of_three(kind: str, seconds: float) -> Row:
    """Calls go to the others; it is looked at, and comes back."""
    async with fleet(COUNT, kind) as tasks, links(tasks) as mine, links(tasks) as other:
        mine[0].is_mute = other[0].is_mute = True
        async with (
            ours(mine, health_interval=INTERVAL) as channel,
            theirs(other) as control,
        ):
            good, bad = await asyncio.gather(
                some(channel, seconds), some(control, seconds)
            )

            def state() -> str:
                backends = channel.statistics().backends
                return next(b.state for b in backends if b.address == mine[0].address)

            await until(lambda: mine[0].dials > 1, lambda: states(channel))
            said, dials = states(channel), mine[0].dials
            mine[0].is_mute = False
            took = await until(lambda: state() == "ready", lambda: states(channel))
            after = await some(channel, 1.0)
    return Row(
        fault=f"one of three backends is silent after SETTINGS, {SERVERS[kind]}",
        promise="no failed call; connected again, and back",
        ours=Result(
            len(good), len(good.failed()), took, f"{dials} connections; {said}"
        ),
        theirs=Result(len(bad), len(bad.failed())),
        holds=not good.failed() and not after.failed(),
    )


async def all_of_three(kind: str, seconds: float) -> Row:
    """They refuse, which ends calls early, and come back."""
    async with fleet(COUNT, kind) as tasks, links(tasks) as mine, links(tasks) as other:
        for link in (*mine, *other):
            link.is_mute = True
        async with (
            ours(mine, health_interval=INTERVAL) as channel,
            theirs(other) as control,
        ):
            lost, lost_there = await asyncio.gather(
                some(channel, seconds), some(control, seconds)
            )
            await until(lambda: all(link.dials > 1 for link in mine))
            said = states(channel)
            for link in (*mine, *other):
                link.is_mute = False
            healed_at = monotonic()
            good, bad = await asyncio.gather(
                until_well(channel, 1.0, PATIENCE),
                until_well(control, seconds, seconds),
            )
    lost += good
    lost_there += bad
    return Row(
        fault=f"all three backends are silent after SETTINGS, {SERVERS[kind]}",
        promise="connected again, and back soon after the hole is gone",
        ours=result(lost, healed_at, said),
        theirs=result(lost_there, healed_at),
        holds=good.first_good_after(healed_at) is not None,
    )


async def run(seconds: float) -> list[Row]:
    rows = []
    for kind in ("ours", "stock"):
        rows.append(await one_of_three(kind, seconds))
        rows.append(await all_of_three(kind, seconds))
    return rows
