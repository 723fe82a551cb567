"""Even utilization or the shorter latency: `favor_fast` of the default picker.

    python -m benchmarks.objective --seed 1,2,3        six minutes of one core
    python -m benchmarks.objective --runs runs.jsonl --seed 1 --load 0.5

By simulation, on the same requests: a fleet of two kinds of machines, one 2.5 times as
fast, and one of equal machines. p99 and p50 are in parts of those with equal
utilization. Runs are kept in a file, if one is given, and not made twice.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.harness.figures import BLUE, RED, blank, table
from benchmarks.harness.options import conclude, exit_with, parser_of
from lbclient.pickers import WeightedLeastLoaded
from lbclient.sim import SCENARIOS, simulate
from lbclient.sim.traffic import draw as draw_traffic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DIVERSE, EQUAL = "S2_diverse", "S1_homog"
LOADS = (0.3, 0.5, 0.7, 0.85, 0.95)
EXPONENTS = (0.0, 0.5, 1.0)
WARM_UP, WINDOW = 12.0, 10.0  # seconds
# p99 with an exponent of 1 on diverse machines, in parts of that with 0, at most.
TAILS = {0.3: 0.8, 0.5: 0.87, 0.7: 0.95, 0.85: 1.0, 0.95: 1.02}
SAME = 0.03  # of p99 on equal machines: what is left of noise
FREE = 0.02  # of its processors: by so much the busiest may pass its bound in a run


class Cell(NamedTuple):
    """Of one run; times in seconds."""

    p50: float
    p99: float
    errors: float
    mean: float  # utilization
    busiest: float


class Cells:
    """Makes runs, and remembers them in a file of a line each, if there is one."""

    def __init__(self, file: str | None) -> None:
        self._file = Path(file) if file else None
        self._known: dict[str, Cell] = {}
        if self._file and self._file.exists():
            for line in self._file.read_text(encoding="utf-8").splitlines():
                key, *values = json.loads(line)
                self._known[key] = Cell(*values)

    def play(self, name: str, load: float, seed: int) -> None:
        """One run for each exponent, on the same requests."""
        keys = {each: _key(name, load, seed, each) for each in EXPONENTS}
        missing = [each for each, key in keys.items() if key not in self._known]
        if not missing:
            return
        scenario = replace(SCENARIOS[name], warm_up=WARM_UP, window=WINDOW)
        traffic = draw_traffic(scenario, load, seed)
        for exponent in missing:
            picker = partial(WeightedLeastLoaded, favor_fast=exponent)
            result = simulate(scenario, picker, load=load, seed=seed, traffic=traffic)
            used = result.utilization
            cell = Cell(result.p50, result.p99, result.errors, result.mean, max(used))
            self._known[keys[exponent]] = cell
            if self._file:
                with self._file.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([keys[exponent], *cell]) + "\n")

    def mean(self, name: str, load: float, seeds: list[int], exponent: float) -> Cell:
        cells = self.of(name, load, seeds, exponent)
        return Cell(*(fmean(column) for column in zip(*cells, strict=True)))

    def of(
        self, name: str, load: float, seeds: list[int], exponent: float
    ) -> list[Cell]:
        return [self._known[_key(name, load, seed, exponent)] for seed in seeds]

    def gains(
        self, name: str, load: float, seeds: list[int], exponent: float
    ) -> list[float]:
        """Of p99 over that of even utilization, for each seed."""
        both = zip(
            self.of(name, load, seeds, exponent),
            self.of(name, load, seeds, 0.0),
            strict=True,
        )
        return [one.p99 / even.p99 for one, even in both]


def _key(name: str, load: float, seed: int, exponent: float) -> str:
    return f"{name} {load} {seed} {exponent}"


Found = dict[str, dict[float, dict[float, Cell]]]  # by fleet, load and exponent


def missed(found: Found) -> Iterator[str]:
    for load, cells in found[DIVERSE].items():
        even, fast = cells[0.0], cells[1.0]
        if fast.p99 > TAILS.get(load, 1.0) * even.p99:
            yield f"p99 at {load}: {fast.p99 / even.p99:.2f} of that of even ones"
    for load, cells in found[EQUAL].items():
        even, fast = cells[0.0], cells[1.0]
        if abs(fast.p99 / even.p99 - 1.0) > SAME:
            yield f"p99 of equal machines at {load}: {fast.p99 / even.p99:.2f}"
    for name, by_load in found.items():
        for load, cells in by_load.items():
            for exponent, cell in cells.items():
                most = max(0.85, cells[0.0].busiest) + FREE
                if cell.busiest > most:
                    yield f"{name}@{load}, {exponent}: busiest {cell.busiest:.2f}"
                if cell.errors:
                    yield f"{name}@{load}, {exponent}: {cell.errors:.2%} errors"


def rows(found: Found, cells_of: Cells, seeds: list[int]) -> Iterator[list[str]]:
    """`x` is in parts of that with 0: of p99 its mean over seeds, with the deviation of
    one."""
    yield [
        "fleet@load",
        "favor_fast",
        "p50, ms",
        "x",
        "p99, ms",
        "x",
        "mean",
        "busiest",
    ]
    for name, by_load in found.items():
        for load, cells in by_load.items():
            even = cells[0.0]
            for exponent, cell in cells.items():
                gains = cells_of.gains(name, load, seeds, exponent)
                apart = f" ±{stdev(gains):.2f}" if len(gains) > 1 and exponent else ""
                yield [
                    f"{name}@{load:g}",
                    f"{exponent:g}",
                    f"{1000 * cell.p50:.1f}",
                    f"x{cell.p50 / even.p50:.2f}",
                    f"{1000 * cell.p99:.0f}",
                    f"x{fmean(gains):.2f}{apart}",
                    f"{cell.mean:.2f}",
                    f"{cell.busiest:.2f}",
                ]


def picture(by_load: dict[float, dict[float, Cell]]) -> "Figure":
    """p99 beside what it costs: how busy the busiest is."""
    figure = blank(8, 3)
    left, right = figure.subplots(1, 2)
    loads = [*by_load]
    for exponent, color, style in (
        (0.0, RED, "-"),
        (0.5, BLUE, "--"),
        (1.0, BLUE, "-"),
    ):
        cells = [by_load[load][exponent] for load in loads]
        name = "even (favor_fast 0)" if not exponent else f"favor_fast {exponent:g}"
        p99 = [1000.0 * cell.p99 for cell in cells]
        left.plot(loads, p99, style, color=color, label=name, marker=".")
        busiest = [cell.busiest for cell in cells]
        right.plot(loads, busiest, style, color=color, label=name, marker=".")
    left.set_ylabel("p99, ms")
    right.set_ylabel("utilization of the busiest")
    left.set_ylim(bottom=0.0)
    right.set_ylim(0.0, 1.0)
    for panel in (left, right):
        panel.set_xlabel("load, in parts of the fleet's capacity")
    left.legend(fontsize=8, loc="lower right")
    return figure


def main() -> int:
    parser = parser_of("objective", __doc__, plot=True)
    parser.add_argument("--seed", default="1,2,3", metavar="N,O")
    parser.add_argument("--load", default=",".join(map(str, LOADS)), metavar="X,Y")
    parser.add_argument("--runs", metavar="FILE", help="keep runs in FILE")
    given = parser.parse_args()
    seeds = [int(seed) for seed in given.seed.split(",")]
    loads = [float(load) for load in given.load.split(",")]
    found = play(Cells(given.runs), seeds, loads)
    told = {
        name: {str(load): {str(a): cell._asdict() for a, cell in cells.items()}
               for load, cells in by_load.items()}
        for name, by_load in found.items()
    }  # fmt: skip
    return conclude(given, told, [*missed(found)], lambda: picture(found[DIVERSE]))


def play(cells: Cells, seeds: list[int], loads: Iterable[float] = LOADS) -> Found:
    """All that is not known yet; prints the table."""
    found: Found = {}
    for name in (DIVERSE, EQUAL):
        for load in loads:
            for seed in seeds:
                cells.play(name, load, seed)
        found[name] = {
            load: {each: cells.mean(name, load, seeds, each) for each in EXPONENTS}
            for load in loads
        }
    print(table(rows(found, cells, seeds)))
    return found


if __name__ == "__main__":
    exit_with(main)
