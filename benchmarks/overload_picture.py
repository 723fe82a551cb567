"""What `benchmarks.overload` found, drawn: a row for each kind of processor.

python -m benchmarks.overload --read FILE FILE --plot FILE.png
"""

from typing import TYPE_CHECKING, Any

from benchmarks.command import parser_of
from lbclient.cli.pictures import blank

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {"lbclient": "with lbclient", "grpcio": "without"}


def picture(runs: list[dict[str, Any]]) -> "Figure":
    works = list(dict.fromkeys(run["work"] for run in runs))
    figure = blank(11, 3.2 * len(works))
    rows = figure.subplots(len(works), 3, squeeze=False)
    for work, (goodput, p99, flood) in zip(works, rows, strict=True):
        of_work = [run for run in runs if run["work"] == work]
        most = max(run["offered"] for run in of_work)
        for kind, name in NAMES.items():
            own = sorted(
                (run for run in of_work if run["kind"] == kind),
                key=lambda run: float(run["offered"]),
            )
            loads = [run["offered"] for run in own]
            goodput.plot(loads, [run["goodput"] for run in own], "o-", label=name)
            seen = [run for run in own if run["p99"] is not None]
            p99.plot(
                [run["offered"] for run in seen],
                [run["p99"] * 1e3 for run in seen],
                "o-",
                label=name,
            )
            for run in own:
                if run["offered"] == most:
                    flood.plot(run["by_second"], ".-", label=name)
        for axes in (goodput, p99):
            axes.set_xlabel(f"{work}: offered, times the capacity")
            axes.set_ylim(bottom=0)
        goodput.set_ylabel("goodput, of the capacity")
        p99.set_ylabel("p99 of what is served, ms")
        flood.set_xlabel(f"seconds of {most:g} times the capacity, then half")
        flood.set_ylabel("goodput, of the capacity")
        flood.set_ylim(bottom=0)
    rows[0][0].legend(fontsize=8)
    return figure


if __name__ == "__main__":
    parser_of("overload_picture", __doc__).parse_args()
