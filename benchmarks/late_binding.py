"""Late binding: what `ChannelConfig.late_binding` gives, and what it costs.

    python -m benchmarks.late_binding                    about five minutes
    python -m benchmarks.late_binding --only simulated   three seeds, with one core
    python -m benchmarks.late_binding --only simulated --declining 0.05 --most 2
    python -m benchmarks.late_binding --only real

By simulation, on the same requests with and without it: clients that send little,
unequal ones, backends of one core, and a fleet of two kinds of machines. A declined
attempt costs its backend a share of a request, `--declining`, and a round trip.

Then with real processes: eight servers, each of one emulated core, and 40 channels that
send 1.4 requests a second each. By turns with and without it, on the same requests.
Each request has a number, by which servers count how often it was served.

Promised: no cell's p99 is longer by more than 3 %, that of clients that send little and
of one core is shorter by 5 % below a load of 0.9, and every call is served once.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable
from contextlib import AsyncExitStack
from random import Random
from typing import Any, NamedTuple

import lbclient
from benchmarks.harness.figures import say_machine, table
from benchmarks.harness.measured import Measured, measured
from benchmarks.harness.options import conclude, exit_with, parser_of
from benchmarks.harness.processes import orders, running, say
from benchmarks.harness.servers import listen, target_of
from benchmarks.simulator.latency import ALIKE, OURS
from benchmarks.simulator.runs import Case, Run, Runs
from lbclient.config import ChannelConfig, ServerConfig
from lbclient.core.overload import late_binding

SPARSE, ONE_CORE = "S10_sparse", "S1_homog, one core"
TITLES = (SPARSE, "S6_unequal", ONE_CORE, "S2_diverse")
LOADS = (0.5, 0.7, 0.85, 0.95)
SEEDS = (1, 2, 3)
DECLINING = 0.01  # of a request of 20 ms: the 0.2 ms of `benchmarks.refusals`
NO_LONGER, SHORTER = 1.03, 0.95  # p99 with it over that without
FULL = 0.9  # load, from which on it gives nothing

METHOD = "/benchmark.LateBinding/Call"
SERVERS, CLIENTS = 8, 40
COST, LOAD = 0.1, 0.7  # seconds of a core, in the mean; of all cores
SETTLE, WINDOW, ROUNDS = 5.0, 20.0, 3  # seconds
RATE = LOAD * SERVERS / COST


# --- by simulation -----------------------------------------------------------------


class Cell(NamedTuple):
    """One scenario at one load: seeds without and with it."""

    title: str
    load: float
    without: list[Run]
    late: list[Run]
    declined: float  # attempts, each request

    def ratios(self, field: str) -> list[float]:
        pairs = zip(self.late, self.without, strict=True)
        return [getattr(new, field) / getattr(old, field) for new, old in pairs]

    @property
    def goal(self) -> float:
        gives = self.title in (SPARSE, ONE_CORE) and self.load < FULL
        return SHORTER if gives else NO_LONGER


def simulated(declining: float) -> list[Cell]:
    runs, cells = Runs(None, SEEDS, 3600.0), []
    late = ("late_binding", 1), ("refusal_cost", declining)
    for title in TITLES:
        for load in LOADS:
            case = Case(title.partition(",")[0], load, OURS, (), ALIKE[title])
            new = runs.of(case._replace(changes=(*case.changes, *late)))
            declined = mean(one.attempts - 1.0 for one in new)
            cells.append(Cell(title, load, runs.of(case), new, declined))
    return cells


def mean(values: Iterable[float]) -> float:
    several = [*values]
    return sum(several) / len(several)


def tell_simulated(cells: list[Cell]) -> None:
    head = ["scenario@load", "p50, ms", "with it", "p99, ms", "with it", "ratio",
            "declined, each request"]  # fmt: skip
    rows = [head]
    for cell in cells:
        figures = [
            f"{1000.0 * mean(getattr(run, field) for run in side):.{digits}f}"
            for field, digits in (("p50", 1), ("p99", 0))
            for side in (cell.without, cell.late)
        ]
        ratio = f"{mean(cell.ratios('p99')):.2f}"
        name = f"{cell.title} @{cell.load:g}"
        rows.append([name, *figures, ratio, f"{cell.declined:.2f}"])
    print(table(rows))


# --- with processes ----------------------------------------------------------------


async def serve() -> None:
    """One emulated core, first come, first served. Says its port, and at an order its
    counts: served in all, served more than once, and declined."""
    clock = asyncio.get_running_loop().time
    core, wanting, busy, since = asyncio.Lock(), 0, 0.0, clock()
    seen: Counter[bytes] = Counter()

    async def respond(request: bytes, context: Any) -> bytes:
        nonlocal wanting, busy
        seen[request] += 1
        wanting += 1
        try:
            async with core:
                began = clock()
                await asyncio.sleep(float(request.split()[1]))
                busy += clock() - began
        finally:
            wanting -= 1
        return request

    def utilization() -> float:
        nonlocal busy, since
        now = clock()
        share, busy, since = busy / max(1e-3, now - since), 0.0, now
        return share

    config = ServerConfig(
        utilization=utilization,
        utilization_replaces=True,
        runnable=lambda: wanting,
        max_load=0.0,
    )
    server = lbclient.server(config=config)
    say(await listen(server, {METHOD: respond}))
    async for _ in orders():
        many = sum(count > 1 for count in seen.values())
        say([seen.total(), many, server.statistics().declined])


async def send(ports: list[int], seed: int, late: bool) -> None:
    """Says how long calls took after `SETTLE`, how many were made and failed, and how
    many attempts were declined."""
    rng, clock = Random(seed), asyncio.get_running_loop().time
    lasted: list[float] = []
    failed = number = 0

    async def call(method: Any, cost: float, number: int) -> None:
        nonlocal failed
        began = clock()
        try:
            await method(b"%d:%d:%d %.6f" % (seed, late, number, cost), timeout=30.0)
        except Exception:
            failed += 1
        if began >= settled:
            lasted.append(clock() - began)

    async with AsyncExitStack() as stack:
        channels = []
        for _ in range(CLIENTS):
            config = ChannelConfig(late_binding=late, health_interval=10.0)
            channel = lbclient.insecure_channel(target_of(ports), config=config)
            channels.append(await stack.enter_async_context(channel))
            await channel.channel_ready()
        methods: list[Any] = [channel.unary_unary(METHOD) for channel in channels]
        at = clock()
        settled = at + SETTLE
        calls = []
        while at < settled + WINDOW:
            await asyncio.sleep(max(0.0, at - clock()))
            cost = rng.expovariate(1.0 / COST)
            calls.append(asyncio.create_task(call(rng.choice(methods), cost, number)))
            number += 1
            at += rng.expovariate(RATE)
        await asyncio.gather(*calls)
        told = [channel.statistics().attempts["declined"] for channel in channels]
        say([lasted, number, failed, sum(told)])
    async for _ in orders():
        pass


class Side(NamedTuple):
    """One run of real processes; times in seconds."""

    late: bool
    p50: float
    p99: float
    calls: int
    failed: int
    declined: int  # as clients count, and ...
    declined_there: int  # ... as servers do
    served: int
    served_again: int

    @property
    def is_sound(self) -> bool:
        counts = self.declined == self.declined_there and self.served == self.calls
        return counts and not (self.failed or self.served_again)


async def real() -> list[Side]:
    sides = []
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(running(serve)) for _ in range(SERVERS)
        ]
        ports = [await server.hear() for server in servers]
        before = [0, 0, 0]
        for seed in range(ROUNDS):
            for late in (False, True):
                async with running(send, ports, seed, late) as client:
                    lasted, calls, failed, declined = await client.hear()
                said = [await server.ask("counts") for server in servers]
                counts = [sum(column) for column in zip(*said, strict=True)]
                new = [a - b for a, b in zip(counts, before, strict=True)]
                before = counts
                lasted.sort()
                p50, p99 = (lasted[int(len(lasted) * q)] for q in (0.5, 0.99))
                served, again, there = new
                side = Side(
                    late, p50, p99, calls, failed, declined, there, served, again
                )
                sides.append(side)
                print(side, flush=True)
    return sides


def tell_real(sides: list[Side]) -> None:
    rows = [["", "p50, ms", "p99, ms", "calls", "declined", "failed", "served again"]]
    for late in (False, True):
        some = [side for side in sides if side.late == late]
        sums = (
            sum(getattr(side, field) for side in some)
            for field in ("calls", "declined", "failed", "served_again")
        )
        p50, p99 = (mean(getattr(s, field) for s in some) for field in ("p50", "p99"))
        name = "late binding" if late else "without"
        times = f"{1000.0 * p50:.0f}", f"{1000.0 * p99:.0f}"
        rows.append([name, *times, *map(str, sums)])
    print(table(rows))


def told(cells: list[Cell], sides: list[Side]) -> list[Measured]:
    figures = [
        Measured(
            name=f"{cell.title} at {cell.load:g}: p99 with late binding / without",
            value=(value := mean(cell.ratios("p99"))),
            spread=(value, value),
            better="less",
            goal=cell.goal,
        )
        for cell in cells
    ]
    if sides:
        pairs = [*zip(sides[1::2], sides[::2], strict=True)]
        for field in ("p50", "p99"):
            ratios = [getattr(new, field) / getattr(old, field) for new, old in pairs]
            name = f"real processes: {field} with late binding / without"
            figures.append(measured(name, ratios, better="less"))
    return figures


def main() -> int:
    parser = parser_of("late_binding", __doc__)
    parser.add_argument("--only", choices=("simulated", "real"), help="one of the two")
    what = f"cost of a declined attempt, in simulated requests; default {DECLINING}"
    parser.add_argument("--declining", type=float, default=DECLINING, help=what)
    bound, what = late_binding.MOST_UTILIZATION, "utilization that ends it; default"
    parser.add_argument("--most", type=float, default=bound, help=f"{what} {bound}")
    given = parser.parse_args()
    say_machine()
    late_binding.MOST_UTILIZATION = given.most
    cells = simulated(given.declining) if given.only != "real" else []
    if cells:
        tell_simulated(cells)
    sides = asyncio.run(real()) if given.only != "simulated" else []
    if sides:
        tell_real(sides)
    missed = [f"counts of {side}" for side in sides if not side.is_sound]
    found = {"simulated": cells, "real": sides}
    return conclude(given, found, missed, measured=told(cells, sides))


if __name__ == "__main__":
    exit_with(main)
