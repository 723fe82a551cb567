"""The load, open-loop, in processes of its own: by frames, or by clients of a kind.

`frames` are what a stock client sends, at a tenth of its cost. `stock` are grpc.aio's
stubs, `node` is grpc-js, `ours` are lbclient's own channels, which throttle themselves
and retry. Says a line when it begins, and when all has ended what became of it.
"""

import asyncio
import json
import os
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import grpc

import lbclient
from benchmarks import frames
from benchmarks.frames import DEADLINE, Call
from benchmarks.harness.load import open_loop
from benchmarks.harness.processes import Process, command_of, program, say
from benchmarks.overload.handlers import PATH
from benchmarks.overload.tally import CRITICALITIES, Tally, from_json, total
from lbclient import wire

CLIENTS = ("frames", "stock", "node", "ours")
PROCESSES = {"frames": 1, "stock": 2, "node": 1, "ours": 2}
CHANNELS = 4  # of a process of stubs
PLUS = 0.1  # of what is CRITICAL, this share is CRITICAL_PLUS
NODE = Path(__file__).parents[2] / ".tools" / "node" / "node_modules"
NODE_CLIENT = Path(__file__).with_name("client.cjs")
Phases = list[tuple[float, float]]


def begun() -> None:
    say("begun")


def choose(critical: float, rng: Random) -> str:
    """A criticality. `critical`: the share of CRITICAL and CRITICAL_PLUS."""
    drawn = rng.random() / critical
    return CRITICALITIES[0 if drawn < PLUS else 1 if drawn < 1.0 else 2]


def channel_of(clients: str, port: int) -> grpc.aio.Channel:
    if clients == "ours":
        return lbclient.insecure_channel(f"ipv4:127.0.0.1:{port}")
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options)


async def by_stubs(
    clients: str, port: int, phases: Phases, seed: int, critical: float, tally: Tally
) -> None:
    mix, began_at = Random(f"mix {seed}"), 0.0

    async def call(at: float) -> None:
        criticality = choose(critical, mix)
        metadata = ((wire.CRITICALITY_KEY, criticality),)
        sent_at, code, refusal = time.monotonic(), "OK", ""
        try:
            await mix.choice(methods)(b"", timeout=DEADLINE, metadata=metadata)
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
        began_at = time.monotonic()
        begun()
        await open_loop(frames.arrivals(phases, Random(seed)), call, float)


async def send(
    clients: str,
    port: int,
    phases: Phases,
    begin: float,
    end: float,
    critical: float,
    seed: int,
) -> Tally:
    tally = Tally(begin, end)
    if clients == "frames":
        chosen = partial(choose, critical)
        await frames.send(port, PATH, phases, seed, tally.add, chosen, begun)
    else:
        await by_stubs(clients, port, phases, seed, critical, tally)
    return tally


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

    def __init__(self, processes: list[Process], clients: str, span: Tally) -> None:
        self._processes = processes
        self._clients = clients
        self._span = span

    async def result(self) -> Tally:
        told = await asyncio.gather(*(process.rest() for process in self._processes))
        lines = [line for lines in told for line in lines]
        if self._clients != "node":
            return total(map(from_json, lines))
        for line in lines:
            self._span.add(Call(*line))
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
    each = [(rate / count, seconds) for rate, seconds in phases]
    processes = []
    async with AsyncExitStack() as stack:
        for number in range(count):
            words = clients, port, each, *span, critical, seed + number
            command = command_of(send, *words)
            if clients == "node":
                command = ["node", str(NODE_CLIENT), json.dumps(words)]
            environment = {**os.environ, "NODE_PATH": str(node_modules())}
            load = program(*command, env=environment)
            processes.append(await stack.enter_async_context(load))
        for process in processes:
            await process.hear()
        yield Load(processes, clients, Tally(*span))
