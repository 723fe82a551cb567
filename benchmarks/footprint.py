"""What lbclient takes besides CPU of calls: memory, the time to import and to start.

    python -m benchmarks.footprint            about a minute
    python -m benchmarks.footprint --quick    about 25 s

Beside grpc.aio with weighted_round_robin, each client and server in a process of its
own. Memory is what the process has more in RAM: for each of 200 channels that have not
been used; for each connection of a channel with 100 backends; for each channel with one
connection; and of a server for each connection. A start is that of Python, the import,
a channel and its first call; an import is timed as the start of a program that imports
and ends. Programs take turns, and the ratios are those of neighbours. None of them has
to compile a module, as pip leaves none uncompiled.
"""

import asyncio
import gc
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from tempfile import TemporaryDirectory
from typing import Any

import grpc

import lbclient
from benchmarks.harness import linux
from benchmarks.harness.echo import echo_on, many_spawned, native, serve, spawned
from benchmarks.harness.measured import Measured, measured
from benchmarks.harness.options import conclude, exit_with, parser_of
from benchmarks.harness.processes import orders, result_of, running, say
from benchmarks.harness.servers import target_of

KINDS = ("lbclient", "grpcio")
PEER = "weighted_round_robin"
UNUSED, BACKENDS, CHANNELS, CONNECTIONS = 200, 100, 100, 100
STARTS, QUICK_STARTS = 20, 8

START = """
async def main():
    async with MODULE.insecure_channel("127.0.0.1:PORT") as channel:
        await channel.unary_unary("/benchmark.Echo/Echo")(b"", timeout=10)
asyncio.run(main())
"""
PROGRAMS = {
    "import of a client": {
        "lbclient": "from lbclient import insecure_channel",
        "grpcio": "from grpc.aio import insecure_channel",
    },
    "import of a server": {
        "lbclient": "from lbclient import server, serve",
        "grpcio": "from grpc.aio import server",
    },
    "start and first call": {
        kind: f"import asyncio, {module}\n" + START.replace("MODULE", module)
        for kind, module in (("lbclient", "lbclient"), ("grpcio", "grpc.aio"))
    },
}


def channel_to(kind: str, ports: Sequence[int]) -> grpc.aio.Channel:
    target = target_of(ports)
    if kind == "grpcio":
        return native(target, PEER)
    config = lbclient.ChannelConfig(subset="whole", idle_after=0.0)
    return lbclient.insecure_channel(target, config=config)


def resident() -> int:
    gc.collect()
    return linux.resident(os.getpid())


async def settled(channels: Sequence[grpc.aio.Channel], backends: int) -> None:
    """Until all have been called, and each backend is connected."""
    for channel in channels:
        echo = echo_on(channel)
        for _ in range(2 * backends):
            await echo()
    # Connections are paced, and grpcio says nothing of its own.
    async with asyncio.timeout(60.0):
        while not all(map(is_connected, channels)):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    await asyncio.sleep(1.0)


def is_connected(channel: grpc.aio.Channel) -> bool:
    if not isinstance(channel, lbclient.Channel):
        return True
    states = {backend.state for backend in channel.statistics().backends}
    return states == {"ready"}


async def client_memory(kind: str, ports: list[int]) -> dict[str, float]:
    """KB of each channel, or of each connection."""
    first = channel_to(kind, ports[:1])  # for what is there once
    await settled([first], 1)
    before = resident()
    unused = [channel_to(kind, ports[:1]) for _ in range(UNUSED)]
    found = {"channel without a connection": (resident() - before) / UNUSED}
    for channel in unused:
        await channel.close()
    before = resident()
    several = [channel_to(kind, ports[:1]) for _ in range(CHANNELS)]
    await settled(several, 1)
    found["channel with one connection"] = (resident() - before) / CHANNELS
    before = resident()
    whole = channel_to(kind, ports)
    await settled([whole], len(ports))
    found["connection of one channel"] = (resident() - before) / len(ports)
    for channel in (first, whole, *several):
        await channel.close()
    return {name: size / 1024 for name, size in found.items()}


async def hold(kind: str, port: int) -> None:
    """Connections to a server, until this process is ended."""
    channels = [channel_to(kind, [port]) for _ in range(CONNECTIONS)]
    await settled(channels, 1)
    say("connected")
    async for _ in orders():
        pass


async def server_memory(kind: str) -> float:
    """KB for each connection of stock clients, as the server's process has grown."""
    async with running(serve, kind, 1) as server:
        [port] = await server.hear()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            await echo_on(channel)()
        before = linux.resident(server.pid)
        async with running(hold, "grpcio", port) as clients:
            await clients.hear()
            grown = linux.resident(server.pid) - before
    return grown / 1024 / CONNECTIONS


async def memory() -> list[Measured]:
    clients = {}
    async with many_spawned(BACKENDS) as ports:
        for kind in KINDS:
            clients[kind] = await result_of(client_memory, kind, ports)
    servers = {kind: await server_memory(kind) for kind in KINDS}
    for kind in KINDS:
        clients[kind]["connection of a server"] = servers[kind]
    told = []
    for what in clients["lbclient"]:
        ours, theirs = (clients[kind][what] for kind in KINDS)
        name = f"memory, {what}"
        ratio = Measured(
            name=f"{name}, lbclient / grpcio", value=ours / theirs, better="less"
        )
        told += [ratio, Measured(name=f"{name}: lbclient", value=ours, unit="KB")]
    return told


def seconds_of(program: str, compiled: str) -> float:
    """`compiled` is a folder for compiled modules, which the first program fills."""
    environment = os.environ | {"PYTHONPYCACHEPREFIX": compiled}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", program]
    began_at = time.perf_counter()
    subprocess.run(command, check=True, timeout=60, env=environment)
    return time.perf_counter() - began_at


async def starts(times: int) -> list[Measured]:
    told = []
    async with AsyncExitStack() as stack:
        compiled = stack.enter_context(TemporaryDirectory())
        [port] = await stack.enter_async_context(spawned("lbclient", 1))
        for what, of in PROGRAMS.items():
            programs = {k: text.replace("PORT", str(port)) for k, text in of.items()}
            took: dict[str, list[float]] = {kind: [] for kind in KINDS}
            for turn in range(times + 1):
                for kind in KINDS if turn % 2 else KINDS[::-1]:
                    program = programs[kind]
                    seconds = await asyncio.to_thread(seconds_of, program, compiled)
                    if turn:  # the first compiles, and reads files from the disk
                        took[kind].append(seconds)
            pairs = zip(*(took[kind] for kind in KINDS), strict=True)
            ratios = (ours / theirs for ours, theirs in pairs)
            told.append(measured(f"{what}, lbclient / grpcio", ratios, better="less"))
            ours_ms = [1e3 * seconds for seconds in took["lbclient"]]
            told.append(measured(f"{what}: lbclient", ours_ms, "ms"))
    return told


async def measure(times: int) -> list[Measured]:
    return [*await starts(times), *await memory()]


def main() -> int:
    given = parser_of("footprint", __doc__, quick="fewer starts").parse_args()
    told = asyncio.run(measure(QUICK_STARTS if given.quick else STARTS))
    for one in told:
        print(f"{one.name:60} {one.value:8.2f} {one.unit}")
    found: dict[str, Any] = {"figures": told}
    return conclude(given, found, None, measured=told)


if __name__ == "__main__":
    exit_with(main)
