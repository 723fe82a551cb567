"""Three customers of a fleet of four tasks, one of whom wants ten times its share.

    python -m benchmarks.quotas                    about 2 minutes
    python -m benchmarks.quotas --quick            about 1
    python -m benchmarks.quotas --seed 2 --json FILE --plot FILE.png
    python -m benchmarks.quotas --read FILE...     several runs as if they were one

Four tasks, a redis-server and the load are processes of their own. Each customer may
use 1 CPU of the fleet's 4. In one and the same run all are first within their limits;
then one wants ten times its own, and meanwhile Redis is killed and started again. A
second run, a short one, is the same without quotas.

A request takes 40 ms of an emulated processor, so that two cores suffice, and 1 ms of
a real one. That is what is accounted, so `cpu_factor` makes 40 ms of it. The load is
open: Poisson arrivals, deadline 2 s, latency from when a request was due. Channels
throttle as they do by default, for overload and for the quota of a customer.

Exit status 1 if a target is missed: while one customer wants ten times its own the
others have no error, and wait less than 10 % longer in the mean. That is held against
the lower end of the 90 % that chance does: what is beyond that is hardly chance.
"""

import asyncio
import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import grpc.aio

import lbclient
from benchmarks.harness.figures import blank, machine, say_machine
from benchmarks.harness.load import open_loop
from benchmarks.harness.options import conclude, exit_with, parser_of
from benchmarks.harness.processes import result_of, running
from benchmarks.harness.servers import serve as serve_methods
from benchmarks.harness.servers import target_of
from benchmarks.overload.handlers import burn
from lbclient import wire
from tests.ports import free_port
from tests.redis_server import RedisServer

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "fleet"))

from cpu import Cpu  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TASKS = 4
CUSTOMERS = ("calm", "steady", "wild")
OTHERS = CUSTOMERS[:2]
WILD = CUSTOMERS[2]
LIMIT = 1.0  # CPU seconds a second of the fleet, for each of them
COST = 0.04  # seconds of the emulated processor; docs/quotas.md tells of half
BURNT = 0.001  # seconds of a real one
SHARE = LIMIT / COST  # requests a second
USUAL = 0.8  # of the share, what the others want
TIMES = 10.0
DEADLINE = 2.0
ONSET = 10.0  # seconds, of which the table tells by themselves
TIMES_DRAWN = 300  # seconds are drawn anew so often, for how far chance goes

ADDED = 0.1  # to the mean of the others, at most

WORK, SAY = "/benchmark.Quotas/Work", "/benchmark.Quotas/Say"


class Plan(NamedTuple):
    """Seconds: all are in order, not counted and counted; then one is not."""

    settling: float
    calm: float
    wild: float
    killed: float  # after the beginning of `wild`
    restarted: float

    @property
    def begins(self) -> float:
        return self.settling + self.calm

    @property
    def ends(self) -> float:
        return self.begins + self.wild

    @property
    def outage(self) -> tuple[float, float]:
        return self.begins + self.killed, self.begins + self.restarted


LONG = Plan(settling=10.0, calm=40.0, wild=45.0, killed=15.0, restarted=30.0)
QUICK = Plan(settling=8.0, calm=12.0, wild=24.0, killed=12.0, restarted=18.0)


# --- a task, in a process of its own -------------------------------------------


async def serve(store: str) -> None:
    """Until this process ends; says its port first. Without a store, no quotas."""
    cpu = Cpu(cores=1, speed=1.0)
    processors = len(os.sched_getaffinity(0))
    config = lbclient.ServerConfig(
        utilization=cpu.utilization,
        utilization_replaces=True,
        runnable=lambda: cpu.runnable,
        max_load=8.0 / processors,  # the emulated processor is one
        quotas=dict.fromkeys(CUSTOMERS, LIMIT) if store else None,
        quota_store=store or None,
        quota_share=1.0 / TASKS,
        cpu_factor=COST / BURNT,
    )
    server = lbclient.server(config=config)

    async def work(request: bytes, context: Any) -> bytes:
        burn(BURNT)
        await cpu.run(COST)
        return request

    async def say(request: bytes, context: Any) -> bytes:
        seen = server.statistics()
        heard = {"done": seen.quotas.exchanges, "failed": seen.quotas.failures}
        said = {**heard, "usage": dict(seen.usage), "shares": dict(seen.quotas.shares)}
        return json.dumps(said).encode()

    await serve_methods(server, {WORK: work, SAY: say})


# --- the load, in another ------------------------------------------------------


@dataclass
class Call:
    at: float  # seconds since the beginning
    customer: str
    code: str
    latency: float


def arrivals(plan: Plan, rng: Random) -> Iterator[tuple[float, str]]:
    for customer in CUSTOMERS:
        at, chance = 0.0, Random(rng.random())
        while at < plan.ends:
            wanted = 1.0 if customer == WILD else USUAL
            if customer == WILD and at >= plan.begins:
                wanted = TIMES
            yield at, customer
            at += chance.expovariate(wanted * SHARE)


async def load(
    ports: Sequence[int], plan: Sequence[float], seed: int
) -> list[list[Any]]:
    calls: list[Call] = []

    async def call(due: tuple[float, str]) -> None:
        (at, customer), code = due, "OK"
        try:
            metadata = ((wire.CUSTOMER_KEY, customer),)
            await methods[customer](b"", timeout=DEADLINE, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            code = error.code().name
        calls.append(Call(at, customer, code, time.monotonic() - began_at - at))

    async with contextlib.AsyncExitStack() as stack:
        methods: dict[str, Any] = {}
        for number, customer in enumerate(CUSTOMERS):
            config = lbclient.ChannelConfig(seed=seed + number)
            channel = lbclient.insecure_channel(target_of(ports), config=config)
            await stack.enter_async_context(channel)
            await channel.channel_ready()
            methods[customer] = channel.unary_unary(WORK)
        dues = sorted(arrivals(Plan(*plan), Random(seed)))
        began_at = time.monotonic()
        await open_loop(dues, call, lambda due: due[0])
    return packed(calls)


# --- the run ---------------------------------------------------------------------


@contextlib.asynccontextmanager
async def fleet(store: str) -> AsyncIterator[list[int]]:
    async with contextlib.AsyncExitStack() as stack:
        tasks = [
            await stack.enter_async_context(running(serve, store)) for _ in range(TASKS)
        ]
        yield [await task.hear() for task in tasks]


async def watch(ports: Sequence[int], plan: Plan) -> list[dict[str, Any]]:
    """What all tasks say of themselves, once a second."""
    began_at, seen = time.monotonic(), []
    async with contextlib.AsyncExitStack() as stack:
        asks: list[Any] = []
        for port in ports:
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
            await stack.enter_async_context(channel)
            asks.append(channel.unary_unary(SAY))
        while (now := time.monotonic() - began_at) < plan.ends:
            with contextlib.suppress(grpc.aio.AioRpcError):
                said = await asyncio.gather(*(ask(b"", timeout=1.0) for ask in asks))
                seen.append({"at": now, "tasks": [json.loads(one) for one in said]})
            await asyncio.sleep(1.0)
    return seen


async def outage(redis: RedisServer, plan: Plan) -> None:
    killed, restarted = plan.outage
    await asyncio.sleep(killed)
    redis.kill()
    await asyncio.sleep(restarted - killed)
    redis.start()


async def run(
    plan: Plan, redis: RedisServer | None, seed: int
) -> tuple[list[list[Any]], list[dict[str, Any]]]:
    """The calls, packed, and what the tasks said."""
    async with fleet(redis.url if redis else "") as ports:
        breaking = outage(redis, plan) if redis else asyncio.sleep(0)
        calls, seen, _ = await asyncio.gather(
            result_of(load, ports, plan, seed), watch(ports, plan), breaking
        )
    return calls, seen


# --- what comes of it --------------------------------------------------------------


Runs = Sequence[Sequence[Call]]
Marks = tuple[float, float, float]  # mean, p50, p99


@dataclass
class Figures:
    """Of the others, in one stretch of time; seconds, of what was served."""

    name: str
    requests: int
    errors: int
    mean: float
    p50: float
    p99: float
    added: Sequence[
        tuple[float, float]
    ]  # to each, from and to: 90 % of what chance does
    wild_served: float  # CPU seconds a second, by requests
    wild_refused: float  # of its requests


def marks(times: Sequence[float]) -> Marks:
    times = sorted(times)
    count = len(times)
    return sum(times) / count, times[count // 2], times[int(0.99 * count)]


def by_second(runs: Runs, begin: float, end: float) -> list[list[float]]:
    """What the others waited, of each second of each run."""
    found: dict[tuple[int, int], list[float]] = {}
    for number, calls in enumerate(runs):
        for call in calls:
            if begin <= call.at < end and call.customer in OTHERS and call.code == "OK":
                found.setdefault((number, int(call.at)), []).append(call.latency)
    return list(found.values())


def drawn(seconds: Sequence[list[float]], rng: Random) -> list[Marks]:
    """The same of seconds that are drawn from these (bootstrap by blocks)."""
    return [
        marks(
            [one for second in rng.choices(seconds, k=len(seconds)) for one in second]
        )
        for _ in range(TIMES_DRAWN)
    ]


def added(usual: Sequence[Marks], seen: Sequence[Marks]) -> list[tuple[float, float]]:
    spreads = []
    for kind in range(len(usual[0])):
        more = sorted(
            now[kind] / before[kind] - 1.0
            for before, now in zip(usual, seen, strict=True)
        )
        spreads.append((more[len(more) // 20], more[-len(more) // 20]))
    return spreads


def figures(
    name: str, runs: Runs, begin: float, end: float, usual: Sequence[Marks] = ()
) -> Figures:
    seen = [call for calls in runs for call in calls if begin <= call.at < end]
    others = [call for call in seen if call.customer in OTHERS]
    seconds = by_second(runs, begin, end)
    wild = [call for call in seen if call.customer == WILD]
    served = sum(call.code == "OK" for call in wild)
    return Figures(
        name,
        len(others),
        sum(call.code != "OK" for call in others),
        *marks([one for second in seconds for one in second]),
        added(usual, drawn(seconds, Random(2))) if usual else (),
        served * COST / (end - begin) / len(runs),
        sum(call.code == "RESOURCE_EXHAUSTED" for call in wild) / len(wild),
    )


def table(plan: Plan, runs: Runs) -> list[Figures]:
    usual = drawn(by_second(runs, plan.settling, plan.begins), Random(1))
    (first, since, until), *others = stretches(plan)
    return [
        figures(first, runs, since, until),
        *(figures(name, runs, begin, end, usual) for name, begin, end in others),
    ]


def stretches(plan: Plan) -> Iterator[tuple[str, float, float]]:
    killed, restarted = plan.outage
    yield "all in order", plan.settling, plan.begins
    yield "10 x, all of it", plan.begins, plan.ends
    yield "  first 10 s", plan.begins, plan.begins + ONSET
    yield "  then", plan.begins + ONSET, plan.ends
    yield "  Redis away", killed, restarted


def missed(rows: Sequence[Figures]) -> list[str]:
    """Which targets are. The first row is of the calm, the second of all the rest."""
    _, wild, *parts = rows
    found = []
    if wild.errors:
        found.append(f"{wild.name}: {wild.errors} errors of the others")
    for row in (wild, *parts):
        least = row.added[0][0]
        if least >= ADDED:
            found.append(f"{row.name.strip()}: {least:+.0%} or more added to the mean")
    return found


def say(rows: list[Figures]) -> None:
    print(f"{'':22}requests  errors   mean     p50     p99    wild: served  refused")
    usual = rows[0]
    for row in rows:
        print(
            f"{row.name:22}{row.requests:8d}{row.errors:8d}{row.mean * 1e3:5.0f} ms"
            f"{row.p50 * 1e3:5.0f} ms{row.p99 * 1e3:5.0f} ms"
            f"{row.wild_served:9.2f} CPU{row.wild_refused:8.0%}",
            flush=True,
        )
    compared = [row for row in rows if row.added]
    if compared:
        print("added, and 90 % of what chance does:")
    for row in compared:
        words = []
        for name, (low, high) in zip(("mean", "p50", "p99"), row.added, strict=False):
            more = getattr(row, name) / getattr(usual, name) - 1.0
            words.append(f"{name} {more:+.0%} ({low:+.0%} to {high:+.0%})")
        print(f"{row.name:22}  {', '.join(words)}", flush=True)


def draw(plan: Plan, calls: list[Call], without: list[Call]) -> "Figure":
    figure = blank(9, 7)
    above, below = figure.subplots(2, 1, sharex=True)
    seconds = range(int(plan.settling), int(plan.ends))

    def of_each(of: list[Call], read: Callable[[list[Call]], float]) -> list[float]:
        return [read([c for c in of if s <= c.at < s + 1]) for s in seconds]

    def rate(name: str) -> Callable[[list[Call]], float]:
        return lambda of: COST * sum(c.code == "OK" for c in of if c.customer == name)

    for customer in CUSTOMERS:
        above.plot(seconds, of_each(calls, rate(customer)), label=customer)
    above.axhline(LIMIT, color="gray", linestyle=":", label="limit of each")
    above.set_ylabel("CPU seconds a second, served")

    def p90(of: list[Call]) -> float:
        served = [c for c in of if c.customer in OTHERS and c.code == "OK"]
        times = sorted(c.latency for c in served)
        return 1e3 * times[int(0.9 * len(times))] if times else 0.0

    below.plot(seconds, of_each(calls, p90), label="with quotas")
    # That run is shorter: drawn so that both floods begin at once.
    late = [replace(call, at=call.at + plan.begins - QUICK.begins) for call in without]
    waited = of_each([call for call in late if call.at < plan.ends], p90)
    below.plot(seconds, [one or float("nan") for one in waited], label="without")
    below.set_yscale("log")
    below.set_ylabel("p90 of the other two, ms")
    below.set_xlabel("seconds")
    for axes in (above, below):
        axes.axvline(plan.begins, color="red", label=f"{WILD} wants {TIMES:g} times")
        axes.axvspan(*plan.outage, alpha=0.15, label="Redis away")
        axes.legend(loc="upper left", fontsize="small")
    return figure


async def compare(plan: Plan, seed: int) -> dict[str, Any]:
    redis = RedisServer(free_port())
    redis.start()
    try:
        calls, seen = await run(plan, redis, seed)
    finally:
        redis.kill()
    last = seen[-1]["tasks"]
    done, failed = (sum(task[key] for task in last) for key in ("done", "failed"))
    print(f"exchanges: {done} done, {failed} failed")
    bare, _ = await run(QUICK, None, seed)
    return {
        **machine(),
        "plan": plan._asdict(),
        "calls": calls,
        "without": bare,
        "tasks": seen,
    }


def packed(calls: Sequence[Call]) -> list[list[Any]]:
    return [[round(c.at, 4), c.customer, c.code, round(c.latency, 5)] for c in calls]


def unpacked(found: dict[str, Any], key: str) -> list[Call]:
    return [Call(*fields) for fields in found[key]]


def tell(found: Sequence[dict[str, Any]]) -> list[str]:
    """Of several runs as if they were one; returns which targets they miss."""
    rows = table(Plan(**found[0]["plan"]), [unpacked(one, "calls") for one in found])
    say(rows)
    bare = [unpacked(one, "without") for one in found]
    named = [(name, (begin, end)) for name, begin, end in stretches(QUICK)][:2]
    say([figures(f"no quotas: {one}", bare, *span) for one, span in named])
    return missed(rows)


def main() -> int:
    parser = parser_of("quotas", __doc__, quick="shorter phases", plot=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--read", metavar="FILE", nargs="+", help="tell of these runs")
    given = parser.parse_args()
    if given.read:
        found = [json.loads(Path(name).read_text()) for name in given.read]
    else:
        if shutil.which("redis-server") is None:
            parser.error("no redis-server: apt-get install redis-server")
        say_machine()
        plan = QUICK if given.quick else LONG
        found = [asyncio.run(compare(plan, given.seed))]
    runs = unpacked(found[0], "calls"), unpacked(found[0], "without")
    plan = Plan(**found[0]["plan"])
    return conclude(given, found[0], tell(found), lambda: draw(plan, *runs))


if __name__ == "__main__":
    exit_with(main)
