"""Clients open health and load streams by the thousand, and keep or reopen them.

Beside a stock server that gets the same frames. It has no health service and ends each
as UNIMPLEMENTED; where streams are held, it has a handler that sends what the client
wants, each stream by itself.
"""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any, NamedTuple

from benchmarks.faults import flooder
from benchmarks.faults.fleet import Tally, Task, drive, fleet, theirs
from benchmarks.faults.flooder import Seen
from benchmarks.faults.row import Result, Row
from benchmarks.faults.task import STREAM
from benchmarks.harness.processes import PATIENCE, Process, running
from lbclient import wire
from lbclient.server.report.streams import REPORTS

CALLS = 25.0  # a second, of the victim
DEADLINE = 1.0  # seconds
MANY, CONNECTIONS = 10_000, 100
HELD = 2000
CHURNING = 200
PER_SECOND = 500.0  # streams, opened by clients that come one after the other
SLACK = 0.05  # of the victim's calls: both servers have a processor to share


class Flood:
    """A process of `benchmarks.faults.flooder`."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def seen(self) -> Seen:
        return Seen(**await self._process.ask())

    async def until(self, condition: Any) -> Seen:
        """Waits for what it wants to see."""
        began_at = monotonic()
        while not condition(seen := await self.seen()):
            assert monotonic() - began_at < PATIENCE, seen
            await asyncio.sleep(0.05)
        return seen


@asynccontextmanager
async def flood(
    task: Task,
    method: str,
    streams: int,
    connections: int,
    rate: float = 0.0,
    interval: float = 0.0,
    churns: bool = False,
) -> AsyncIterator[Flood]:
    told = (task.port, method, streams, connections, rate, interval, churns)
    async with running(flooder.flood, *told) as process:
        await process.hear()
        yield Flood(process)


def processor_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100  # in ticks of USER_HZ


async def share_of_processor(task: Task, seconds: float) -> float:
    used, began_at = processor_seconds(task.process.pid), monotonic()
    await asyncio.sleep(seconds)
    used = processor_seconds(task.process.pid) - used
    return used / (monotonic() - began_at)


class Flooded(NamedTuple):
    """What a victim's calls came to, and what the flooder saw."""

    calls: Tally
    seen: Seen


async def victim_of(
    kind: str, method: str, seconds: float, streams: int, connections: int, **more: Any
) -> Flooded:
    """The victim calls all the while; the streams come after a tenth of that."""
    async with fleet(1, kind) as [task], theirs([task]) as channel:
        await channel.channel_ready()
        calling = asyncio.create_task(drive(channel, CALLS, seconds, DEADLINE))
        await asyncio.sleep(seconds / 10)
        async with flood(task, method, streams, connections, **more) as one:
            tally = await calling
            churns = more.get("churns", False)
            seen = await one.until(lambda now: churns or now.settled() == streams)
            return Flooded(tally, seen)


async def many(
    seconds: float, streams: int = MANY, connections: int = CONNECTIONS,
    method: str = wire.WATCH_METHOD, interval: float = 0.1,
) -> Row:  # fmt: skip
    """As fast as they can be opened, each asking for as many reports as it can get."""
    wanted: dict[str, Any]
    wanted = {"streams": streams, "connections": connections, "interval": interval}
    ours = await victim_of("ours", method, seconds, **wanted)
    stock = await victim_of("stock", method, seconds, **wanted)
    return _row(f"{streams:,} streams on {connections} connections", ours, stock)


async def churn(seconds: float, streams: int = CHURNING) -> Row:
    """Each is closed at its first report, or refusal, and opened again."""
    wanted = {"streams": streams, "connections": streams // 4, "churns": True}
    method = wire.WATCH_METHOD
    ours = await victim_of("ours", method, seconds, **wanted)
    stock = await victim_of("stock", method, seconds, **wanted)
    return _row(f"{streams} streams closed and opened without end", ours, stock)


def _row(fault: str, ours: Flooded, stock: Flooded) -> Row:
    refused = {name: n for name, n in ours.seen.ended.items() if name != "OK"}
    said = f"{ours.seen.opened} opened, {ours.seen.held} held, ended: {refused}"
    calls, failed = len(ours.calls), len(ours.calls.failed())
    their_calls, their_failed = len(stock.calls), len(stock.calls.failed())
    return Row(
        fault,
        "another client's calls fare as with a stock server that refuses all",
        Result(calls, failed, said=said),
        Result(their_calls, their_failed, said=f"{stock.seen.opened} opened"),
        failed / calls <= their_failed / their_calls + SLACK,
    )


async def held(
    seconds: float,
    streams: int = HELD,
    method: str = wire.WATCH_METHOD,
    connections: int = 0,
) -> Row:
    """What they cost while nothing happens, and whether all hear of a lame duck."""
    connections = connections or streams // 4
    async with (
        fleet(1, "ours") as [task],
        flood(task, method, streams, connections, PER_SECOND) as one,
    ):
        seen = await one.until(lambda seen: seen.opened == streams)
        await one.until(lambda now: now.settled() == streams)
        before, began_at = await one.seen(), monotonic()
        ours = await share_of_processor(task, seconds)
        after = await one.seen()
        reports = (after.reports - before.reports) / (monotonic() - began_at)
        held = after.held
        task.signal(signal.SIGTERM)
        seen = await one.until(lambda seen: seen.leaving >= held)
    async with (
        fleet(1, "stock", latency=1.0) as [task],
        flood(task, STREAM, streams, connections, PER_SECOND) as one,
    ):
        await one.until(lambda now: now.settled() == streams)
        stock = await share_of_processor(task, seconds)
    return Row(
        f"{streams:,} streams are held",
        "their reports are bounded, and all of them hear of a lame duck",
        Result(
            streams,
            streams - seen.leaving,
            said=f"{ours:.1%} of a processor, {reports:.0f} reports/s; a stock server"
            f" that reports to each once a second: {stock:.1%}",
        ),
        None,
        reports <= REPORTS * 1.2 and ours < stock and seen.leaving == streams,
    )


async def run(seconds: float) -> list[Row]:
    return [await many(seconds), await churn(seconds), await held(seconds / 2)]
