"""One cell of the matrix: a server, its handler and surroundings, and a load."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from benchmarks.frames import saturated
from benchmarks.harness.figures import quantile
from benchmarks.overload import handlers, neighbours
from benchmarks.overload.allowed import (
    Refusing,
    Served,
    allowed,
    available,
    fitting,
    servable,
)
from benchmarks.overload.handlers import PATH
from benchmarks.overload.load import loading
from benchmarks.overload.serve import BARE, DROPS, REFUSES
from benchmarks.overload.tally import Tally
from benchmarks.overload.watch import Rates, Server, serving

SURROUNDINGS = ("quiet", "neighbour", "cgroup")
HALF = 0.5  # of a core, for a server in a control group
CALM = 0.5  # of the capacity, before and after the flood
BEFORE, AFTER = 1.0, 6.0  # seconds of it
WARMUP = 2.0  # seconds of the flood that are not counted
SLICES, SLICE = 3, 3.0  # seconds, of what servers can do at best
MANY = 256  # requests at a time that are refused


class Place(NamedTuple):
    """Where servers run."""

    surroundings: str
    group: Path | None
    quota: float  # cores


@asynccontextmanager
async def placed(surroundings: str) -> AsyncIterator[Place]:
    """Raises `neighbours.Impossible` where there can be no such surroundings."""
    if surroundings == "cgroup":
        with neighbours.cgroup(HALF) as group:
            yield Place(surroundings, group, HALF)
    elif surroundings == "neighbour":
        async with neighbours.burner():
            yield Place(surroundings, None, inf)
    else:
        yield Place(surroundings, None, inf)


@dataclass(frozen=True)
class Cell:
    handler: str
    surroundings: str
    kind: str
    clients: str
    times: float  # the capacity, offered
    critical: float  # share of the load


@dataclass
class Figures:
    """Rates are requests a second, times are seconds. None: nothing was served."""

    cell: Cell
    capacity: float
    allowed: float
    goodput: float
    p50: float | None
    p99: float | None
    offered: dict[str, float]  # by criticality
    served: dict[str, float]
    fits: dict[str, float]  # of the goodput, see `allowed.fitting`
    ends: dict[str, int]  # calls, by refusal or status
    lateness: float | None  # of the load, p99; or of looking at the server
    normal_after: float  # the flood, until all is served
    memory: float  # MB, of the most over what it began with
    ran: float  # by the loop's thread, of a core
    available: float  # to it
    refused: float  # by the server, with an answer
    by_second: list[float]  # served, from the beginning of the flood on
    unanswered: float = 0.0  # by the server
    dropping: float = 0.0  # of a core, what those took

    @property
    def answered(self) -> float:
        """Requests a second that were answered in time while the load lasted.

        Unlike the goodput it leaves out what waited when the load ended: at about the
        capacity a server that refuses nobody serves that afterwards.
        """
        lasted = self.by_second[int(WARMUP) : -int(AFTER)]
        return fmean(lasted) if lasted else 0.0


async def served_by_bare(handler: str, place: Place) -> Served:
    rates, ended = await _pressed(BARE, handler, place, handlers.fills(handler))
    if not ended:
        raise RuntimeError(f"the bare server serves no {handlers.named(handler)}")
    return Served(ended, rates.ran / ended, rates.ran + rates.waited)


async def cost_of_refusing() -> Refusing:
    costs = []
    for kind in (REFUSES, DROPS):
        rates, ended = await _pressed(kind, "1", Place("quiet", None, inf), MANY)
        costs.append(rates.ran / max(ended, 1.0))
    return Refusing(*costs)


async def _pressed(
    kind: str, handler: str, place: Place, at_a_time: int
) -> tuple[Rates, float]:
    """What a server that has enough to do takes, and requests that it ends a second.

    The best of a few slices: what others do on the machine only makes it worse.
    """
    slices: list[tuple[Rates, float]] = []
    async with (
        serving(kind, handler, place.group) as server,
        saturated(server.port, PATH, at_a_time) as ends,
    ):
        await asyncio.sleep(1.0)
        before, first = await server.read(), _ended(ends)
        for _ in range(SLICES):
            await asyncio.sleep(SLICE)
            after, last = await server.read(), _ended(ends)
            rate = (last - first) / (after.at - before.at)
            slices.append((after.rates(before), rate))
            before, first = after, last
    return max(slices, key=lambda of: of[1])


def _ended(ends: Counter[str]) -> int:
    """By the server: not by a client that has stopped waiting."""
    return ends.total() - ends["DEADLINE_EXCEEDED"]


async def run(
    cell: Cell, place: Place, bare: Served, cost: Refusing, seconds: float
) -> Figures:
    begin = BEFORE + WARMUP
    span = begin, begin + seconds
    phases = [
        (CALM * bare.capacity, BEFORE),
        (cell.times * bare.capacity, WARMUP + seconds),
        (CALM * bare.capacity, AFTER),
    ]
    async with (
        serving(cell.kind, cell.handler, place.group) as server,
        server.memory() as memory,
        loading(cell.clients, server.port, phases, span, cell.critical) as load,
    ):
        rates, late = await _rates(server, span)
        tally = await load.result()
    growth = (max(memory) - memory[0]) / 1e6
    found = figures(cell, place, bare, cost, seconds, rates, tally, growth)
    if found.lateness is not None:
        found.lateness = max(found.lateness, late)
    return found


async def _rates(server: Server, span: tuple[float, float]) -> tuple[Rates, float]:
    """Of that time, and how late the server was looked at."""
    began_at, readings = time.monotonic(), []
    for due in span:
        await asyncio.sleep(began_at + due - time.monotonic())
        readings.append(await server.read())
    before, after = readings
    late = max(before.at - began_at - span[0], after.at - began_at - span[1])
    return after.rates(before), late


def figures(
    cell: Cell,
    place: Place,
    bare: Served,
    cost: Refusing,
    seconds: float,
    rates: Rates,
    tally: Tally,
    memory: float,
) -> Figures:
    counts = tally.counts
    took = [one for of in counts.values() for one in of.took]
    goodput = len(took) / seconds
    offered = {name: of.sent / seconds for name, of in counts.items()}
    could = available(rates.ran, rates.waited, rates.others, place.quota)
    dropping = cost.unanswered
    if rates.unanswered:
        dropping = rates.dropping / rates.unanswered
    least = min(cost.answered, dropping)
    most = partial(servable, served=bare, cost=least, available=could)
    refusing = rates.refused * cost.answered + rates.dropping
    ends = sum((Counter(of.ends) for of in counts.values()), Counter[str]())
    last = int(tally.end + AFTER)
    return Figures(
        cell=cell,
        capacity=bare.capacity,
        allowed=min(sum(offered.values()), allowed(bare, could, refusing)),
        goodput=goodput,
        p50=quantile(took, 0.5),
        p99=quantile(took, 0.99),
        offered=offered,
        served={name: len(of.took) / seconds for name, of in counts.items()},
        fits=fitting(offered, goodput, most),
        ends=dict(ends),
        lateness=tally.latest(0.99),
        normal_after=max(0.0, tally.failed_at - tally.end),
        memory=memory,
        ran=rates.ran,
        available=could,
        refused=rates.refused,
        unanswered=rates.unanswered,
        dropping=rates.dropping,
        by_second=[
            float(tally.by_second.get(str(second), 0))
            for second in range(int(BEFORE), last)
        ],
    )
