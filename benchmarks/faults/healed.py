"""A network that loses every packet to every backend, and then heals.

In network namespaces, so for root alone.
"""

import asyncio
from time import monotonic

from benchmarks.faults.fleet import SERVERS
from benchmarks.faults.network import Caller, far_fleet, network
from benchmarks.faults.network import caller as calling
from benchmarks.faults.row import Result, Row
from benchmarks.harness.processes import PATIENCE

COUNT, RATE, TIMEOUT = 3, 50.0, 1.0


async def first_good(caller: Caller, healed_at: float, most: float) -> float | None:
    """Seconds from the healing; None: not within `most`."""
    while monotonic() < healed_at + most:
        after = (await caller.tally()).first_good_after(healed_at)
        if after is not None:
            return after
        await asyncio.sleep(0.2)
    return None


async def healed(kind: str, seconds: float) -> Row:
    """The partition lasts twice as long as a load does elsewhere."""
    with network() as net:
        async with far_fleet(net, COUNT, kind) as tasks:
            target = "ipv4:" + ",".join(task.address for task in tasks)
            told = {
                "target": target,
                "rate": RATE,
                "timeout": TIMEOUT,
                "backends": COUNT,
            }
            async with (
                calling(net, client="ours", **told) as mine,
                calling(net, client="theirs", **told) as other,
            ):
                addresses = [task.address for task in tasks]
                net.lose(addresses)
                await asyncio.sleep(2 * seconds)
                said = await mine.states()
                net.lose(addresses, "del")
                healed_at = monotonic()
                took, took_there = await asyncio.gather(
                    first_good(mine, healed_at, PATIENCE),
                    first_good(other, healed_at, max(seconds, 10.0)),
                )
                tally, there = await mine.tally(), await other.tally()
    return Row(
        fault=f"a partition of {2 * seconds:.0f} s from all backends, {SERVERS[kind]}",
        promise="answers within 5 s of the healing",
        ours=Result(len(tally), len(tally.failed()), took, said),
        theirs=Result(len(there), len(there.failed()), took_there),
        holds=took is not None and took < 5.0,
    )


async def run(seconds: float) -> list[Row]:
    return [await healed(kind, seconds) for kind in ("ours", "stock")]
