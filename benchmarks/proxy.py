"""What the batch proxy costs a call, and how many connections it spares the backends.

    python -m benchmarks.proxy               about a minute
    python -m benchmarks.proxy --quick --json FILE --plot FILE.png

The same stock client calls one server directly and through a proxy before it, in turns
as in `benchmarks.overhead`; CPU is that of client, server and proxy together. Then 200
client channels call 20 backends, first each on a subset of its own, then all through
one proxy; connections are those of the kernel's table. Promised is one connection of
the proxy to each backend; what a call costs is only told. Exit status 1 if it has more.

At last a proxy gets three and six times the calls that it can forward, half SHEDDABLE;
and beside it one that does not know what waits in gRPC's core, as it was before.
"""

import asyncio
import os
import runpy
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

import lbclient
from benchmarks import frames
from benchmarks.harness.echo import ECHO, echo_on, many_spawned, spawned
from benchmarks.harness.figures import BLUE, blank, machine
from benchmarks.harness.linux import schedstat, tcp_sockets
from benchmarks.harness.measured import Measured
from benchmarks.harness.options import conclude, exit_with, parser_of
from benchmarks.harness.processes import command_of, orders, program, running, say
from benchmarks.harness.servers import target_of
from benchmarks.harness.turns import (
    Contender,
    Ratio,
    compare,
    draw_ratios,
    measured_of,
    ratio,
    say_absolute,
    say_ratios,
)
from benchmarks.overload.without import leave_in_core
from lbclient.config import ChannelConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLIENTS, PROCESSES = 200, 4
BACKENDS = 20  # in two processes
SUBSET = 10  # of a client that calls directly
TOO_MUCH = (3.0, 6.0)  # times what a proxy can forward
KINDS = ("lbclient", "in core")
OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)


@asynccontextmanager
async def proxy_of(
    ports: list[int], kind: str = "lbclient"
) -> AsyncIterator[tuple[int, int]]:
    """The process and the port of a proxy."""
    words = ["proxy", "--json", "--listen", "127.0.0.1:0", "--target", target_of(ports)]
    command = [sys.executable, "-m", "lbclient", *words]
    if kind == "in core":
        command = command_of(be_proxy_in_core, *words)
    async with program(*command) as process:
        told = await process.hear()
        yield process.pid, int(told["listening"].rpartition(":")[2])


def be_proxy_in_core(*words: str) -> None:
    """The command, of which all servers leave requests in gRPC's core."""
    leave_in_core()
    sys.argv = ["lbclient", *words]
    runpy.run_module("lbclient", run_name="__main__")


# --- what a call costs --------------------------------------------------------


async def cost(effort: float) -> list[Ratio]:
    async with AsyncExitStack() as stack:
        [port] = await stack.enter_async_context(spawned("lbclient", 1))
        proxy, proxy_port = await stack.enter_async_context(proxy_of([port]))
        pids = [os.getpid(), *children()]
        assert proxy in pids
        contenders = []
        for name, where in (("direct", port), ("through the proxy", proxy_port)):
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{where}")
            await stack.enter_async_context(channel)
            contenders.append(Contender(name, echo_on(channel), cpu_of(pids)))
        ratios = []
        for concurrency, calls, seconds in ((1, 100, 6), (64, 256, 12)):
            direct, proxied = contenders
            await compare(contenders, concurrency, calls, seconds * effort)
            say_absolute("proxy", contenders, concurrency)
            ratios.append(ratio("proxy", proxied, direct, concurrency))
        return ratios


def children() -> list[int]:
    tasks = Path("/proc/self/task").iterdir()
    return [
        int(pid) for task in tasks for pid in (task / "children").read_text().split()
    ]


def cpu_of(pids: list[int]) -> Callable[[], Awaitable[float]]:
    """CPU seconds of all threads of these processes."""

    async def cpu() -> float:
        return sum(ran for pid in pids for ran, _ in schedstat(pid).values())

    return cpu


# --- what the backends see ----------------------------------------------------


async def connections() -> dict[str, dict[str, int]]:
    async with many_spawned(BACKENDS) as ports:
        found = {"direct": await seen_of("direct", target_of(ports), ports)}
        async with proxy_of(ports) as (_, port):
            proxied = await seen_of("proxied", f"127.0.0.1:{port}", ports)
        return found | {"proxied": proxied}


async def seen_of(how: str, target: str, ports: list[int]) -> dict[str, int]:
    """The connections of the backends while all clients are there."""
    words = be_clients, how, CLIENTS // PROCESSES, target
    async with AsyncExitStack() as stack:
        processes = [
            await stack.enter_async_context(running(*words, number))
            for number in range(PROCESSES)
        ]
        calls = sum([await process.hear() for process in processes])
        sockets = [one for one in tcp_sockets() if one.is_established]
        per_backend = Counter(one.local for one in sockets if one.local in ports)
        return {
            "clients": CLIENTS,
            "calls": calls,
            "connections": per_backend.total(),
            "of_the_busiest": max(per_backend.values()),
        }


async def be_clients(how: str, count: int, target: str, process: int) -> None:
    """So many channels, which have called and stay, until the process is ended."""
    channels: list[Any] = []
    for number in range(count):
        if how == "direct":
            config = ChannelConfig(
                subset_size=SUBSET, client_id=f"{process}-{number}", idle_after=0
            )
            channel: Any = lbclient.insecure_channel(target, config=config)
        else:
            channel = grpc.aio.insecure_channel(target, options=[OWN_CONNECTION])
        channels.append(channel)
        await echo_on(channel)()
    if how == "direct":
        while not all(is_full(channel) for channel in channels):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    answers = await asyncio.gather(*(echo_on(channel)() for channel in channels))
    say(count + len(answers))
    async for _ in orders():
        pass


def is_full(channel: lbclient.Channel) -> bool:
    states = [backend.state for backend in channel.statistics().backends]
    return states.count("ready") == SUBSET


# --- what it does with too much ------------------------------------------------


async def overload(effort: float) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = []
    async with AsyncExitStack() as stack:
        [port] = await stack.enter_async_context(spawned("lbclient", 1))
        for name in KINDS:
            async with proxy_of([port], name) as (_, proxy_port):
                rate = await rate_of(proxy_port)
                rates = [run["capacity"] for run in runs] or [rate]
                for times in (0.5, *TOO_MUCH):
                    found = await frames.flood(
                        proxy_port, ECHO, times * rates[0], 8.0 * effort
                    )
                    frames.say(f"proxy, {times:g} x, {name}", rates[0], found)
                    of = {"kind": name, "times": times, "capacity": rates[0]}
                    runs.append(of | found)
    return runs


async def rate_of(port: int) -> float:
    """Calls a second, of as many at a time as fill a proxy."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        method, done = echo_on(channel), 0
        began_at = time.monotonic()

        async def ask() -> None:
            nonlocal done
            while time.monotonic() < began_at + 3.0:
                await method()
                done += 1

        await asyncio.gather(*(ask() for _ in range(16)))
        return done / (time.monotonic() - began_at)


# --- what is said -------------------------------------------------------------


async def measure(effort: float) -> dict[str, Any]:
    ratios = await cost(effort)
    seen = await connections()
    say_ratios(ratios)
    print()
    for how, told in seen.items():
        print(
            f"{told['clients']} clients {how:8} {told['connections']:5} connections, "
            f"{told['of_the_busiest']} of the busiest of {BACKENDS} backends"
        )
    flood = await overload(effort)
    known = {"ratios": ratios, "connections": seen, "overload": flood}
    return machine() | known


def draw(
    ratios: list[Ratio], connections: dict[str, dict[str, int]], **_: Any
) -> "Figure":
    figure = blank(12, 3)
    cpu, calls, count = figure.subplots(1, 3)
    draw_ratios((cpu, calls), ratios)
    calls.set_yticks([])
    seen = [told["connections"] for told in connections.values()]
    bars = count.bar([*connections], seen, color=BLUE)
    count.bar_label(bars)
    count.margins(y=0.15)
    count.set_ylabel(f"connections to {BACKENDS} backends")
    return figure


def main() -> int:
    parser = parser_of("proxy", __doc__, quick="a quarter of the time", plot=True)
    given = parser.parse_args()
    found = asyncio.run(measure(0.25 if given.quick else 1.0))
    most = found["connections"]["proxied"]["of_the_busiest"]
    missed = [f"the proxy has {most} connections to one backend"] if most > 1 else []
    seen = found["connections"]
    fewer = seen["proxied"]["connections"] / seen["direct"]["connections"]
    name = f"{CLIENTS} clients, through the proxy / direct: connections"
    told = [
        *measured_of(found["ratios"]),
        Measured(name=name, value=fewer, better="less"),
    ]
    return conclude(given, found, missed, lambda: draw(**found), measured=told)


if __name__ == "__main__":
    exit_with(main)
