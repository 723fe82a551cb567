"""Soak: one channel, real processes, random faults; what the channel holds stays flat.

    python -m benchmarks.soak                         twenty minutes
    python -m benchmarks.soak --minutes 1 --seed 7    other faults
    python -m benchmarks.soak --client theirs         a channel of grpc.aio, to compare

Servers in processes of their own are killed, stopped and continued, drained, made slow
or made to fail, by a seed. Calls of all kinds go on meanwhile. After each round of
faults everything is healed and nothing is called: then tasks, descriptors, calls in
flight and connections must be what they were after the first round. Memory is told for
call. It grows with a channel of grpc.aio's, too, where calls are cancelled and servers
killed, and may grow by `GROWTH`, or `EACH` for each call.
"""

import asyncio
import gc
import os
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import grpc

import lbclient
from benchmarks.faults.fleet import NO_SHEDDING, Task, fleet, ours, theirs
from benchmarks.faults.task import METHOD, STREAM
from benchmarks.harness.load import until
from benchmarks.harness.options import exit_with, parser_of

SERVERS = 4
ROUND = 8.0  # seconds of faults
RATE = 60.0  # calls a second
FAULT_EVERY = 1.0  # seconds
GROWTH = 0.15  # of memory, from the second round to the last
EACH = 800  # bytes of memory for each call; with grpc.aio's own channel some 500
FREE = 3  # descriptors and tasks more than after the first round


def resident() -> int:
    """Bytes of memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@dataclass(frozen=True)
class Rest:
    """What the process holds while nothing is called."""

    memory: int
    tasks: int
    descriptors: int
    in_flight: int
    draining: int
    calls: int  # until then

    def __str__(self) -> str:
        return (
            f"{self.memory / 1e6:6.1f} MB | {self.tasks:3} tasks |"
            f" {self.descriptors:3} descriptors | {self.in_flight} in flight |"
            f" {self.draining} draining"
        )


@dataclass
class Ends:
    """How calls ended; `odd` are ends that no call may have."""

    by_status: Counter[str] = field(default_factory=Counter)
    odd: Counter[str] = field(default_factory=Counter)


class Soak:
    def __init__(self, tasks: list[Task], channel: grpc.aio.Channel, seed: int) -> None:
        self._tasks = tasks
        self._channel = channel
        self._ours = channel if isinstance(channel, lbclient.Channel) else None
        self._rng = Random(seed)
        self.ends = Ends()
        self.faults: Counter[str] = Counter()
        self.rests: list[Rest] = []

    # --- calls -------------------------------------------------------------------

    async def _call(self) -> None:
        kind = self._rng.choice(("unary", "unary", "cancelled", "stream", "dropped"))
        timeout = self._rng.choice((0.05, 0.5, 2.0))
        status = "OK"
        try:
            await getattr(self, f"_{kind}")(timeout)
        except grpc.aio.AioRpcError as error:
            status = error.code().name
        except asyncio.CancelledError:
            status = "cancelled"
            if kind != "cancelled":
                self.ends.odd["CancelledError for who did not cancel"] += 1
        except BaseException as error:
            self.ends.odd[repr(error)] += 1
        self.ends.by_status[status] += 1

    async def _unary(self, timeout: float) -> None:
        method: Any = self._channel.unary_unary(METHOD)
        request = b"x" * self._rng.choice((10, 50_000))
        if await method(request, timeout=timeout) != request:
            raise AssertionError("another answer than the request")

    async def _cancelled(self, timeout: float) -> None:
        method: Any = self._channel.unary_unary(METHOD)
        call = method(b"x", timeout=timeout)
        loop = asyncio.get_running_loop()
        loop.call_later(self._rng.uniform(0.0, 0.02), call.cancel)
        await call

    async def _stream(self, timeout: float) -> None:
        """It is for ever, so it ends by its deadline, or with its server."""
        method: Any = self._channel.unary_stream(STREAM)
        async for _ in method(b"x", timeout=min(timeout, 0.5)):
            pass

    async def _dropped(self, timeout: float) -> None:
        method: Any = self._channel.unary_stream(STREAM)
        async for _ in method(b"x", timeout=timeout):
            return

    async def _load(self) -> None:
        async with asyncio.TaskGroup() as calls:
            end = time.monotonic() + ROUND
            while time.monotonic() < end:
                calls.create_task(self._call())
                await asyncio.sleep(self._rng.expovariate(RATE))

    # --- faults ------------------------------------------------------------------

    async def _break(self) -> None:
        end = time.monotonic() + ROUND - 2.0
        while time.monotonic() < end:
            await asyncio.sleep(self._rng.expovariate(1 / FAULT_EVERY))
            kind = self._rng.choice(("kill", "drain", "freeze", "slow", "fail"))
            task = self._rng.choice(self._tasks)
            self.faults[kind] += 1
            await getattr(self, f"_{kind}")(task)

    async def _kill(self, task: Task) -> None:
        task.signal(signal.SIGKILL)
        await self._again(task)

    async def _drain(self, task: Task) -> None:
        task.signal(signal.SIGTERM)
        await self._again(task)

    async def _again(self, task: Task) -> None:
        await task.wait()
        await task.close()
        await task.start()

    async def _freeze(self, task: Task) -> None:
        task.signal(signal.SIGSTOP)
        await asyncio.sleep(self._rng.uniform(0.1, 3.0))
        task.signal(signal.SIGCONT)

    async def _slow(self, task: Task) -> None:
        await task.behave(latency=0.3)

    async def _fail(self, task: Task) -> None:
        await task.behave(status="INTERNAL", share=0.5)

    # --- rounds ------------------------------------------------------------------

    async def round(self) -> None:
        await asyncio.gather(self._load(), self._break())
        for task in self._tasks:
            await task.behave()
        await self._rest()

    async def _rest(self) -> None:
        """Until all backends are ready and nothing is in flight."""
        channel = self._ours

        def is_well() -> bool:
            if channel is None:
                return True  # all calls have ended
            known = channel.statistics()
            states = [backend.state for backend in known.backends]
            quiet = not (known.in_flight or known.waiting or known.draining)
            return states == ["ready"] * len(self._tasks) and quiet

        await until(is_well, lambda: channel and channel.statistics())
        # A stream that is dropped ends by its deadline, with grpc.aio.
        await asyncio.sleep(0.5 if channel is not None else 2.5)
        gc.collect()
        in_flight = draining = 0
        if channel is not None:
            known = channel.statistics()
            in_flight, draining = known.in_flight, known.draining
        held = resident(), len(asyncio.all_tasks()), descriptors()
        self.rests.append(Rest(*held, in_flight, draining, self.ends.by_status.total()))

    def _warm(self) -> Rest:
        """The first rounds fill caches and pools of gRPC's threads."""
        return self.rests[min(1, len(self.rests) - 1)]

    def growth(self) -> str:
        """Of memory, for each call."""
        start, last = self._warm(), self.rests[-1]
        calls = max(1, last.calls - start.calls)
        each = (last.memory - start.memory) / calls
        return f"memory: {each:.0f} bytes more for each of {calls:,} calls"

    def flaws(self) -> list[str]:
        """What was not flat, and ends that no call may have."""
        first, last = self.rests[0], self.rests[-1]
        found = [f"{count} calls: {what}" for what, count in self.ends.odd.items()]
        for name in ("tasks", "descriptors"):
            before, after = getattr(first, name), getattr(last, name)
            if after > before + FREE:
                found.append(f"{name}: {before} after the first round, then {after}")
        start = self._warm()
        calls = last.calls - start.calls
        most = max(GROWTH * start.memory, EACH * calls)
        if len(self.rests) > 2 and last.memory > start.memory + most:
            found.append(self.growth())
        if self._ours is None:
            return found
        statistics = self._ours.statistics()
        counted, ended = sum(statistics.calls.values()), self.ends.by_status.total()
        if counted != ended:
            found.append(f"{counted} calls are counted, {ended} ended")
        if statistics.task_failures:
            found.append(f"{statistics.task_failures} background tasks failed")
        return found


async def soak(minutes: float, seed: int, client: str = "ours") -> list[str]:
    """Runs rounds for so long; returns what was wrong."""
    end = time.monotonic() + minutes * 60
    async with fleet(SERVERS, "ours", NO_SHEDDING) as tasks:
        made: grpc.aio.Channel = theirs(tasks)
        if client == "ours":
            made = ours(tasks, idempotent=(METHOD,), idle_after=0.0)
        async with made as channel:
            await channel.channel_ready()
            running = Soak(tasks, channel, seed)
            while True:
                await running.round()
                print(f"round {len(running.rests):3} | {running.rests[-1]}", flush=True)
                if time.monotonic() >= end:
                    break
            flaws = running.flaws()
        print(f"faults: {dict(running.faults)}; calls: {dict(running.ends.by_status)}")
        print(running.growth())
    for flaw in flaws:
        print(f"NOT FLAT: {flaw}")
    return flaws


def main() -> int:
    parser = parser_of("soak", __doc__, json=False)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--client", choices=("ours", "theirs"), default="ours")
    asked = parser.parse_args()
    flaws = asyncio.run(soak(asked.minutes, asked.seed, asked.client))
    return int(bool(flaws))


if __name__ == "__main__":
    exit_with(main)
