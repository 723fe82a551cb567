"""What hedging does to the tail of latencies, and what it costs.

    python -m benchmarks.hedging            a minute
    python -m benchmarks.hedging --json FILE

Two channels call the same ten servers in turn, one with hedging and one without, 120
calls a second each. The servers are in a process of their own, and so is the client. A
call takes 8 ms and an exponential time of 4 ms. First, one server of ten lets 5 % of
its calls stall for a second; then each server lets 0.5 % stall.

Then all backends become slow. Each of three channels, of which one hedges, has four
servers to itself, of four places each, which admit by lbclient's default rules. A call
takes 20 ms, and from then on 120 ms, so that 160 calls a second, with a deadline of a
second, are 1.2 times what can be served. The two channels that do not hedge differ by
chance.

Exit status 1 if hedging leaves more than a fifth of the p99.9 of a stall, or sends more
than 2 % more requests, or if it serves fewer calls in time, by more than chance.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, NamedTuple

import grpc

import lbclient
from benchmarks.harness.figures import quantile
from benchmarks.harness.load import steady, until
from benchmarks.harness.measured import Measured
from benchmarks.harness.options import conclude, exit_with, parser_of
from benchmarks.harness.processes import orders, running, say
from benchmarks.harness.servers import listen, target_of

PATHS = {False: "/benchmark.Hedging/Without", True: "/benchmark.Hedging/With"}
BACKENDS, SLOW_BACKENDS, PLACES = 10, 4, 4
STALL, LEAST, MEAN = 1.0, 0.008, 0.004  # seconds
RATE, SECONDS, LEARNING = 120.0, 20.0, 3.0  # calls a second; seconds
QUICK, SLOW = 0.02, 0.12  # seconds of a call
SLOW_RATE, SLOW_SECONDS, DEADLINE = 160.0, 12.0, 1.0
PATIENT = DEADLINE + STALL
HEDGING = (False, True, False)
CASES = {"one of ten stalls 5 %": (0.05, 0.0), "each stalls 0.5 %": (0.005, 0.005)}

LEFT = 0.2  # of the p99.9
BUDGET = 0.02  # more requests
LOST = 0.02  # of the calls: what two runs may differ by, besides what they show


class Found(NamedTuple):
    calls: int
    p50: float | None
    p99: float | None
    p999: float | None
    in_time: float  # share of the calls
    requests: float  # arrivals for each call
    hedges: int
    won: int
    withheld: dict[str, int]


# --- servers ------------------------------------------------------------------------


async def stalling(backends: int) -> None:
    """Servers; told how much of its calls the first one stalls, and each other one."""
    arrived, stalls = Counter[str](), [0.0] * backends

    def methods(number: int) -> dict[str, Any]:
        def method(path: str) -> Any:
            async def answer(request: bytes, context: Any) -> bytes:
                arrived[path] += 1
                took = LEAST + random.expovariate(1 / MEAN)
                stall = STALL if random.random() < stalls[number] else 0.0
                await asyncio.sleep(took + stall)
                return request

            return answer

        return {path: method(path) for path in PATHS.values()}

    alike = lbclient.ServerConfig(max_load=0.0)
    servers = [lbclient.server(config=alike) for _ in range(backends)]
    say([await listen(one, methods(n)) for n, one in enumerate(servers)])
    async for first, others in orders():
        stalls[:] = [first, *[others] * (backends - 1)]
        say(arrived)


async def limited(backends: int) -> None:
    """Servers with a few places each; told how long a call takes in one."""
    arrived, took = Counter[str](), [QUICK]

    def methods() -> dict[str, Any]:
        places = asyncio.Semaphore(PLACES)

        def method(path: str) -> Any:
            async def answer(request: bytes, context: Any) -> bytes:
                arrived[path] += 1
                async with places:
                    await asyncio.sleep(took[0])
                return request

            return answer

        return {path: method(path) for path in PATHS.values()}

    servers = [lbclient.server() for _ in range(backends)]
    say([await listen(one, methods()) for one in servers])
    async for (seconds,) in orders():
        took[0] = seconds
        say(arrived)


# --- the client ---------------------------------------------------------------------


class Client:
    def __init__(self, target: str, backends: int, hedges: bool) -> None:
        path = PATHS[hedges]
        config = lbclient.ChannelConfig(hedging=hedges, idempotent=(path,))
        self.channel = lbclient.insecure_channel(target, config=config)
        self.method: Any = self.channel.unary_unary(path)
        self.backends = backends
        self.took: list[float] = []
        self.ends = Counter[str]()

    async def ready(self) -> None:
        await self.channel.channel_ready()

        def states() -> list[str]:
            return [one.state for one in self.channel.statistics().backends]

        await until(lambda: states() == ["ready"] * self.backends, states)

    async def call(self, timeout: float) -> None:
        began_at = time.monotonic()
        try:
            await self.method(b"", timeout=timeout)
            took = time.monotonic() - began_at
            self.took.append(took)
            self.ends["in time" if took < DEADLINE else "late"] += 1
        except grpc.aio.AioRpcError as error:
            self.ends[error.code().name] += 1

    def counts(self) -> list[Any]:
        said = self.channel.statistics()
        return [said.hedges, said.hedges_won, said.hedges_withheld]


async def load(targets: list[tuple[str, bool]], backends: int) -> None:
    """A channel for each target, with hedging or without. Told a rate, for how long,
    and a timeout; says what each saw."""
    clients = [Client(target, backends, hedges) for target, hedges in targets]
    for client in clients:
        await client.ready()
    say("ready")
    async for rate, seconds, timeout in orders():
        before = [client.counts() for client in clients]
        for client in clients:
            client.took.clear()
            client.ends.clear()
        calls = [partial(client.call, timeout) for client in clients]
        await asyncio.gather(*(steady(rate, seconds, call) for call in calls))
        say(
            [
                [one.took, one.ends, was, one.counts()]
                for one, was in zip(clients, before, strict=True)
            ]
        )


def found(seen: list[Any], arrived: int) -> Found:
    took, ends, before, after = seen
    calls = sum(ends.values())
    return Found(
        calls,
        p50=quantile(took, 0.5),
        p99=quantile(took, 0.99),
        p999=quantile(took, 0.999),
        in_time=ends.get("in time", 0) / calls,
        requests=arrived / calls,
        hedges=after[0] - before[0],
        won=after[1] - before[1],
        withheld=dict(Counter(after[2]) - Counter(before[2])),
    )


async def stalls() -> dict[str, list[Found]]:
    told = {}
    async with running(stalling, BACKENDS) as servers:
        target = target_of(await servers.hear())
        pair = [(target, hedges) for hedges in PATHS]
        async with running(load, pair, BACKENDS) as client:
            await client.hear()
            await servers.ask(0.0, 0.0)
            await client.ask(RATE, LEARNING, PATIENT)
            for case, shares in CASES.items():
                before = await servers.ask(*shares)
                seen = await client.ask(RATE, SECONDS, PATIENT)
                after = Counter(await servers.ask(*shares)) - Counter(before)
                told[case] = [
                    found(one, after[PATHS[hedges]])
                    for one, hedges in zip(seen, PATHS, strict=True)
                ]
                tell(case, told[case], PATHS)
    return told


async def slow() -> list[Found]:
    async with AsyncExitStack() as stack:
        fleets = [
            await stack.enter_async_context(running(limited, SLOW_BACKENDS))
            for _ in HEDGING
        ]
        targets = [
            (target_of(await servers.hear()), hedges)
            for servers, hedges in zip(fleets, HEDGING, strict=True)
        ]
        async with running(load, targets, SLOW_BACKENDS) as client:
            await client.hear()
            await client.ask(SLOW_RATE, LEARNING, DEADLINE)
            before = [Counter(await servers.ask(SLOW)) for servers in fleets]
            seen = await client.ask(SLOW_RATE, SLOW_SECONDS, DEADLINE)
            after = [Counter(await servers.ask(SLOW)) for servers in fleets]
        all_of_them = [
            found(one, (now - was).total())
            for one, now, was in zip(seen, after, before, strict=True)
        ]
        tell("all are slow", all_of_them, HEDGING)
        return all_of_them


# --- what comes of it ---------------------------------------------------------------


def tell(case: str, each: list[Found], which: Iterable[bool]) -> None:
    for hedges, one in zip(which, each, strict=True):
        times = "".join(
            f"{1000 * (seconds or 0.0):9.0f}"
            for seconds in (one.p50, one.p99, one.p999)
        )
        withheld = ", ".join(f"{n} {why}" for why, n in one.withheld.items())
        print(
            f"{case:24}{'with' if hedges else 'without':8}{one.calls:7}{times}"
            f"{one.in_time:9.1%}{one.requests:10.4f}{one.hedges:8}{one.won:6}"
            f"  {withheld}",
            flush=True,
        )


def missed(tails: dict[str, list[Found]], slowed: list[Found]) -> list[str]:
    said = []
    for case, (without, hedged) in tails.items():
        if (hedged.p999 or STALL) > LEFT * (without.p999 or 0.0):
            said.append(f"{case}: the p99.9")
    for case, each in {**tails, "all are slow": slowed}.items():
        hedged, others = each[1], each[::2]
        if hedged.requests > 1.0 + BUDGET + 1 / hedged.calls:
            said.append(f"{case}: {hedged.requests:.4f} requests a call")
        if hedged.in_time < min(one.in_time for one in others) - LOST:
            said.append(f"{case}: served in time")
    return said


def told(tails: dict[str, list[Found]], slowed: list[Found]) -> Iterator[Measured]:
    """Hedged over not hedged; the first and the last of `slowed` do not hedge."""
    for case, (without, hedged) in tails.items():
        ratio = (hedged.p999 or STALL) / (without.p999 or STALL)
        name = f"{case}, hedged / not: p99.9"
        yield Measured(name=name, value=ratio, better="less")
        name = f"{case}, hedged: requests for each call"
        yield Measured(name=name, value=hedged.requests)
    without, hedged, *_ = slowed
    ratio = hedged.in_time / max(without.in_time, 0.01)
    name = "all are slow, hedged / not: served in time"
    yield Measured(name=name, value=ratio, better="more")


async def run() -> tuple[dict[str, list[Found]], list[Found]]:
    return await stalls(), await slow()


def main() -> int:
    given = parser_of("hedging", __doc__).parse_args()
    print(
        f"{'':24}{'hedging':8}{'calls':>7}{'p50 ms':>9}{'p99':>9}{'p99.9':>9}"
        f"{'in time':>9}{'requests':>10}{'hedges':>8}{'won':>6}  withheld"
    )
    tails, slowed = asyncio.run(run())
    everything = {
        case: [one._asdict() for one in each]
        for case, each in {**tails, "all are slow": slowed}.items()
    }
    return conclude(
        given, everything, missed(tails, slowed), measured=told(tails, slowed)
    )


if __name__ == "__main__":
    exit_with(main)
