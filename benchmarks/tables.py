"""The tables of docs/simulator.md: scenarios times pickers, over seeds.

    python -m benchmarks.tables policies --runs runs.jsonl     some hours
    python -m benchmarks.tables robust --runs runs.jsonl       about half an hour

Each run is written to the file as soon as it is done, and those that are there already
are not made again: so it may be stopped, with Ctrl-C or by `--for SECONDS`, and called
again, as long as the code stays the same. What is known by then is printed as Markdown.

`policies` compares with another implementation of the same scenarios, whose figures
are means of several seeds. A value agrees if it is within 0.01 of the other (0.1 % of
the requests, for errors) or within two standard deviations of what seeds differ by.
"""

import gc
import json
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from statistics import fmean, stdev
from time import monotonic
from typing import NamedTuple

from benchmarks.harness.options import exit_with, parser_of
from lbclient.pickers import PICKERS
from lbclient.sim import SCENARIOS, simulate
from lbclient.sim.traffic import draw

# Columns of REFERENCE: max/mean and errors in % of each.
REFERRED = (
    "round_robin",
    "least_loaded",
    "p2c",
    "peak_ewma",
    "weighted_round_robin",  # there: gRFC A58 to the letter
    "weighted_least_loaded",  # there: a plainer form
    "prequal",  # there: a pool of 4, a quantile of 0.5, and none by lot
)
REFERENCE = """
S0_start@0.7     1.343  7.84  1.267  0.00  1.266  0.00  1.110  0.00  1.255  3.96  1.051  0.00  1.046  0.00
S0_start@0.85    1.256 16.48  1.119  0.00  1.119  0.00  1.074  0.00  1.165 10.35  1.029  0.00  1.037  0.00
S1_homog@0.7     1.027  0.00  1.028  0.00  1.026  0.00  1.040  0.00  1.016  0.00  1.003  0.00  1.025  0.00
S1_homog@0.85    1.028  0.00  1.024  0.00  1.020  0.00  1.032  0.00  1.012  0.00  1.002  0.00  1.017  0.00
S1_homog@0.95    1.026  0.00  1.010  0.00  1.012  0.00  1.014  0.00  1.011  0.00  1.001  0.00  1.010  0.00
S2_diverse@0.5   1.466  0.00  1.433  0.00  1.398  0.00  1.122  0.00  1.060  0.00  1.007  0.00  1.047  0.00
S2_diverse@0.7   1.343  9.83  1.265  0.00  1.263  0.00  1.086  0.00  1.046  0.00  1.004  0.00  1.039  0.00
S2_diverse@0.85  1.253 16.94  1.117  0.00  1.117  0.00  1.063  0.00  1.047  0.00  1.002  0.00  1.030  0.00
S2_diverse@0.95  1.202 20.51  1.037  0.00  1.037  0.00  1.033  0.00  1.040  0.06  1.001  0.00  1.016  0.00
S2_few@0.85      1.256 16.80  1.115  0.00  1.121  0.00  1.076  0.00  1.013  0.00  1.001  0.00  1.069  0.00
S3_antag@0.7     1.299 12.75  1.208  0.00  1.210  0.00  1.113  0.00  1.139  0.52  1.007  0.00  1.102  0.00
S3_antag@0.85    1.221 19.93  1.072  0.00  1.071  0.01  1.065  0.00  1.074  1.37  1.005  0.00  1.047  0.00
S3_antag@0.95    1.175 23.70  1.003  0.55  1.004  1.02  1.004  0.76  1.023  3.84  1.002  0.50  1.003  0.51
S4_heavy@0.5     1.644  0.12  1.572  0.04  1.505  0.04  1.354  0.02  1.157  0.00  1.072  0.00  1.154  0.00
S4_heavy@0.7     1.351  0.48  1.272  0.12  1.273  0.15  1.256  0.06  1.141  0.02  1.033  0.00  1.086  0.00
S4_heavy@0.85    1.254  0.53  1.118  0.14  1.120  0.21  1.124  0.13  1.117  0.10  1.020  0.00  1.066  0.00
S5_io@0.7        1.343  9.81  1.267  0.00  1.267  0.00  1.257  0.00  1.041  0.00  1.013  0.00  1.261  0.00
S5_io@0.85       1.253 16.89  1.117  0.00  1.117  0.01  1.118  0.00  1.045  0.00  1.008  0.00  1.117  0.00
S6_unequal@0.5   1.711  3.30  1.659  0.00  1.682  0.00  1.640  0.00  1.863  0.61  1.007  0.00  1.399  0.00
S6_unequal@0.7   1.440 13.70  1.324  0.00  1.318  0.00  1.358  0.00  1.473  4.20  1.003  0.00  1.285  0.00
S6_unequal@0.85  1.334 23.24  1.124  0.00  1.130  1.50  1.139  1.26  1.296 12.89  1.003  0.00  1.146  0.00
S6_unequal@0.95  1.202 19.13  1.039  0.00  1.039  0.40  1.040  0.15  1.235 14.35  1.003  0.00  1.054  0.00
S7_sinkhole@0.7  1.033  2.50  1.027  0.01  1.032  0.07  1.033  0.03  1.013  0.88  1.003  0.04  1.020  0.21
S7_sinkhole@0.85 1.025  2.50  1.025  0.01  1.018  0.07  1.023  0.04  1.012  1.43  1.001  0.06  1.014  0.23
S8_step@0.7      1.300 11.73  1.214  0.00  1.214  0.00  1.083  0.00  1.075  0.01  1.002  0.00  1.054  0.00
S8_step@0.85     1.222 19.20  1.076  0.00  1.076  0.01  1.052  0.00  1.063  0.26  1.002  0.00  1.031  0.00
"""  # noqa: E501 - a table

ROBUST = (
    "S2_diverse@0.7",
    "reports_late@0.7",
    "rates_late@0.7",
    "reports_lost@0.7",
    "reports_noisy@0.7",
    "reports_half@0.7",
    "reports_none@0.7",
    "reports_stop@0.7",
    "reports_stop_all@0.7",
    "reports_scaled@0.7",
    "reports_wrong@0.7",
    "reports_high@0.7",
    "one_liar@0.7",
    "S10_sparse@0.7",
    "S2_diverse@0.85",
    "three_backends@0.85",
    "large_subset@0.85",
)

ENOUGH = {"spread": 0.01, "errors": 0.001}


class Key(NamedTuple):
    cell: str  # scenario@load
    picker: str
    seed: int


Runs = dict[Key, dict[str, float]]


def reference() -> dict[tuple[str, str], dict[str, float]]:
    """By cell and picker."""
    found = {}
    for line in REFERENCE.split("\n")[1:-1]:
        cell, *numbers = line.split()
        for picker, spread, errors in zip(
            REFERRED, numbers[::2], numbers[1::2], strict=True
        ):
            found[cell, picker] = {
                "spread": float(spread),
                "errors": float(errors) / 100.0,
            }
    return found


def cells_of(table: str) -> list[str]:
    if table == "robust":
        return [*ROBUST]
    return list(dict.fromkeys(cell for cell, _ in reference()))


def read(file: Path) -> Runs:
    if not file.exists():
        return {}
    lines = (json.loads(line) for line in file.read_text().splitlines())
    return {Key(*line.pop("run")): line for line in lines}


def play(
    cell: str, pickers: list[str], seed: int
) -> Iterator[tuple[Key, dict[str, float]]]:
    name, _, load = cell.partition("@")
    traffic = None
    for picker in pickers:
        gc.collect()  # what a run leaves are cycles
        traffic = traffic or draw(SCENARIOS[name], float(load), seed)
        result = simulate(
            SCENARIOS[name], picker, load=float(load), seed=seed, traffic=traffic
        )
        yield (
            Key(cell, picker, seed),
            {
                "spread": result.spread,
                "errors": result.errors,
                "p50": result.p50,
                "p99": result.p99,
            },
        )


def complete(
    file: Path, cells: list[str], pickers: list[str], seeds: list[int], until: float
) -> None:
    """Makes what is missing, seed by seed, one line a run."""
    known = read(file)
    for seed in seeds:
        for cell in cells:
            missing = [p for p in pickers if Key(cell, p, seed) not in known]
            for key, values in play(cell, missing, seed):
                with file.open("a") as lines:
                    lines.write(json.dumps({"run": key, **values}) + "\n")
                if monotonic() > until:
                    return


def of(runs: Runs, cell: str, picker: str, field: str) -> list[float]:
    return [
        values[field]
        for key, values in sorted(runs.items())
        if key[:2] == (cell, picker)
    ]


def markdown(rows: list[list[str]]) -> Iterator[str]:
    for number, row in enumerate(rows):
        yield f"| {' | '.join(row)} |"
        if number == 0:
            yield "|---" * len(row) + "|"


def table(
    runs: Runs, cells: list[str], pickers: list[str], write: Callable[[str, str], str]
) -> Iterator[str]:
    rows = [["scenario@load", *pickers]]
    rows += [[cell, *(write(cell, picker) for picker in pickers)] for cell in cells]
    return markdown(rows)


def mean(runs: Runs, field: str, form: str, scale: float) -> Callable[[str, str], str]:
    def write(cell: str, picker: str) -> str:
        values = of(runs, cell, picker, field)
        text = format(fmean(values) * scale, form) if values else ""
        theirs = reference().get((cell, picker), {}).get(field)
        if theirs is not None and values:
            text += f" ({format(theirs * scale, form)})"
        return text

    return write


def agrees(ours: list[float], theirs: float, enough: float) -> bool:
    off = abs(fmean(ours) - theirs)
    return off <= enough or (len(ours) > 1 and off <= 2.0 * stdev(ours))


def comparison(runs: Runs) -> Iterator[str]:
    """How many agree, and each that does not."""
    for field, enough in ENOUGH.items():
        apart = []
        total = 0
        for (cell, picker), theirs in reference().items():
            if ours := of(runs, cell, picker, field):
                total += 1
                if not agrees(ours, theirs[field], enough):
                    deviation = stdev(ours) if len(ours) > 1 else 0.0
                    apart.append(
                        f"  {cell:17} {picker:22} {fmean(ours):.4f} "
                        f"+-{deviation:.4f}, there {theirs[field]:.4f}"
                    )
        yield f"{field}: {total - len(apart)} of {total} agree; those that do not:"
        yield from apart


def main() -> None:
    parser = parser_of("tables", __doc__, json=False)
    add = parser.add_argument
    add("table", choices=("policies", "robust"))
    add("--runs", type=Path, required=True, metavar="FILE", help="all runs, one a line")
    add("--seed", default="1,2,3", metavar="N,O")
    add("--picker", metavar="A,B", help="default: all of the table")
    add("--for", type=float, default=1e9, metavar="SECONDS", dest="seconds")
    given = parser.parse_args()
    cells = cells_of(given.table)
    everybody = [*REFERRED] if given.table == "policies" else [*PICKERS]
    pickers = given.picker.split(",") if given.picker else everybody
    seeds = [int(seed) for seed in given.seed.split(",")]
    gc.disable()
    complete(given.runs, cells, pickers, seeds, monotonic() + given.seconds)
    runs = read(given.runs)
    if given.table == "policies":
        print_tables(runs, cells, everybody)
        print("\n".join(comparison(runs)))
    else:
        print("\n".join(table(runs, cells, everybody, together(runs))))


def together(runs: Runs) -> Callable[[str, str], str]:
    """max/mean, p99 in ms, and errors in % if there were any."""

    def write(cell: str, picker: str) -> str:
        if not of(runs, cell, picker, "spread"):
            return ""
        spread, p99, errors = (
            fmean(of(runs, cell, picker, field))
            for field in ("spread", "p99", "errors")
        )
        failed = f", {errors:.2%}".replace("%", " %") if errors >= 5e-5 else ""
        return f"{spread:.2f}, {p99 * 1000:.0f}{failed}"

    return write


def print_tables(runs: Runs, cells: list[str], pickers: list[str]) -> None:
    shown = (
        ("max/mean utilization", mean(runs, "spread", ".3f", 1.0)),
        ("errors, %", mean(runs, "errors", ".2f", 100.0)),
        ("p99, ms", mean(runs, "p99", ".0f", 1000.0)),
    )
    for title, write in shown:
        lines = table(runs, cells, pickers, write)
        print("\n".join(chain([f"**{title}**", ""], lines, [""])))


if __name__ == "__main__":
    exit_with(main)
