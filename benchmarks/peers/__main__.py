"""Balance and latency of real fleets: our channel beside what people use instead.

    python -m benchmarks.peers            about 6 minutes
    python -m benchmarks.peers --quick    about a minute and a half

Each contender has a fleet to itself, all at the same time, with the same requests:
eight servers of lbclient, every second one 2.5 times as fast, on emulated processors;
and two client processes, of which one sends four times as much. Load is open, half of
the fleet's capacity. Contenders are channels of lbclient and of grpc.aio with its
native policies, with outlier detection, with gRPC's own retries, also of the sinkhole's
errors, and through haproxy and nginx as they distribute connections by default, where
these are installed.

    diverse     nothing happens
    heavy tail  one request of a hundred costs 100 to 1,000 times as much
    step        a fast server slows down to a fifth
    antagonist  something else takes 0.6 of a fast server's CPU, every other 4 s
    restart     a server stops without notice, and is back a second later
    killed      SIGKILL of a server, another one is started a second later
    sinkhole    a server fails all requests, and at once
    half-open   connections to a server carry nothing any more; new ones do

Utilization is of the busiest server over the mean. Errors and what took longer than 5 s
count as 5 s.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, NamedTuple

import grpc

import lbclient
from benchmarks.faults import fronted
from benchmarks.harness.figures import Quantile, table
from benchmarks.harness.load import open_loop
from benchmarks.harness.measured import Measured
from benchmarks.harness.options import conclude, exit_with, parser_of
from benchmarks.harness.processes import all_entered, orders, running, say
from benchmarks.harness.servers import target_of
from benchmarks.peers.servers import (
    AWAY,
    BACKENDS,
    BESIDE,
    CAPACITY,
    FAILING,
    KILLED,
    LINKED,
    RESTARTED,
    SLOW,
    SPEEDS,
    STEPPED,
    WORK,
    be_servers,
)
from examples.fleet.traffic import Traffic

LOAD, RATES = 0.5, (56.0, 14.0)  # requests a second of each client
COST = LOAD * CAPACITY / sum(RATES)
DEADLINE = 5.0
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


Order = tuple[str, int, float]
"""What happens to a server, which one, and how much."""

LOOK: Order = ("look", 0, 0.0)


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    is_heavy: bool = False
    order: Order | None = None
    undo: Order | None = None
    kills: bool = False
    idle: int | None = None  # a server that has less to do than others, as it should


PHASES = (
    Phase("diverse"),
    Phase("heavy tail", is_heavy=True),
    Phase("step", order=("speed", STEPPED, SLOW), undo=("speed", STEPPED, SPEEDS[1])),
    Phase(
        "antagonist",
        order=("antagonist", STEPPED, BESIDE),
        undo=("antagonist", STEPPED, 0.0),
    ),
    Phase("restart", order=("restart", RESTARTED, AWAY)),
    Phase("killed", kills=True, idle=KILLED),
    Phase(
        "sinkhole",
        order=("fails", FAILING, 1.0),
        undo=("fails", FAILING, 0.0),
        idle=FAILING,
    ),
    Phase("half-open", order=("stall", LINKED, 1.0), undo=("stall", LINKED, 0.0)),
)


# --- clients, in processes of their own -------------------------------------------


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


class Usage(NamedTuple):
    """Of a server's CPU: core seconds in use, of seconds."""

    busy: float
    elapsed: float


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


class Peer:
    """One contender: its fleet, of which one server can be killed, and its clients."""

    def __init__(self, kind: str, stack: AsyncExitStack) -> None:
        self.kind = kind
        self._enter = stack.enter_async_context

    async def start(self, stack: AsyncExitStack) -> None:
        fleet = [n for n in range(BACKENDS) if n != KILLED]
        self._numbers = [*fleet, KILLED]
        self._fleet = await self._enter(running(be_servers, fleet))
        self._alone = await self._enter(running(be_servers, [KILLED]))
        ports = [*await self._fleet.hear(), *await self._alone.hear()]
        self._port = ports[-1]
        target = target_of(ports)
        if self.kind in FRONTS:
            front = await self._enter(fronted.proxy(self.kind, ports, routed=True))
            target = f"ipv4:{front.address}"
        clients = [
            running(be_client, self.kind, target, rate, str(number))
            for number, rate in enumerate(RATES)
        ]
        self._clients = await all_entered(stack, clients)

    async def play(self, phase: Phase, seconds: float) -> Figures:
        before = await self._look(phase.order)
        words = phase.name, seconds, phase.is_heavy
        asked = asyncio.gather(*(each.ask(*words) for each in self._clients))
        if phase.kills:
            await self._replace()
        latencies = [took for each in await asked for took in each]
        after = await self._look(phase.undo)
        used = [
            (after[n].busy - before[n].busy) / (after[n].elapsed - before[n].elapsed)
            for n in self._numbers
            if n != phase.idle
        ]
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

    async def _look(self, order: Order | None) -> dict[int, Usage]:
        """How busy each server has been; what is ordered happens then."""
        both = self._fleet, self._alone
        said = await asyncio.gather(*(each.ask(*(order or LOOK)) for each in both))
        usages = [Usage(*one) for each in said for one in each]
        return dict(zip(self._numbers, usages, strict=True))

    async def _replace(self) -> None:
        await self._alone.close()
        await asyncio.sleep(AWAY)
        again = running(be_servers, [KILLED], [self._port])
        self._alone = await self._enter(again)
        await self._alone.hear()


@asynccontextmanager
async def peer_of(kind: str) -> AsyncIterator[Peer]:
    async with AsyncExitStack() as stack:
        peer = Peer(kind, stack)
        await peer.start(stack)
        yield peer


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
