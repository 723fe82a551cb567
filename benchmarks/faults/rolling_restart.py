"""Every server is restarted by SIGTERM, one after the other, beneath clients that have
never heard of lbclient and watch no health."""

import asyncio
import shutil
import signal
from collections import Counter
from time import monotonic
from typing import NamedTuple

from benchmarks.faults.fleet import NO_SHEDDING, Task, fleet, target_of
from benchmarks.faults.goaway import is_no_worse, lost_of
from benchmarks.faults.row import Result, Row
from benchmarks.faults.stranger import count_calls
from benchmarks.harness.processes import ROOT, command_of, start

NODE = ROOT / ".tools" / "node"
LATENCY = 0.5  # seconds; of each call
RATE = 20.0  # calls a second of each client
SERVERS = 3
START = 1.0  # seconds; for the clients to begin


class Stranger:
    """A client program. `name` is who it is, as in "aio pick_first"."""

    def __init__(self, kind: str, policy: str) -> None:
        self.name = f"{kind} {policy}"
        self._policy = policy
        self._kind = kind

    async def start(self, tasks: list[Task]) -> None:
        words = self._policy, target_of(tasks), RATE
        command = command_of(count_calls, self._kind, *words)
        if self._kind == "node":
            command = ["node", str(NODE / "client.js"), *map(str, words)]
        self._process = await start(*command, cwd=ROOT)

    async def end(self) -> Counter[str]:
        [ended] = await self._process.rest()
        return Counter(ended)


def has_node() -> bool:
    """Whether `make node` has installed grpc-js, for which it asks npm's registry."""
    return shutil.which("node") is not None and (NODE / ".ready").exists()


def strangers() -> list[Stranger]:
    kinds = ["aio", "sync"]
    if has_node():
        kinds.append("node")
    return [Stranger(k, p) for k in kinds for p in ("pick_first", "round_robin")]


async def restart(task: Task) -> float:
    """Returns the seconds from SIGTERM to the end of the process."""
    began_at = monotonic()
    task.signal(signal.SIGTERM)
    await task.wait()
    took = monotonic() - began_at
    await task.start(latency=LATENCY)
    return took


class Rollout(NamedTuple):
    ended: dict[str, Counter[str]]  # calls by status, by client
    restarts: list[float]  # seconds from SIGTERM to the end of the process

    def total(self) -> Counter[str]:
        """The calls of all clients by status."""
        return sum(self.ended.values(), Counter())


async def roll(kind: str, pause: float) -> Rollout:
    """Restarts each server of a fleet, with a pause before and after."""
    restarts = []
    async with fleet(SERVERS, kind, NO_SHEDDING, latency=LATENCY) as tasks:
        clients = strangers()
        await asyncio.gather(*(client.start(tasks) for client in clients))
        await asyncio.sleep(START + pause)
        for task in tasks:
            restarts.append(await restart(task))
            await asyncio.sleep(pause)
        ended = await asyncio.gather(*(client.end() for client in clients))
    names = [client.name for client in clients]
    return Rollout(dict(zip(names, ended, strict=True)), restarts)


def result(ended: Counter[str]) -> Result:
    lost = lost_of(ended)
    said = "; ".join(f"{n} {status}" for status, n in lost.items())
    return Result(ended.total(), lost.total(), said=said)


async def run(seconds: float) -> list[Row]:
    theirs = await roll("stock", seconds / 4)
    ours = await roll("ours", seconds / 4)
    holds = is_no_worse(ours.total(), theirs.total())
    rows = []
    for name, ended in ours.ended.items():
        rows.append(
            Row(
                f"rolling restart of the servers; {name}",
                "no call lost but by crossing GOAWAY, and by all clients together no"
                " more than with grpc.aio's servers, but by chance",
                result(ended),
                result(theirs.ended[name]),
                holds=holds,
            )
        )
    return rows
