"""A machine that is gone without a word, after the resolver has dropped its backend.

Calls without a deadline are in flight on it. In network namespaces, so for root alone.
"""

import asyncio
import json
import tempfile
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.faults.fleet import SERVERS, Tally
from benchmarks.faults.network import Caller, far_fleet, network
from benchmarks.faults.network import caller as calling
from benchmarks.faults.row import Result, Row
from benchmarks.harness.processes import PATIENCE

HELD = 4  # on two backends, by turns
FOREVER = 3600.0
SHORT = 10.0  # seconds; with less than these, all times in question are shorter

# The long form waits for the defaults: up to 30 s until the next question, then 60 s.
MOST = 120.0


def listed(path: Path, *addresses: str) -> None:
    other = path.with_suffix(".new")
    other.write_text(json.dumps([{"targets": addresses}]))
    other.replace(path)


async def dropped(caller: Caller, address: str) -> None:
    async with asyncio.timeout(PATIENCE):
        said = address
        while address in said:
            said = await caller.states()
            await asyncio.sleep(0.05)


async def ended(caller: Caller, count: int, most: float) -> tuple[Tally, float]:
    began_at = monotonic()
    while True:
        tally, elapsed = await caller.tally(), monotonic() - began_at
        if len(tally) >= count or elapsed > most:
            return tally, elapsed
        await asyncio.sleep(0.2)


async def vanished(kind: str, seconds: float) -> Row:
    told: dict[str, Any] = {"held": HELD, "backends": 2}
    quick: dict[str, Any] = {}
    if seconds < SHORT:
        quick["replaced_period"] = 1.0
        quick["options"] = [
            ("grpc.keepalive_time_ms", 330_000),
            (
                "grpc.keepalive_timeout_ms",
                3000,
            ),  # for what is sent and not acknowledged
        ]
    with network() as net, tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "backends.json")
        async with far_fleet(net, 2, kind, latency=FOREVER) as tasks:
            gone, stays = (task.address for task in tasks)
            listed(path, gone, stays)
            settings = {"picker": "round_robin", "health_interval": 1.0}
            async with (
                calling(net, client="ours", target=f"file://{path}", settings=settings,
                        **told, **quick) as mine,
                calling(net, client="theirs", target=f"ipv4:{gone},{stays}",
                        **told) as other,
            ):  # fmt: skip
                listed(path, stays)
                await dropped(mine, gone)
                net.lose([gone])
                tally, took = await ended(mine, HELD // 2, MOST)
                await asyncio.sleep(1.0)
                tally, there = await mine.tally(), await other.tally()
    are_true = {call.status for call in tally} == {"UNAVAILABLE"}
    said = tally[0].words if tally else "nothing"
    lost = HELD // 2
    return Row(
        fault=f"calls that wait for a drained machine that is gone, {SERVERS[kind]}",
        promise="they end, as UNAVAILABLE, and no others; failed are those that do not",
        ours=Result(lost, max(0, lost - len(tally)), took, said),
        theirs=Result(lost, max(0, lost - len(there))),
        holds=len(tally) == lost and are_true,
    )


async def run(seconds: float) -> list[Row]:
    return [await vanished(kind, seconds) for kind in ("ours", "stock")]
