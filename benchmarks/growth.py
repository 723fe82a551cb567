"""How cost grows: with the subset, with the list of endpoints, with idle channels.

    python -m benchmarks.growth            about 3 minutes
    python -m benchmarks.growth --quick    about 70 s

- *subset*: CPU of a call on channels with 1 to 100 connected backends, over that with
  20. Channels take turns as in `benchmarks.overhead`.
  Beside them grpcio's weighted_round_robin with 100 over 20, on the same processes:
  with 64 calls on 20 connections three share one, and what is sent and received on it,
  and on 100 each is alone. A call of ours takes 11.5 system calls there and 10.2 with
  20, by `perf stat`; it has 0.5 more reports to read, as fewer say the same, and its
  pick takes 1.5 us more, see `benchmarks.picks`. By turns in one process, 74 pairs on a
  quiet machine, 100 over 20 were 1.01 for weighted_round_robin, 1.04 for bare channels
  of grpc.aio in a cycle, one a backend, and 1.11 for ours: 28 us, of which a channel
  for each backend takes 6. On a busy machine the pick took 8 us more, the end of the
  call 5, its report 3 and the core's call object 5. To score 100 backends took 35 us
  there and 4 in a loop of its own: their memory is out of the processor's caches by
  then. Arrays of what is read there took longer in that loop, and reports that stay
  bytes until somebody reads their metrics made no difference.
- *endpoints*: the same for a subset of 20 out of 20 to 100,000 endpoints; and CPU of an
  update of such a list, of which 1 % is replaced, for each endpoint.
- *scrape*: CPU of one scrape by Prometheus, with 1 to 100 backends.
- *change of a subset*: CPU of the client from an update that replaces all of its
  backends until it is connected to the new ones, for each.
- *health streams*: CPU of a client that nobody calls, for each of its backends, whose
  health it watches.
- *idle channels*: CPU and memory of 1,000 channels that nobody calls any more, each
  connected to one backend, beside as many of grpc.aio. Ours have health streams.

All servers are lbclient's, on loopback, where any address of 127.0.0.0/8 leads to them.
Exit status 1 if a call costs more than 1.1 times as much with any subset of up to 100
or any list of up to 100,000.
"""

import asyncio
import gc
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from statistics import median
from typing import Any

import grpc
from prometheus_client import CollectorRegistry, generate_latest

import lbclient
from benchmarks.harness import linux
from benchmarks.harness.echo import PROCESSES, echo_on, many_spawned, native
from benchmarks.harness.load import until
from benchmarks.harness.measured import Measured, measured, spread_of
from benchmarks.harness.options import conclude, exit_with, parser_of
from benchmarks.harness.processes import Process, all_entered, orders, running, say
from benchmarks.harness.servers import target_of
from benchmarks.harness.turns import Contender, compare, own_cpu, say_absolute, spread
from lbclient import metrics
from lbclient.core.model import Endpoint, Endpoints, snapshot

FLAT = 1.1
SUBSETS = (1, 5, 20, 100)
LISTS = (20, 1_000, 10_000, 100_000)
USUAL = 20  # both of a subset and of the shortest list
CONCURRENCY, CALLS = 64, 192
# With 4 the ratio of 100 to 20 was 0.97 in one run, 1.12 in another, and that of lists
# of 10,000 and 20 endpoints 1.16 (0.91 to 1.25).
SECONDS, QUICK = 30.0, 10.0
UPDATES, SCRAPES = 5, 10
SHARE = 100  # one endpoint of so many is replaced by an update
IDLE, IDLE_SECONDS, QUICK_IDLE = 1_000, 30.0, 8.0
IDLE_KINDS = ("lbclient", "grpcio")
SETTLES = 40.0  # seconds; health reports and looks get rarer for so long
WATCHED = (USUAL, max(SUBSETS))
RARELY = 0.5  # seconds; to look at a channel takes CPU of its own


class Told:
    """A resolver that says what it is told to, and when that has been applied."""

    def __init__(self, endpoints: Endpoints) -> None:
        self.applied = asyncio.Event()
        self._lists: asyncio.Queue[Endpoints] = asyncio.Queue()
        self.tell(endpoints)

    def tell(self, endpoints: Endpoints) -> None:
        self.applied.clear()
        self._lists.put_nowait(endpoints)

    async def watch(self) -> AsyncGenerator[Endpoints, None]:
        while True:
            yield await self._lists.get()
            self.applied.set()


def listed(ports: Sequence[int], count: int, first: int = 0) -> Endpoints:
    """So many addresses of this machine, all of which are served."""
    return snapshot(
        [
            Endpoint(
                f"127.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}:{ports[n % len(ports)]}"
            )
            for n in range(first + 1, first + count + 1)
        ]
    )


async def all_ready(channel: lbclient.Channel, count: int) -> None:
    echo = echo_on(channel)
    await echo()

    await until(lambda: len(ready_of(channel)) >= count, partial(ready_of, channel))
    for _ in range(4 * count):
        await echo()


async def serve_anywhere(count: int) -> None:
    """Servers of all addresses of this machine."""
    servers, ports = [], []
    for _ in range(count):
        server = lbclient.server()
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("benchmark.Echo", {"Echo": ECHO}),)
        )
        ports.append(server.add_insecure_port("0.0.0.0:0"))
        await server.start()
        servers.append(server)
    say(ports)
    async for _ in orders():
        pass


async def echo(request: bytes, context: Any) -> bytes:
    return request


ECHO: Any = grpc.unary_unary_rpc_method_handler(echo)


# --- calls ----------------------------------------------------------------------


async def flat(
    what: str, channels: dict[int, Any], seconds: float, most: float | None = FLAT
) -> list[Measured]:
    """CPU of a call on each channel, over that of the usual size."""
    contenders = {
        size: Contender(f"{what} {size:,}", echo_on(channel), own_cpu)
        for size, channel in channels.items()
    }
    await compare([*contenders.values()], CONCURRENCY, CALLS, seconds)
    say_absolute(what, [*contenders.values()], CONCURRENCY)
    told = []
    for size, one in contenders.items():
        if size != USUAL:
            usual = contenders[USUAL].cpu_per_call
            first, middle, third = spread(one.cpu_per_call, usual)
            told.append(
                Measured(
                    name=f"{what} of {size:,} / {USUAL}: CPU of a call",
                    value=middle,
                    spread=(first, third),
                    better="less" if most else "",
                    goal=most,
                )
            )
    return told


async def subsets(seconds: float) -> list[Measured]:
    async with AsyncExitStack() as stack:
        ports = await stack.enter_async_context(many_spawned(max(SUBSETS)))
        channels = {}
        for size in SUBSETS:
            config = lbclient.ChannelConfig(
                subset_size=size, max_subset_size=size, idle_after=0.0
            )
            channels[size] = await stack.enter_async_context(
                lbclient.insecure_channel(target_of(ports), config=config)
            )
            await all_ready(channels[size], size)
        told = await flat("subset", channels, seconds)
        told += [scrape(size, channels[size]) for size in SUBSETS]
        stock = {}
        for size in (USUAL, max(SUBSETS)):
            channel = native(target_of(ports[:size]), "weighted_round_robin")
            stock[size] = await stack.enter_async_context(channel)
            echo = echo_on(channel)
            for _ in range(4 * size):
                await echo()
        return told + await flat("grpcio, backends", stock, seconds / 2, most=None)


def scrape(size: int, channel: lbclient.Channel) -> Measured:
    """CPU milliseconds."""
    registry = CollectorRegistry()
    metrics.export(channel, registry, backends=max(SUBSETS))
    took = []
    for _ in range(SCRAPES):
        began = time.process_time()
        generate_latest(registry)
        took.append(1e3 * (time.process_time() - began))
    return measured(f"scrape of {size} backends", took, "ms")


async def lists(seconds: float) -> list[Measured]:
    async with AsyncExitStack() as stack:
        each = [running(serve_anywhere, USUAL // PROCESSES) for _ in range(PROCESSES)]
        processes = await all_entered(stack, each)
        ports = [port for one in processes for port in await one.hear()]
        channels, costs = {}, []
        for size in LISTS:
            resolver = Told(listed(ports, size))
            config = lbclient.ChannelConfig(
                subset_size=USUAL, max_subset_size=USUAL, idle_after=0.0
            )
            channels[size] = await stack.enter_async_context(
                lbclient.insecure_channel(resolver, config=config)
            )
            await all_ready(channels[size], USUAL)
            if size > USUAL:
                costs.append(await updates(size, resolver, ports))
        return await flat("endpoints", channels, seconds) + costs


async def updates(size: int, resolver: Told, ports: Sequence[int]) -> Measured:
    """CPU of this process from an update to its being applied, by endpoint."""
    took = []
    for number in range(1, UPDATES + 1):
        told = listed(ports, size, number * size // SHARE)
        gc.collect()
        began = time.process_time()
        resolver.tell(told)
        await resolver.applied.wait()
        took.append(1e6 * (time.process_time() - began) / size)
    name = f"update of {size:,} endpoints, for each"
    return measured(name, took, "us of CPU")


# --- without calls ----------------------------------------------------------------


async def shares_of_a_core(seconds: float) -> dict[str, float]:
    """What this process takes: mean and quartiles.

    Measures when it is told to, and not before all has settled.
    """
    settled_at = time.monotonic() + SETTLES
    say("made")
    await anext(orders())
    await asyncio.sleep(settled_at - time.monotonic())
    shares = []
    for _ in range(4):
        began, used = time.monotonic(), time.process_time()
        await asyncio.sleep(seconds / 4)
        shares.append((time.process_time() - used) / (time.monotonic() - began))
    first, third = spread_of(shares)
    return {"cpu": sum(shares) / len(shares), "first": first, "third": third}


async def watched(size: int, ports: list[int], seconds: float) -> dict[str, float]:
    """Of one channel that has so many backends, which nobody calls."""
    resolver = Told(listed(ports, size))
    config = lbclient.ChannelConfig(
        subset_size=size, max_subset_size=size, idle_after=0.0
    )
    async with lbclient.insecure_channel(resolver, config=config) as channel:
        await all_ready(channel, size)
        change = await changed(channel, resolver, ports, size)
        return {**await shares_of_a_core(seconds), "change": change}


async def changed(
    channel: lbclient.Channel, resolver: Told, ports: list[int], size: int
) -> float:
    """CPU milliseconds of this process for each backend, when all are replaced."""

    def is_connected() -> bool:
        return ready_of(channel) == new

    took, new = [], set[str]()
    for number in range(1, UPDATES + 1):
        told = listed(ports, size, first=number * size)
        new = {endpoint.address for endpoint in told}
        began = time.process_time()
        resolver.tell(told)
        await until(is_connected, partial(ready_of, channel), RARELY)
        took.append(1e3 * (time.process_time() - began) / size)
    return median(took)


def ready_of(channel: lbclient.Channel) -> set[str]:
    backends = channel.statistics().backends
    return {backend.address for backend in backends if backend.state == "ready"}


async def idle(kind: str, ports: list[int], seconds: float) -> dict[str, float]:
    """KB of each channel, and of a core the share that all take."""
    make: Callable[[], Any] = {
        "lbclient": lambda: lbclient.insecure_channel(
            target_of(ports), config=lbclient.ChannelConfig(subset_size=1)
        ),
        "grpcio": lambda: native(target_of(ports[:1]), "pick_first"),
    }[kind]
    first = make()
    await echo_on(first)()
    gc.collect()
    before = linux.resident(os.getpid())
    channels = [make() for _ in range(IDLE)]
    for channel in channels:
        await echo_on(channel)()
    gc.collect()
    grown = (linux.resident(os.getpid()) - before) / IDLE / 1024
    found = {**await shares_of_a_core(seconds), "KB": grown}
    for channel in (first, *channels):
        await channel.close()
    return found


@asynccontextmanager
async def without_calls(seconds: float) -> AsyncIterator[list[Process]]:
    """All kinds at the same time: they mostly sleep."""
    async with AsyncExitStack() as stack:
        ports = await stack.enter_async_context(many_spawned(PROCESSES))
        each = [running(serve_anywhere, 1) for _ in range(PROCESSES)]
        servers = await all_entered(stack, each)
        anywhere = [port for one in servers for port in await one.hear()]
        runs = [running(idle, kind, ports, seconds) for kind in IDLE_KINDS]
        runs += [running(watched, size, anywhere, seconds) for size in WATCHED]
        processes = await all_entered(stack, runs)
        await asyncio.gather(*(process.hear() for process in processes))
        yield processes


async def costs_without_calls(processes: list[Process]) -> list[Measured]:
    for process in processes:
        process.tell("measure")
    results = await asyncio.gather(*(process.hear() for process in processes))
    idling, watching = results[: len(IDLE_KINDS)], results[len(IDLE_KINDS) :]
    return [*costs_of_idle(idling), *costs_of_backends(watching)]


def costs_of_backends(results: list[dict[str, float]]) -> list[Measured]:
    told = []
    for size, one in zip(WATCHED, results, strict=True):
        what = f"change of a subset of {size}, for each"
        told.append(Measured(name=what, value=one["change"], unit="ms of CPU"))
    for size, one in zip(WATCHED, results, strict=True):
        each = {name: 1e6 * one[name] / size for name in ("cpu", "first", "third")}
        told.append(
            Measured(
                name=f"health streams of {size}, for each",
                value=each["cpu"],
                spread=(each["first"], each["third"]),
                unit="us of CPU a second",
            )
        )
    return told


def costs_of_idle(results: list[dict[str, float]]) -> list[Measured]:
    found = dict(zip(IDLE_KINDS, results, strict=True))
    ours, theirs = found["lbclient"], found["grpcio"]
    what = f"{IDLE:,} idle channels"
    return [
        Measured(
            name=f"{what}, memory, lbclient / grpcio",
            value=ours["KB"] / theirs["KB"],
            better="less",
        ),
        Measured(name=f"{what}, memory of each: lbclient", value=ours["KB"], unit="KB"),
        *(
            Measured(
                name=f"{what}, CPU: {kind}",
                value=100.0 * one["cpu"],
                spread=(100.0 * one["first"], 100.0 * one["third"]),
                unit="% of a core",
            )
            for kind, one in found.items()
        ),
    ]


PARTS = ("subsets", "lists", "idle")


async def measure(parts: Sequence[str], *, is_quick: bool) -> list[Measured]:
    """Tells as soon as it is known. Idle channels settle while `lists` is measured."""
    told: list[Measured] = []

    def tell(found: list[Measured]) -> None:
        for one in found:
            print(f"{one.name:60} {one.value:10.3f} {one.unit}", flush=True)
        told.extend(found)

    seconds = QUICK if is_quick else SECONDS
    if "subsets" in parts:
        tell(await subsets(seconds))
    async with AsyncExitStack() as stack:
        processes = []
        if "idle" in parts:
            idling = without_calls(QUICK_IDLE if is_quick else IDLE_SECONDS)
            processes = await stack.enter_async_context(idling)
        if "lists" in parts:
            tell(await lists(seconds))
        if processes:
            tell(await costs_without_calls(processes))
    return told


def main() -> int:
    parser = parser_of("growth", __doc__, quick="shorter")
    parser.add_argument("--only", choices=PARTS, help="one part")
    given = parser.parse_args()
    parts = (given.only,) if given.only else PARTS
    told = asyncio.run(measure(parts, is_quick=given.quick))
    return conclude(given, told, None, measured=told)


if __name__ == "__main__":
    exit_with(main)
