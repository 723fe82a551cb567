"""What `benchmarks.overload` found, drawn: a row for each handler and surroundings."""

from typing import TYPE_CHECKING

from benchmarks.harness.figures import blank
from benchmarks.overload.cells import Cell, Figures
from benchmarks.overload.handlers import named

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def row_of(cell: Cell) -> tuple[str, str, str]:
    return cell.handler, cell.surroundings, cell.clients


def picture(runs: list[Figures]) -> "Figure":
    rows = list(dict.fromkeys(row_of(run.cell) for run in runs))
    figure = blank(11, 3.2 * len(rows))
    axes_of = figure.subplots(len(rows), 3, squeeze=False)
    for row, (goodput, p99, flood) in zip(rows, axes_of, strict=True):
        of_row = [run for run in runs if row_of(run.cell) == row]
        most = max(run.cell.times for run in of_row)
        for kind in dict.fromkeys(run.cell.kind for run in of_row):
            own = sorted(
                (run for run in of_row if run.cell.kind == kind),
                key=lambda run: run.cell.times,
            )
            shares = [run.goodput / run.capacity for run in own]
            goodput.plot([run.cell.times for run in own], shares, "o-", label=kind)
            seen = [(run.cell.times, run.p99 * 1e3) for run in own if run.p99]
            p99.plot([at for at, _ in seen], [ms for _, ms in seen], "o-", label=kind)
            for run in own:
                if run.cell.times == most:
                    shares = [one / run.capacity for one in run.by_second]
                    flood.plot(shares, ".-", label=kind)
        handler, surroundings, _ = row
        for axes in (goodput, p99):
            axes.set_xlabel(f"{named(handler)}, {surroundings}: times the capacity")
        goodput.set_ylabel("goodput, of the capacity")
        p99.set_ylabel("p99 of what is served, ms")
        flood.set_xlabel(f"seconds of {most:g} times the capacity, then half")
        flood.set_ylabel("goodput, of the capacity")
        for axes in (goodput, p99, flood):
            axes.set_ylim(bottom=0)
    axes_of[0][0].legend(fontsize=8)
    return figure
