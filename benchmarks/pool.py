"""A server whose handlers wait for a pool, in more demand than the pool can meet.

    python -m benchmarks.pool                  about 7 minutes
    python -m benchmarks.pool --quick          about 2
    python -m benchmarks.pool --kind adaptive --json FILE

A request takes one of 8 places for 50 ms and no processor. Load is open: Poisson
arrivals from a process of its own, as bare frames, deadline 1 s, half of them CRITICAL
and half SHEDDABLE. Beside each other are grpcio's server, ours as it is by default, and
ours with `adaptive_concurrency`. Goodput is what was answered in time, of the pool's
capacity. How late that process was in sending is told, too: where it cannot keep up,
nothing else means much. The last run has four times the capacity of 8 places; the pool
grows to 16 and shrinks to 4. It has followed in the first second from which on, for 3
seconds, goodput is 0.9 of the new capacity and the median latency twice that of a free
place at most.

Exit status 1 if a target is missed, all of them of `adaptive_concurrency`: goodput 0.95
at 2 and 10 times the capacity; p99 of what is served at most twice that of a pool with
free places; each new size followed within 10 s.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import grpc

import lbclient
from benchmarks.frames import Call, calls_of
from benchmarks.harness.figures import quantile
from benchmarks.harness.measured import Measured
from benchmarks.harness.options import conclude, exit_with, parser_of
from benchmarks.harness.processes import Process, orders, running, say
from benchmarks.harness.servers import listen

KINDS = ("grpcio", "lbclient", "adaptive")
PLACES, COST = 8, 0.05  # seconds
CAPACITY = PLACES / COST  # requests a second
PATH = "/benchmark.Pool/Work"
CALM = 0.25  # of the capacity
LOADS = (2.0, 10.0)
SIZES, RESIZED = (8, 16, 4), 4.0  # places one after the other; load, of the capacity
WARMUP = 10.0  # seconds of each load that do not count
GOODPUT, P99_TIMES, FOLLOWS = 0.95, 2.0, 10.0
NEAR, HOLDS = 0.9, 3  # of the goodput, and for how many seconds


# --- the server, in a process of its own ---------------------------------------


class Pool:
    """Places, taken in order of arrival."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: deque[asyncio.Future[None]] = deque()

    def resize(self, more: int) -> None:
        self._free += more
        while self._waiting and self._free > 0:
            first = self._waiting.popleft()
            if not first.done():
                self._free -= 1
                first.set_result(None)

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        if self._free > 0:
            self._free -= 1
        else:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    self.resize(1)
                raise
        try:
            yield
        finally:
            self.resize(1)


async def serve(kind: str) -> None:
    """Says its port first; an order is a number of further places."""
    pool = Pool(PLACES)

    async def work(request: bytes, _context: Any) -> bytes:
        async with pool.place():
            await asyncio.sleep(COST)
        return request

    server: Any = grpc.aio.server()
    if kind != "grpcio":
        config = lbclient.ServerConfig(adaptive_concurrency=kind == "adaptive")
        server = lbclient.server(config=config)
    say(await listen(server, {PATH: work}))
    async for [more] in orders():
        pool.resize(more)


# --- the load, in another ------------------------------------------------------


async def load(server: Process, times: float, seconds: float) -> list[Call]:
    return await calls_of(await server.hear(), PATH, times * CAPACITY, seconds)


# --- what comes of it ----------------------------------------------------------


@dataclass
class Figures:
    kind: str
    offered: float  # of the capacity
    places: int
    goodput: float  # of the capacity of these places
    critical: float  # the share of CRITICAL requests that was served
    p50: float | None  # seconds
    p99: float | None
    late: float | None  # seconds by which a request was sent too late, p99
    follows: float | None = None  # seconds

    def __str__(self) -> str:
        times = [f"{1e3 * it:.0f}" if it else "-" for it in (self.p50, self.p99)]
        follows = "" if self.follows is None else f", follows in {self.follows:.0f} s"
        return (
            f"{self.kind:9}{self.places:3} places, {self.offered:5.2f} offered: goodput"
            f" {self.goodput:4.2f}, {self.critical:4.2f} of CRITICAL; "
            f"p50 {times[0]}, p99 {times[1]} ms{follows}; "
            f"sent late {1e3 * (self.late or 0.0):.0f} ms"
        )


def figures(
    kind: str, calls: list[Call], times: float, begin: float, end: float, places: int
) -> Figures:
    seen = [call for call in calls if begin <= call.at < end]
    took = [call.latency for call in seen if call.code == "OK"]
    critical = [call.code == "OK" for call in seen if call.criticality == "CRITICAL"]
    goodput = len(took) / (end - begin) / (places / COST)
    share = sum(critical) / max(1, len(critical))
    p50, p99 = quantile(took, 0.5), quantile(took, 0.99)
    late = quantile([call.lateness for call in seen], 0.99)
    offered = times * PLACES / places
    return Figures(kind, offered, places, goodput, share, p50, p99, late)


def follows(calls: list[Call], begin: float, end: float, places: int) -> float:
    """Seconds; infinite if it does not. By when calls were answered."""
    held = 0
    for second in range(int(end - begin)):
        at = begin + second
        took = [
            call.latency
            for call in calls
            if call.code == "OK" and at <= call.at + call.latency < at + 1.0
        ]
        is_near = len(took) >= NEAR * places / COST
        held = held + 1 if is_near and (quantile(took, 0.5) or 0.0) <= 2 * COST else 0
        if held == HOLDS:
            return second + 1.0 - HOLDS
    return float("inf")


async def measure(kinds: Sequence[str], seconds: float) -> list[Figures]:
    found = []

    def tell(one: Figures) -> None:
        found.append(one)
        print(one, flush=True)

    for kind in kinds:
        for times in (CALM, *LOADS):
            warmup = WARMUP if times > 1.0 else 1.0
            async with running(serve, kind) as server:
                calls = await load(server, times, warmup + seconds)
            tell(figures(kind, calls, times, warmup, warmup + seconds, PLACES))
    if "adaptive" not in kinds:
        return found
    async with running(serve, "adaptive") as server:
        period = WARMUP + seconds
        loading = asyncio.create_task(load(server, RESIZED, len(SIZES) * period))
        # The process of the load takes some tenths of a second to begin.
        for before, after in pairwise(SIZES):
            await asyncio.sleep(period)
            server.tell(after - before)
        calls = await loading
    for number, places in enumerate(SIZES):
        begin, end = number * period, (number + 1) * period
        one = figures("adaptive", calls, RESIZED, begin + WARMUP, end, places)
        if number:
            one.follows = follows(calls, begin, end, places)
        tell(one)
    return found


def missed(found: list[Figures]) -> list[str]:
    """Targets that were not met, all of the adaptive server."""
    own = [one for one in found if one.kind == "adaptive"]
    if not own:
        return []
    alone = next(one.p99 for one in own if one.offered < 1.0)
    assert alone is not None
    missing = []
    for one in own:
        if one.offered < 1.0:
            continue
        name = f"{one.places} places at {one.offered:g}"
        if one.follows is not None and one.follows > FOLLOWS:
            missing.append(f"{name}: followed after {one.follows:g} s")
        if one.goodput < GOODPUT and one.places == PLACES:
            missing.append(f"{name}: goodput {one.goodput:.2f}")
        if one.p99 is None or one.p99 > P99_TIMES * alone:
            missing.append(f"{name}: p99 {1e3 * (one.p99 or 0.0):.0f} ms")
    return missing


def main() -> int:
    parser = parser_of("pool", __doc__, quick="10 s of each load")
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=KINDS)
    given = parser.parse_args()
    found = asyncio.run(measure(given.kind, 10.0 if given.quick else 25.0))
    told = [
        Measured(
            name=f"{one.kind}, {one.places} places, {one.offered:g} x: goodput",
            value=one.goodput,
        )
        for one in found
    ]
    return conclude(given, found, missed(found), measured=told)


if __name__ == "__main__":
    exit_with(main)
