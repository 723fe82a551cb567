"""Clients open health and load streams by the thousand, and keep or reopen them.

Beside a stock server that gets the same frames. It has no health service and ends each
as UNIMPLEMENTED; where streams are held, it has a handler that sends what the client
wants, each stream by itself.
"""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from time import monotonic
from typing import Any, NamedTuple

from benchmarks.faults import flooder
from benchmarks.faults.fleet import (
    NO_SHEDDING,
    Tally,
    Task,
    drive,
    fleet,
    theirs,
)
from benchmarks.faults.flooder import Seen
from benchmarks.faults.row import Result, Row
from benchmarks.faults.task import STREAM
from benchmarks.harness.processes import PATIENCE, Process, running
from benchmarks.overload.neighbours import burner
from lbclient import wire
from lbclient.server.report.streams import REPORTS

CALLS = 25.0  # a second, of the victim
DEADLINE = 1.0  # seconds
MANY, CONNECTIONS = 10_000, 100
HELD = 2000
CHURNING = 200
PER_SECOND = 500.0  # streams, opened by clients that come one after the other
ROUNDS = 3  # at most, of a comparison
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


class Flooded(NamedTuple):
    """What a victim's calls came to, and what the flooder saw."""

    calls: Tally
    seen: Seen


async def victim_of(
    kind: str,
    method: str,
    seconds: float,
    streams: int,
    connections: int,
    deadline: float = DEADLINE,
    **more: Any,
) -> Flooded:
    """The victim calls all the while; the streams come after a tenth of that."""
    async with fleet(1, kind) as [task], theirs([task]) as channel:
        await channel.channel_ready()
        calling = asyncio.create_task(drive(channel, CALLS, seconds, deadline))
        await asyncio.sleep(seconds / 10)
        async with flood(task, method, streams, connections, **more) as one:
            tally = await calling
            churns = more.get("churns", False)
            seen = await one.until(lambda now: churns or now.settled() == streams)
            return Flooded(tally, seen)


async def many(
    seconds: float, streams: int = MANY, connections: int = CONNECTIONS,
    method: str = wire.WATCH_METHOD, interval: float = 0.1, deadline: float = DEADLINE,
) -> Row:  # fmt: skip
    """As fast as they can be opened, each asking for as many reports as it can get."""
    fault = f"{streams:,} streams on {connections} connections"
    wanted = {
        "streams": streams, "connections": connections, "interval": interval,
        "deadline": deadline,
    }  # fmt: skip
    return await _compared(fault, method, seconds, wanted)


async def churn(seconds: float, streams: int = CHURNING) -> Row:
    """Each is closed at its first report, or refusal, and opened again."""
    fault = f"{streams} streams closed and opened without end"
    wanted = {"streams": streams, "connections": streams // 4, "churns": True}
    return await _compared(fault, wire.WATCH_METHOD, seconds, wanted)


async def churn_beside(seconds: float) -> Row:
    async with burner():
        row = await churn(seconds)
    return replace(row, variant="beside a process that burns a core")


async def _compared(
    fault: str, method: str, seconds: float, wanted: dict[str, Any]
) -> Row:
    """Judges by all rounds together. One is enough where the promise is kept; in a
    single one, whatever else the machine did meanwhile may decide."""
    ours: list[Flooded] = []
    stock: list[Flooded] = []
    for _ in range(ROUNDS):
        ours.append(await victim_of("ours", method, seconds, **wanted))
        stock.append(await victim_of("stock", method, seconds, **wanted))
        row = _row(fault, ours, stock)
        if row.holds:
            break
    return row


def _row(fault: str, ours: list[Flooded], stock: list[Flooded]) -> Row:
    mine, their = (_all_calls(flooded) for flooded in (ours, stock))
    seen = ours[-1].seen
    refused = {name: n for name, n in seen.ended.items() if name != "OK"}
    said = f"{seen.opened} opened, {seen.held} held, ended: {refused}"
    calls, failed = len(mine), len(mine.failed())
    their_calls, their_failed = len(their), len(their.failed())
    if failed:
        said += f"; calls failed with {dict(mine.failed().by_ending())}"
    return Row(
        fault,
        "another client's calls fare as with a stock server that refuses all",
        Result(calls, failed, said=said),
        Result(their_calls, their_failed, said=f"{stock[-1].seen.opened} opened"),
        failed / calls <= their_failed / their_calls + SLACK,
    )


def _all_calls(flooded: list[Flooded]) -> Tally:
    return Tally(call for one in flooded for call in one.calls)


class Cost(NamedTuple):
    """What a task had used, and a flood had read of it, at some moment."""

    at: float
    used: float  # processor seconds
    reports: int

    @classmethod
    async def of(cls, task: Task, one: Flood) -> "Cost":
        seen = await one.seen()
        return cls(monotonic(), processor_seconds(task.process.pid), seen.reports)

    def a_second(self, since: "Cost") -> tuple[float, float]:
        """The share of a processor and the reports."""
        lasted = self.at - since.at
        reports = self.reports - since.reports
        return (self.used - since.used) / lasted, reports / lasted


async def held(
    seconds: float,
    streams: int = HELD,
    method: str = wire.WATCH_METHOD,
    connections: int = 0,
) -> Row:
    """What they cost while nothing happens, and whether all hear of a lame duck."""
    connections = connections or streams // 4
    wanted = streams, connections, PER_SECOND
    async with (
        fleet(1, "ours", NO_SHEDDING) as [task],
        fleet(1, "stock", latency=1.0) as [other],
        flood(task, method, *wanted) as one,
        flood(other, STREAM, *wanted) as another,
    ):
        for each in (one, another):
            await each.until(lambda now: now.settled() == streams)
        # Both at once: what else the machine does changes both. For longer where it
        # leaves the two alike.
        pairs = (task, one), (other, another)
        since = [await Cost.of(*pair) for pair in pairs]
        for _ in range(ROUNDS):
            await asyncio.sleep(seconds)
            now = [await Cost.of(*pair) for pair in pairs]
            ours, reports = now[0].a_second(since[0])
            stock, their_reports = now[1].a_second(since[1])
            # On a busy machine it sends fewer.
            stock *= streams / max(1.0, their_reports)
            if ours < stock:
                break
        held = (await one.seen()).held
        task.signal(signal.SIGTERM)
        seen = await one.until(lambda seen: seen.leaving >= held)
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
    return [
        await many(seconds),
        await churn(seconds),
        await churn_beside(seconds),
        await held(seconds / 2),
    ]
