"""A program burns the CPU of one backend: who notices, and how soon.

    python -m benchmarks.antagonist            about 2 minutes

Three servers, each in a process, and a client that calls them by the default picker.
The first server has a CPU of its own, the others share one. When all know what a
request usually costs them, five programs begin to burn the first one's CPU: it then
gets a sixth of it, and wants a little more.

    own       rise of a request's cost by the server's own account, against the fleet
    client    the same by the client's account
    waiting   share of time in which the server's loop waits for a CPU

Exit status 1 if the first server does not notice it, its client does not, or another
server does.
"""

import asyncio
import os
from contextlib import AsyncExitStack, suppress
from time import thread_time
from typing import Any, NamedTuple

import lbclient
from benchmarks.harness.figures import table
from benchmarks.harness.measured import Measured
from benchmarks.harness.options import conclude, exit_with, parser_of
from benchmarks.harness.processes import Process, orders, running, say
from benchmarks.harness.servers import handlers, target_of
from lbclient.core.outliers.relative_costs import TUNING as RELATIVE_COSTS

PATH = "/bench.Bench/Work"
COST = 0.004  # CPU seconds of a call
RATE = 40.0  # calls a second on each server, a sixth of a CPU
BURNERS = 5
CPUS = (1, 0, 0)  # of the servers; the first one has its own, at first
SETTLE, WATCH = 80.0, 50.0  # seconds; a server knows its costs after some 75
NOTICED = ("own 0", "client 0")  # account and server


class Row(NamedTuple):
    own: float | None
    client: float | None
    waiting: float | None


async def work(request: bytes, context: Any) -> bytes:
    until = thread_time() + COST
    while thread_time() < until:
        pass
    return b""


async def serve(cpu: int) -> None:
    """A server on this CPU; answers each order with what it knows of its cost."""
    os.sched_setaffinity(0, {cpu})
    server = lbclient.server(config=lbclient.ServerConfig(max_load=0))
    server.add_generic_rpc_handlers(handlers({PATH: work}))
    say(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    async for _ in orders():
        seen = server.statistics()
        say([seen.cost.rise, seen.contention.waiting])


async def burn(cpu: int) -> None:
    os.sched_setaffinity(0, {cpu})
    say("burning")
    while os.getppid() != 1:
        pass


async def call(channel: lbclient.Channel, rate: float) -> None:
    ask: Any = channel.unary_unary(PATH)
    loop, calls = asyncio.get_running_loop(), set[Any]()
    due = loop.time()
    while True:
        due += 1.0 / rate
        await asyncio.sleep(due - loop.time())
        calls.add(made := ask(b"", timeout=10))
        made.add_done_callback(calls.discard)


async def look(
    servers: list[Process], ports: list[int], channel: lbclient.Channel
) -> list[Row]:
    """What is known now, by server."""
    own = await asyncio.gather(*(server.ask("cost") for server in servers))
    seen = {one.address: one for one in channel.statistics().backends}
    return [
        Row(rise, seen[f"127.0.0.1:{port}"].cost_rise, waiting)
        for (rise, waiting), port in zip(own, ports, strict=True)
    ]


async def measure() -> dict[str, Any]:
    os.sched_setaffinity(0, {CPUS[1]})
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(running(serve, cpu)) for cpu in CPUS]
        ports = [await server.hear() for server in servers]
        config = lbclient.ChannelConfig(subset="whole")
        channel = await stack.enter_async_context(
            lbclient.insecure_channel(target_of(ports), config=config)
        )
        calls = asyncio.create_task(call(channel, RATE * len(ports)))
        await asyncio.sleep(SETTLE)
        before = await look(servers, ports, channel)
        show("before", before)
        for _ in range(BURNERS):
            burner = await stack.enter_async_context(running(burn, CPUS[0]))
            await burner.hear()
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        noticed: dict[str, float] = {}  # by account and server, after so many seconds
        while loop.time() < began_at + WATCH and len(noticed) < 2:
            await asyncio.sleep(1.0)
            rows = await look(servers, ports, channel)
            for number, row in enumerate(rows):
                for who in ("own", "client"):
                    if (getattr(row, who) or 0.0) >= RELATIVE_COSTS.slowed:
                        after = round(loop.time() - began_at)
                        noticed.setdefault(f"{who} {number}", after)
        show("burning", rows)
        calls.cancel()
        with suppress(asyncio.CancelledError):
            await calls
    return {"before": before, "burning": rows, "noticed": noticed}


def shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def show(when: str, rows: list[Row]) -> None:
    heading = (when, "own", "client", "waiting")
    told = [(str(number), *map(shown, row)) for number, row in enumerate(rows)]
    print(table([heading, *told]), flush=True)


def main() -> int:
    given = parser_of("antagonist", __doc__).parse_args()
    found = asyncio.run(measure())
    noticed = found["noticed"]
    print("noticed after:", ", ".join(f"{who}: {s} s" for who, s in noticed.items()))
    missed = [f"{who}: not noticed" for who in NOTICED if who not in noticed]
    missed += [f"{who}: nothing is there" for who in noticed if who not in NOTICED]
    told = [
        Measured(name=f"{who}: noticed after", value=seconds, unit="s")
        for who, seconds in noticed.items()
    ]
    return conclude(given, found, missed, measured=told)


if __name__ == "__main__":
    exit_with(main)
