"""What a server of ours is to reach, and which cells do not."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarks.frames import DEADLINE
from benchmarks.harness.measured import Measured
from benchmarks.overload import handlers
from benchmarks.overload.cells import Cell, Figures
from benchmarks.overload.serve import BARE, OURS
from benchmarks.overload.tally import CRITICALITIES

# Goodput, of what is allowed, by surroundings; and up to which load.
GOODPUT = {"quiet": 0.9, "neighbour": 0.8}
UP_TO = 20.0  # times the capacity
P99 = DEADLINE / 2
NORMAL_AFTER = 2.0
CRITICAL = 0.99  # of what would fit of it
# Times the capacity, of CRITICAL and above it: some of what comes at just that is
# refused also where nothing else comes, for arrivals come in clusters.
ABOUT_CAPACITY = (0.8, 1.2)
# Of the goodput of grpc.aio alone: what two runs of one server may differ by.
AS_GOOD = 0.97
LEAST_GOODPUT = 0.1  # requests a second: of a server that serves none in time
# Seconds, p99: a load that is sent later than this is another one.
LATE = 0.1


def named(cell: Cell) -> str:
    share = "" if cell.critical == 0.5 else f", {cell.critical:.0%} CRITICAL"
    clients = "" if cell.clients == "frames" else f", {cell.clients} clients"
    handler = handlers.named(cell.handler)
    return f"{handler}, {cell.surroundings}, {cell.times:g} x{share}{clients}"


def is_late(run: Figures) -> bool:
    return run.lateness is None or run.lateness > LATE


def late(runs: Sequence[Figures]) -> list[str]:
    """Cells that say nothing, as the load was sent late."""
    return [
        f"{named(run.cell)}, {run.cell.kind}: {(run.lateness or 0.0) * 1e3:.0f} ms"
        for run in runs
        if is_late(run)
    ]


def missed(runs: Sequence[Figures]) -> list[str] | None:
    """Which targets are; None if nothing was run that has any."""
    by_cell = {run.cell: run for run in runs}
    ours = [run for run in runs if run.cell.kind == OURS and not is_late(run)]
    if not ours:
        return None
    found = []
    for run in ours:
        bare = by_cell.get(replace(run.cell, kind=BARE))
        bare = None if bare is None or is_late(bare) else bare
        found += [f"{named(run.cell)}: {what}" for what in _of_one(run, bare)]
    return found


def measured_of(runs: Sequence[Figures]) -> Iterator[Measured]:
    """Goodput of what is allowed, beside grpc.aio's, and by criticality; and p99."""
    by_cell = {run.cell: run for run in runs}
    for run in runs:
        if run.cell.kind != OURS or is_late(run):
            continue
        name = named(run.cell)
        yield Measured(
            name=f"{name}: goodput, of what is allowed",
            value=_of_allowed(run),
            better="more",
            goal=_least_goodput(run.cell),
        )
        bare = by_cell.get(replace(run.cell, kind=BARE))
        if bare is not None and not is_late(bare):
            both = f"{name}: goodput, lbclient / grpc.aio"
            ratio = run.goodput / max(bare.goodput, LEAST_GOODPUT)
            yield Measured(name=both, value=ratio, better="more", goal=AS_GOOD)
        if run.p99 is not None:
            yield Measured(
                name=f"{name}: p99",
                value=1e3 * run.p99,
                unit="ms",
                better="less",
                goal=1e3 * P99,
            )
        for criticality, kept in _kept_of_judged(run):
            yield Measured(
                name=f"{name}: {criticality}, of what would fit",
                value=kept,
                better="more",
                goal=CRITICAL,
            )


def _of_allowed(run: Figures) -> float:
    return run.goodput / run.allowed if run.allowed else 1.0


def _least_goodput(cell: Cell) -> float | None:
    """Of what is allowed; None beyond the loads and surroundings that have a target."""
    return GOODPUT.get(cell.surroundings) if cell.times <= UP_TO else None


def _of_one(run: Figures, bare: Figures | None) -> list[str]:
    found = []
    share, least = _of_allowed(run), _least_goodput(run.cell)
    if least is not None and share < least:
        found.append(f"goodput is {share:.2f} of what is allowed, target {least:g}")
    if run.p99 is not None and run.p99 > P99:
        found.append(f"p99 is {run.p99 * 1e3:.0f} ms, target {P99 * 1e3:.0f} ms")
    if run.normal_after > NORMAL_AFTER:
        after = f"{run.normal_after:.1f} s after the flood"
        found.append(f"normal {after}, target {NORMAL_AFTER:g} s")
    if bare is not None and run.goodput < AS_GOOD * bare.goodput:
        rates = f"{run.goodput:.1f}/s, of grpc.aio alone {bare.goodput:.1f}/s"
        found.append(f"goodput is {rates}")
    for name, kept in _kept_of_judged(run):
        if kept < CRITICAL:
            has = f"{name} has {kept:.3f} of what would fit of it"
            found.append(f"{has}, target {CRITICAL:g}")
    return found


def _kept_of_judged(run: Figures) -> Iterator[tuple[str, float]]:
    """What is served of each criticality, of what would fit of it.

    Not of the least critical one, nor of one whose demand is about the capacity.
    """
    least, most = ABOUT_CAPACITY
    demand = 0.0
    for name in CRITICALITIES[:-1]:
        demand += run.offered[name]
        fits = run.fits[name]
        if not least * run.capacity < demand < most * run.capacity:
            yield name, run.served[name] / fits if fits else 1.0
