"""What a server of ours is to reach, and which cells do not."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarks.frames import DEADLINE
from benchmarks.harness.measured import RATIO, Measured
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
# Times what is allowed, of CRITICAL and above it: some of what comes at just that is
# refused also where nothing else comes, for arrivals come in clusters.
ABOUT_ALL = (0.8, 1.2)
# Of the answers in time of grpc.aio alone: what two runs of one server may differ by.
AS_GOOD = 0.97
LEAST_ANSWERED = 0.1  # requests a second: of a server that serves none in time
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
    if not any(run.cell.kind == OURS and not is_late(run) for run in runs):
        return None
    return [
        f"{one.name} is {one.value:.3g}{'' if one.unit == RATIO else f' {one.unit}'}, "
        f"target {one.goal:g}"
        for one in measured_of(runs)
        if one.misses
    ]


def measured_of(runs: Sequence[Figures]) -> Iterator[Measured]:
    """Each figure that has a target, of our servers in these runs."""
    by_cell = {run.cell: run for run in runs}
    for run in runs:
        if run.cell.kind != OURS or is_late(run):
            continue
        name = named(run.cell)
        yield Measured(
            name=f"{name}: goodput, of what is allowed",
            value=run.goodput / run.allowed if run.allowed else 1.0,
            better="more",
            goal=_least_goodput(run.cell),
        )
        bare = by_cell.get(replace(run.cell, kind=BARE))
        if bare is not None and not is_late(bare):
            yield Measured(
                name=f"{name}: answered in time, lbclient / grpc.aio",
                value=run.answered / max(bare.answered, LEAST_ANSWERED),
                better="more",
                goal=AS_GOOD if bare.answered else None,
            )
        if run.p99 is not None:
            yield Measured(
                name=f"{name}: p99",
                value=1e3 * run.p99,
                unit="ms",
                better="less",
                goal=1e3 * P99,
            )
        yield Measured(
            name=f"{name}: time after the flood until all is served",
            value=run.normal_after,
            unit="s",
            better="less",
            goal=NORMAL_AFTER,
        )
        for criticality, kept in _kept_of_judged(run):
            yield Measured(
                name=f"{name}: {criticality}, of what would fit",
                value=kept,
                better="more",
                goal=CRITICAL,
            )


def _least_goodput(cell: Cell) -> float | None:
    """Of what is allowed; None beyond the loads and surroundings that have a target."""
    return GOODPUT.get(cell.surroundings) if cell.times <= UP_TO else None


def _kept_of_judged(run: Figures) -> Iterator[tuple[str, float]]:
    """What is served of each criticality, of what would fit of it.

    Not of the least critical one, nor of one whose demand is about all that is allowed.
    """
    least, most = ABOUT_ALL
    demand = 0.0
    for name in CRITICALITIES[:-1]:
        demand += run.offered[name]
        fits = run.fits[name]
        if not least * run.allowed < demand < most * run.allowed:
            yield name, run.served[name] / fits if fits else 1.0
