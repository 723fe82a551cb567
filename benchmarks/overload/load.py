"""The load, open-loop, in processes of its own: by frames, or by clients of a kind.

    python -m benchmarks.overload.load CLIENTS PORT PHASES BEGIN END CRITICAL SEED

`frames` are what a stock client sends, at a tenth of its cost. `stock` are grpc.aio's
stubs, `node` is grpc-js, `ours` are lbclient's own channels, which throttle themselves
and retry. Says a line when it begins, and when all has ended what became of it.
"""

import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import grpc

import lbclient
from benchmarks import frames
from benchmarks.frames import CRITICALITIES, DEADLINE, Call
from benchmarks.overload.handlers import PATH
from benchmarks.overload.tally import Tally, from_json, total
from lbclient import wire

CLIENTS = ("frames", "stock", "node", "ours")
PROCESSES = {"frames": 1, "stock": 2, "node": 1, "ours": 2}
CHANNELS = 4  # of a process of stubs
NODE = Path(__file__).parents[2] / ".tools" / "node" / "node_modules"
NODE_CLIENT = Path(__file__).with_name("client.cjs")
Phases = list[tuple[float, float]]


def begun() -> None:
    print("begun", flush=True)


def channel_of(clients: str, port: int) -> grpc.aio.Channel:
    if clients == "ours":
        return lbclient.insecure_channel(f"ipv4:127.0.0.1:{port}")
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options)


async def by_stubs(
    clients: str, port: int, phases: Phases, seed: int, critical: float, tally: Tally
) -> None:
    rng, began_at = Random(seed), 0.0

    async def call(method: Any, at: float, criticality: str) -> None:
        metadata = ((wire.CRITICALITY_KEY, criticality),)
        sent_at, code, refusal = time.monotonic(), "OK", ""
        try:
            await method(b"", timeout=DEADLINE, metadata=metadata)
        except lbclient.Throttled:
            code = refusal = "throttled"
        except grpc.aio.AioRpcError as error:
            code = error.code().name
            trailers = dict(error.trailing_metadata() or ())
            refusal = str(trailers.get(wire.REFUSAL_KEY, ""))
        took = time.monotonic() - sent_at
        late = sent_at - began_at - at
        tally.add(Call(at, criticality, code, refusal, took, late))

    async with AsyncExitStack() as stack:
        methods: list[Any] = []
        for _ in range(1 if clients == "ours" else CHANNELS):
            channel = channel_of(clients, port)
            await stack.enter_async_context(channel)
            await channel.channel_ready()
            methods.append(channel.unary_unary(PATH))
        running = await stack.enter_async_context(asyncio.TaskGroup())
        began_at = time.monotonic()
        begun()
        for at in frames.arrivals(phases, rng):
            if (pause := began_at + at - time.monotonic()) > 0:
                await asyncio.sleep(pause)
            criticality = CRITICALITIES[rng.random() >= critical]
            running.create_task(call(rng.choice(methods), at, criticality))


async def by_frames(
    port: int, phases: Phases, seed: int, critical: float, tally: Tally
) -> None:
    await frames.send(port, PATH, phases, seed, tally.add, critical, begun)


def main(
    clients: str,
    port: str,
    phases: str,
    begin: str,
    end: str,
    critical: str,
    seed: str,
) -> None:
    tally = Tally(float(begin), float(end))
    of = json.loads(phases), int(seed), float(critical), tally
    if clients == "frames":
        asyncio.run(by_frames(int(port), *of))
    else:
        asyncio.run(by_stubs(clients, int(port), *of))
    print(tally.to_json())


# --- from the process that measures ---------------------------------------------


def missing(clients: str) -> str:
    """Why there are no such clients here; "" where there are."""
    if clients != "node":
        return ""
    if shutil.which("node") is None:
        return "no node here"
    return "" if node_modules().exists() else "no grpc-js here: make node"


def node_modules() -> Path:
    return Path(os.environ.get("NODE_PATH", NODE))


class Load:
    """Its processes, which have begun. `result` waits until all has ended."""

    def __init__(self, children: list[Any], clients: str, span: Tally) -> None:
        self._children = children
        self._clients = clients
        self._span = span

    async def result(self) -> Tally:
        told = await asyncio.gather(*(child.stdout.read() for child in self._children))
        if self._clients != "node":
            return total(map(from_json, told))
        for line in b"".join(told).splitlines():
            self._span.add(Call(*json.loads(line)))
        return self._span


@asynccontextmanager
async def loading(
    clients: str,
    port: int,
    phases: Phases,
    span: tuple[float, float],
    critical: float,
    seed: int = 2,
) -> AsyncIterator[Load]:
    """Begins it. What is left of it when the context is left is ended."""
    count = PROCESSES[clients]
    said = json.dumps([(rate / count, seconds) for rate, seconds in phases])
    children: list[Any] = []
    try:
        for number in range(count):
            words = [clients, str(port), said, *map(str, span), str(critical)]
            program = [sys.executable, "-m", "benchmarks.overload.load"]
            if clients == "node":
                program = ["node", str(NODE_CLIENT)]
            child = await asyncio.create_subprocess_exec(
                *(*program, *words, str(seed + number)),
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, "NODE_PATH": str(node_modules())},
            )
            children.append(child)
        for child in children:
            if not await child.stdout.readline():
                raise RuntimeError(f"the load by {clients} did not begin")
        yield Load(children, clients, Tally(*span))
    finally:
        for child in children:
            if child.returncode is None:
                child.kill()
            await child.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
