"""What the batch proxy costs a call, and how many connections it spares the backends.

    python -m benchmarks.proxy               about a minute
    python -m benchmarks.proxy --quick --json FILE --plot FILE.png

The same stock client calls one server directly and through a proxy before it, in turns
as in `benchmarks.overhead`; CPU is that of client, server and proxy together. Then 200
client channels call 20 backends, first each on a subset of its own, then all through
one proxy; connections are those of the kernel's table. Promised is one connection of
the proxy to each backend; what a call costs is only told. Exit status 1 if it has more.

At last a proxy gets three times the calls that it can forward, half of them SHEDDABLE;
and beside it one that does not know what waits in gRPC's core, as it was before.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

import lbclient
from benchmarks import frames
from benchmarks.child import running
from benchmarks.command import add_output, parser_of, verdict, write_json
from benchmarks.overhead import (
    COLOR,
    ECHO,
    Contender,
    Ratio,
    compare,
    draw_ratios,
    echo_on,
    ratio,
    say_absolute,
    say_ratio,
    spawned,
    surroundings,
)
from benchmarks.overload.without import leave_in_core
from lbclient.cli.lab.pictures import blank, write
from lbclient.cli.operate import proxy as command
from lbclient.config import ChannelConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLIENTS, PROCESSES = 200, 4
BACKENDS = 20  # in two processes
SUBSET = 10  # of a client that calls directly
TOO_MUCH = 3.0  # of what a proxy can forward
PROGRAMS = {"lbclient": "lbclient", "in core": "benchmarks.proxy"}
OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)


@asynccontextmanager
async def proxy_of(
    ports: list[int], program: str = "lbclient"
) -> AsyncIterator[tuple[int, int]]:
    """The process and the port of a proxy."""
    command = (program, "proxy", "--json", "--listen", "127.0.0.1:0", "--target")
    async with running(*command, target_of(ports)) as (pid, line):
        yield pid, int(json.loads(line)["listening"].rpartition(":")[2])


def target_of(ports: list[int]) -> str:
    return "ipv4:" + ",".join(f"127.0.0.1:{port}" for port in ports)


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
    tasks = Path("/proc/self/task")
    return [
        int(pid) for task in tasks.iterdir() for pid in read(task / "children").split()
    ]


def cpu_of(pids: list[int]) -> Callable[[], Awaitable[float]]:
    """CPU seconds of all threads of these processes."""

    async def cpu() -> float:
        return sum(map(cpu_seconds, pids))

    return cpu


def cpu_seconds(pid: int) -> float:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int(read(task / "schedstat").split()[0]) for task in tasks) * 1e-9


def read(path: Path) -> str:
    return path.read_text()


# --- what the backends see ----------------------------------------------------


async def connections() -> dict[str, dict[str, int]]:
    async with AsyncExitStack() as stack:
        ports: list[int] = []
        for _ in range(2):
            ports += await stack.enter_async_context(spawned("lbclient", BACKENDS // 2))
        found = {"direct": await seen_of("direct", target_of(ports), ports)}
        _, port = await stack.enter_async_context(proxy_of(ports))
        proxied = await seen_of("proxied", f"127.0.0.1:{port}", ports)
        return found | {"proxied": proxied}


async def seen_of(how: str, target: str, ports: list[int]) -> dict[str, int]:
    """The connections of the backends while all clients are there."""
    each = str(CLIENTS // PROCESSES)
    words = ("benchmarks.proxy", "--clients", how, each, target)
    async with AsyncExitStack() as stack:
        told = await asyncio.gather(
            *(
                stack.enter_async_context(running(*words, str(number)))
                for number in range(PROCESSES)
            )
        )
        calls = sum(int(line) for _, line in told)
        per_backend = Counter(established(ports))
        return {
            "clients": CLIENTS,
            "calls": calls,
            "connections": per_backend.total(),
            "of_the_busiest": max(per_backend.values()),
        }


def established(ports: list[int]) -> list[int]:
    """The server's port of each connection to one of these."""
    tables = [Path("/proc/net") / name for name in ("tcp", "tcp6")]
    lines = [read(table).splitlines()[1:] for table in tables if table.exists()]
    rows = [line.split()[1:4] for line in chain.from_iterable(lines)]
    found = [int(row[0].rpartition(":")[2], 16) for row in rows if row[2] == "01"]
    return [port for port in found if port in ports]


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
    print(count + len(answers), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    os._exit(0)


def is_full(channel: lbclient.Channel) -> bool:
    states = [backend.state for backend in channel.statistics().backends]
    return states.count("ready") == SUBSET


# --- what it does with too much ------------------------------------------------


async def overload(effort: float) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = []
    async with AsyncExitStack() as stack:
        [port] = await stack.enter_async_context(spawned("lbclient", 1))
        for name, program in PROGRAMS.items():
            async with proxy_of([port], program) as (_, proxy_port):
                rate = await rate_of(proxy_port)
                rates = [run["capacity"] for run in runs] or [rate]
                for times in (0.5, TOO_MUCH):
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
    print(f"\n{'':75}{'CPU per call':26}{'calls per second':26}pairs")
    for one in ratios:
        say_ratio(one)
    print()
    for how, told in seen.items():
        print(
            f"{told['clients']} clients {how:8} {told['connections']:5} connections, "
            f"{told['of_the_busiest']} of the busiest of {BACKENDS} backends"
        )
    flood = await overload(effort)
    known = {"ratios": ratios, "connections": seen, "overload": flood}
    return surroundings() | known


def draw(
    ratios: list[Ratio], connections: dict[str, dict[str, int]], **_: Any
) -> "Figure":
    figure = blank(12, 3)
    cpu, calls, count = figure.subplots(1, 3)
    draw_ratios((cpu, calls), ratios)
    calls.set_yticks([])
    seen = [told["connections"] for told in connections.values()]
    bars = count.bar([*connections], seen, color=COLOR)
    count.bar_label(bars)
    count.margins(y=0.15)
    count.set_ylabel(f"connections to {BACKENDS} backends")
    return figure


def main() -> None:
    if sys.argv[1:2] == ["proxy"]:
        leave_in_core()
        sys.exit(command.main(sys.argv[2:]))
    parser = parser_of("proxy", __doc__)
    parser.add_argument("--quick", action="store_true", help="a quarter of the time")
    add_output(parser)
    parser.add_argument("--clients", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.clients:
        how, count, target, process = given.clients
        asyncio.run(be_clients(how, int(count), target, int(process)))
        return
    found = asyncio.run(measure(0.25 if given.quick else 1.0))
    if given.json:
        figures = [vars(one) for one in found["ratios"]]
        write_json(given.json, {**found, "ratios": figures})
    if given.plot:
        write(given.plot, lambda: draw(**found))
    most = found["connections"]["proxied"]["of_the_busiest"]
    missed = [f"the proxy has {most} connections to one backend"] if most > 1 else []
    sys.exit(verdict(missed))


if __name__ == "__main__":
    main()
