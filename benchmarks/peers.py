"""Balance and latency of real fleets: our channel beside what people use instead.

    python -m benchmarks.peers            about 4 minutes
    python -m benchmarks.peers --quick    about a minute

Each contender has a fleet to itself, all at the same time, with the same requests: a
process of eight servers of lbclient, every second one 2.5 times as fast, on emulated
processors; and two client processes, of which one sends four times as much. Load is
open, half of the fleet's capacity. Contenders are channels of lbclient and of grpc.aio
with its native policies, with outlier detection, with gRPC's own retries, also of the
sinkhole's errors, and through haproxy and nginx as they distribute connections by
default, where these are installed.

    diverse     nothing happens
    heavy tail  one request of a hundred costs 100 to 1,000 times as much
    step        a fast server slows down to a fifth
    restart     a server stops without notice, and is back a second later
    sinkhole    a server fails all requests, and at once

Utilization is of the busiest server over the mean. Errors and what took longer than 5 s
count as 5 s.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import grpc

import lbclient
from benchmarks.faults import fronted
from benchmarks.harness.figures import Quantile, table
from benchmarks.harness.load import open_loop
from benchmarks.harness.measured import Measured
from benchmarks.harness.options import conclude, exit_with, parser_of
from benchmarks.harness.processes import Process, all_entered, orders, running, say
from benchmarks.harness.servers import listen, target_of
from examples.fleet.traffic import Traffic

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "fleet"))
emulated: Any = import_module("cpu")

WORK = "/benchmark.Peers/Work"
BACKENDS, CORES, SPEEDS = 8, 2, (1.0, 2.5)
CAPACITY = CORES * BACKENDS * sum(SPEEDS) / len(SPEEDS)
LOAD, RATES = 0.5, (56.0, 14.0)  # requests a second of each client
COST = LOAD * CAPACITY / sum(RATES)
DEADLINE = 5.0
STEPPED, SLOW, FAILING = 1, 0.5, 0  # a fast server, to which speed; one that fails
RESTARTED, AWAY = 3, 1.0  # which server, and for how many seconds
SETTLE = 5.0  # seconds of load before anything is measured
SECONDS, QUICK = 40.0, 8.0

OURS = "lbclient"
WEIGHTED: dict[str, Any] = {
    "weighted_round_robin": {"blackoutPeriod": "1s", "weightUpdatePeriod": "1s"}
}
POLICIES: dict[str, dict[str, Any]] = {
    "pick_first": {"pick_first": {}},
    "round_robin": {"round_robin": {}},
    "weighted_round_robin": WEIGHTED,
    "outlier_detection": {
        "outlier_detection_experimental": {
            "interval": "1s",
            "baseEjectionTime": "5s",
            "failurePercentageEjection": {"requestVolume": 5, "minimumHosts": 3},
            "childPolicy": [WEIGHTED],
        }
    },
    "retryPolicy": WEIGHTED,
}
RETRIES = {
    "name": [{}],
    "retryPolicy": {
        "maxAttempts": 4,
        "initialBackoff": "0.01s",
        "maxBackoff": "0.1s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE", "INTERNAL"],
    },
}
FRONTS = ("haproxy", "nginx")


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    is_heavy: bool = False
    order: tuple[int, str, float] | None = None  # to a server, what, and how much
    undo: tuple[int, str, float] | None = None


PHASES = (
    Phase("diverse"),
    Phase("heavy tail", is_heavy=True),
    Phase("step", order=(STEPPED, "speed", SLOW), undo=(STEPPED, "speed", SPEEDS[1])),
    Phase("restart", order=(RESTARTED, "restart", AWAY)),
    Phase("sinkhole", order=(FAILING, "fails", 1.0), undo=(FAILING, "fails", 0.0)),
)


# --- servers and clients, in processes of their own ----------------------------


async def be_fleet() -> None:
    cpus = [emulated.Cpu(CORES, SPEEDS[n % len(SPEEDS)]) for n in range(BACKENDS)]
    failing: set[int] = set()
    servers, ports = [], []
    for number, cpu in enumerate(cpus):
        server, methods = server_of(number, cpu, failing)
        servers.append(server)
        ports.append(await listen(server, methods))
    say(ports)

    async def restart(number: int, away: float) -> None:
        await servers[number].stop(None)
        await asyncio.sleep(away)
        server, methods = server_of(number, cpus[number], failing)
        servers[number] = server
        await listen(server, methods, ports[number])

    restarts = []
    async for what, number, value in orders():
        if what == "speed":
            cpus[number].usage()  # at the speed that it had until now
            cpus[number]._processor.speed = value
            cpus[number]._set_timer()
        elif what == "fails":
            (failing.add if value else failing.discard)(number)
        elif what == "restart":
            restarts.append(asyncio.create_task(restart(number, value)))
        say([cpu.usage() for cpu in cpus])


def server_of(number: int, cpu: Any, failing: set[int]) -> tuple[Any, Any]:
    async def work(request: bytes, context: Any) -> bytes:
        if number in failing:
            await context.abort(grpc.StatusCode.INTERNAL, "a sinkhole")
        await cpu.run(float(request))
        return b""

    config = lbclient.ServerConfig(
        utilization=cpu.utilization,
        utilization_replaces=True,
        runnable=lambda: cpu.runnable,
        smoothing=1.0,
        max_load=0,  # it shows who balances better, not what a task sheds
    )
    return lbclient.server(config=config), {WORK: work}


def channel_of(kind: str, target: str) -> grpc.aio.Channel:
    if kind == OURS:
        return lbclient.insecure_channel(target)
    policy = POLICIES.get(kind, {"pick_first": {}})
    config: dict[str, Any] = {"loadBalancingConfig": [policy]}
    if kind == "retryPolicy":
        config["methodConfig"] = [RETRIES]
    options = [
        ("grpc.service_config", json.dumps(config)),
        ("grpc.enable_http_proxy", 0),
    ]
    return grpc.aio.insecure_channel(target, options)


async def be_client(kind: str, target: str, rate: float, seed: str) -> None:
    """Says for each order the latencies of all calls; failed ones took `DEADLINE`."""
    async with channel_of(kind, target) as channel:
        method: Any = channel.unary_unary(WORK)
        async for name, seconds, is_heavy in orders():
            traffic = Traffic(rate, COST, is_heavy, Random(f"{seed}/{name}"))
            dues = [*requests(traffic, seconds)]
            latencies: list[float] = []
            call = partial(one, method, latencies)
            await open_loop(dues, call, lambda due: due[0])
            say(latencies)


def requests(traffic: Traffic, seconds: float) -> Iterator[tuple[float, float]]:
    """When, and at what cost."""
    at = traffic.gap()
    while at < seconds:
        yield at, traffic.cost()
        at += traffic.gap()


async def one(method: Any, latencies: list[float], due: tuple[float, float]) -> None:
    clock = asyncio.get_running_loop().time
    began_at = clock()
    try:
        await method(str(due[1]).encode(), timeout=DEADLINE)
        latencies.append(clock() - began_at)
    except grpc.aio.AioRpcError:
        latencies.append(DEADLINE)


# --- contenders ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Figures:
    kind: str
    phase: str
    calls: int
    errors: float  # share, with what took too long
    p50: Quantile
    p99: Quantile
    p999: Quantile
    max_over_mean: float


@dataclass(frozen=True, slots=True)
class Peer:
    """One contender: its fleet and its clients."""

    kind: str
    fleet: Process
    clients: Sequence[Process]

    async def play(self, phase: Phase, seconds: float) -> Figures:
        place, what, value = phase.order or (0, "look", 0.0)
        before = await self.fleet.ask(what, place, value)
        words = phase.name, seconds, phase.is_heavy
        lists = await asyncio.gather(*(each.ask(*words) for each in self.clients))
        place, what, value = phase.undo or (0, "look", 0.0)
        after = await self.fleet.ask(what, place, value)
        used = [
            (busy - was_busy) / (elapsed - was_elapsed)
            for (busy, elapsed), (was_busy, was_elapsed) in zip(
                after, before, strict=True
            )
        ]
        if phase.name == "sinkhole":
            del used[FAILING]  # which is idle
        latencies = [seconds for each in lists for seconds in each]
        late = sum(seconds >= DEADLINE for seconds in latencies)
        return Figures(
            self.kind,
            phase.name,
            len(latencies),
            late / len(latencies),
            Quantile.of(latencies, 0.5),
            Quantile.of(latencies, 0.99),
            Quantile.of(latencies, 0.999),
            max(used) * len(used) / sum(used) if any(used) else len(used),
        )


@asynccontextmanager
async def peer_of(kind: str) -> AsyncIterator[Peer]:
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        fleet = await enter(running(be_fleet))
        ports = await fleet.hear()
        target = target_of(ports)
        if kind in FRONTS:
            front = await enter(fronted.proxy(kind, ports, routed=True))
            target = f"ipv4:{front.address}"
        clients = await all_entered(
            stack,
            [
                running(be_client, kind, target, rate, str(number))
                for number, rate in enumerate(RATES)
            ],
        )
        yield Peer(kind, fleet, clients)


async def measure(kinds: Sequence[str], seconds: float) -> list[Figures]:
    found = []
    async with AsyncExitStack() as stack:
        peers = await all_entered(stack, map(peer_of, kinds))
        settling = Phase("settle")
        await asyncio.gather(*(peer.play(settling, SETTLE) for peer in peers))
        for phase in PHASES:
            found += await asyncio.gather(
                *(peer.play(phase, seconds) for peer in peers)
            )
    return found


def told(found: Sequence[Figures]) -> Iterator[Measured]:
    ours = {one.phase: one for one in found if one.kind == OURS}
    for one in found:
        mine, name = ours[one.phase], f"{one.phase}, {one.kind}"
        if one.kind == OURS:
            yield Measured(
                name=f"{name}: utilization, max/mean", value=one.max_over_mean
            )
            yield Measured(name=f"{name}: p99", value=1e3 * one.p99.value, unit="ms")
        else:
            both = f"{one.phase}, {OURS} / {one.kind}"
            tails = {
                "p50": mine.p50.over(one.p50),
                "p99": mine.p99.over(one.p99),
                "p99.9": mine.p999.over(one.p999),
            }
            for what, (ratio, between) in tails.items():
                yield Measured(
                    name=f"{both}: {what}", value=ratio, spread=between, better="less"
                )
            yield Measured(
                name=f"{both}: utilization, max/mean",
                value=mine.max_over_mean / one.max_over_mean,
                better="less",
            )
        yield Measured(name=f"{name}: errors", value=100.0 * one.errors, unit="%")


def row(one: Figures) -> list[str]:
    times = (f"{1e3 * each.value:.0f}" for each in (one.p50, one.p99, one.p999))
    shares = f"{one.errors:.2%}", f"{one.max_over_mean:.2f}"
    return [one.phase, one.kind, f"{one.calls}", *times, *shares]


HEAD = ["phase", "contender", "calls", "p50 ms", "p99", "p99.9", "errors", "max/mean"]


def main() -> int:
    parser = parser_of("peers", __doc__, quick=f"{QUICK:g} s of each phase")
    given = parser.parse_args()
    fronts = [kind for kind in FRONTS if fronted.program(kind)]
    kinds = [OURS, *POLICIES, *fronts]
    found = asyncio.run(measure(kinds, QUICK if given.quick else SECONDS))
    print(table([HEAD, *map(row, found)], left=2))
    return conclude(given, found, None, measured=told(found))


if __name__ == "__main__":
    exit_with(main)
