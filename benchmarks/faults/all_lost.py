"""All of a large fleet lost in one moment, and back again.

One process is `BACKENDS` backends, on as many ports, and is killed under load; so all
connections end at once. The client's loop must go on turning: the longest turn of its
event loop is told, in CPU time, without garbage collections.
"""

import asyncio
import signal
from collections.abc import Callable
from dataclasses import replace
from time import monotonic, thread_time

import grpc

from benchmarks.crowd import MOST, MOST_FOR, Probe
from benchmarks.faults.fleet import Tally, Task, drive, ours, theirs
from benchmarks.faults.row import Result, Row
from benchmarks.harness.load import until
from benchmarks.harness.processes import PATIENCE
from tests.ports import free_ports

BACKENDS = 250
RATE = 50.0  # calls a second
FAULT = "all backends lost in one moment"


async def one(
    channel: grpc.aio.Channel, task: Task, seconds: float, probe: Probe
) -> tuple[Tally, float]:
    """The calls, and when the backends were back."""
    begun = await drive(channel, RATE, seconds / 4)
    loading = asyncio.create_task(drive(channel, RATE, seconds / 2))
    with probe:
        await asyncio.sleep(seconds / 8)
        task.signal(signal.SIGKILL)
        await task.wait()
        begun += await loading
    await task.start()
    back_at = monotonic()
    begun += await drive(channel, RATE, seconds / 2)
    return begun, back_at


async def run(seconds: float) -> list[Row]:
    mine, plain, longest = await measure(seconds, BACKENDS, thread_time)
    mine = replace(mine, said=f"longest iteration {longest * 1000:.1f} ms; {mine.said}")
    promise = (
        f"no event-loop iteration takes {MOST * 1000:.0f} ms with up to {MOST_FOR:,}"
        " backends"
    )
    holds = mine.recovered_after is not None and longest <= MOST
    return [Row(FAULT, promise, mine, plain, holds)]


async def measure(
    seconds: float, backends: int, clock: Callable[[], float]
) -> tuple[Result, Result, float]:
    """Ours, grpc.aio's, and our longest turn while all were lost, by `clock`."""
    task, probe = Task("ours", *free_ports(backends)), Probe(clock)
    await task.start()
    try:
        async with ours([task], subset="whole") as channel:
            pool = channel.balancer().pool
            await until(lambda: len(pool.ready) == backends, lambda: repr(pool))
            tally, back_at = await one(channel, task, seconds, probe)
            await until(lambda: len(pool.ready) == backends, lambda: repr(pool))
            recovered = tally.first_good_after(back_at)
            said = f"{pool!r}, {channel.statistics().task_failures} task failures"
            mine = Result(len(tally), len(tally.failed()), recovered, said)
        async with theirs([task]) as other:
            await asyncio.wait_for(other.channel_ready(), PATIENCE)
            tally, back_at = await one(other, task, seconds, Probe(clock))
            recovered = tally.first_good_after(back_at)
            plain = Result(len(tally), len(tally.failed()), recovered)
    finally:
        await task.close()
    return mine, plain, probe.longest
