"""Pickers against each other on a simulated fleet, all on the same requests.

Nothing connects to anything, and no time passes but that of computing. Absolute numbers
belong to the model; what to compare is rows.
"""

import argparse
import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import groupby, product
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lbclient.cli import files
from lbclient.cli.lab import book
from lbclient.cli.lab.pictures import blank, check, write
from lbclient.cli.layout import table
from lbclient.core.errors import ConfigError
from lbclient.pickers import PICKERS
from lbclient.sim import SCENARIOS, Result, Scenario, simulate
from lbclient.sim.result import of_zones, over_seeds
from lbclient.sim.scenario import parse
from lbclient.sim.traffic import draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPILOG = """\
A scenario is a name from --list, or a file that ends in .toml, with fields such as:

  summary = "two generations of machines"
  backends = 12
  speeds = [1, 2.5]

max/mean is the busiest backend's utilization over the mean. A request that fails or
exceeds the scenario's timeout is an error, and its latency counts as the timeout. With
several seeds each number is a mean, and +- the standard deviation of a run.

examples:
  lbclient sim S2_diverse --load 0.7 --picker round_robin,weighted_least_loaded
  lbclient sim S7_sinkhole --load 0.7 --seed 1,2,3 --json runs.json
  lbclient sim fleet.toml --load 0.5,0.6,0.7,0.8 --plot fleet.png
  lbclient sim book --plot figures     the book's figures; see `lbclient sim book -h`

A run takes about ten seconds for each million requests. Exit status: 0; 2 for bad
arguments; 130 after Ctrl-C; if the output cannot be written 1, or 141 if its reader
has gone.
"""


class Row(NamedTuple):
    """The runs of one picker at one load, one for each seed."""

    load: float
    picker: str
    results: list[Result]


Tell = Callable[[str], None]  # what is played next; "": nothing more


class Column(NamedTuple):
    head: str
    read: Callable[[Result], float]
    form: str


SPREAD = Column("max/mean", lambda result: result.spread, ".3f")
P99 = Column("p99 ms", lambda result: 1000.0 * result.p99, ".0f")
COLUMNS = (
    SPREAD,
    Column("errors %", lambda result: 100.0 * result.errors, ".2f"),
    Column("p50 ms", lambda result: 1000.0 * result.p50, ".1f"),
    P99,
)
MOST_ZONES = 5  # that have a column
TAILS_AT = 2, 10  # seconds after backends join

# Shown where the scenario is about it.
SINKHOLE = Column("sinkhole's share", lambda result: result.sinkhole, ".3f")
GRAY = Column("gray one's share", lambda result: result.sinkhole, ".3f")
ATTEMPTS = Column("attempts", lambda result: result.attempts, ".3f")
AWAY = Column("other zones %", lambda result: 100.0 * result.away, ".1f")
ZONE_ERROR = Column("zone error", lambda result: result.zone_error, ".3f")
PROBES = Column("probes", lambda result: result.probes, ".3f")
THROTTLED = Column("held back %", lambda result: 100.0 * result.throttled, ".1f")


def main(argv: list[str]) -> int:
    if argv[:1] == ["book"]:
        return book.main(argv[1:])
    try:
        given = parse_arguments(argv)
        if given.list:
            print(listing())
            return 0
        return compare(given, show if sys.stderr.isatty() else hide)
    except ConfigError as error:
        print(f"lbclient sim: {error}", file=sys.stderr)
        return 2


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lbclient sim",
        description="Simulates a scenario for each picker, load and seed.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("scenario", nargs="?", metavar="SCENARIO", help="a name or a .toml file")
    add("--list", action="store_true", help="list the built-in scenarios")
    add("--picker", metavar="A,B", help=f"pickers: {', '.join(PICKERS)} (default: all)")
    add("--load", metavar="L,M",
        help="shares of all processors (default: the scenario's loads)")  # fmt: skip
    add("--seed", metavar="N,O", default="1",
        help="random seeds; a run for each (default: %(default)s)")  # fmt: skip
    add("--json", metavar="FILE", help="write every run, and the scenario")
    add("--plot", metavar="FILE", help="draw p99 and max/mean: a .png, .svg or .pdf")
    return parser


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    given = make_parser().parse_args(argv)
    if given.list == (given.scenario is not None):
        raise ConfigError("scenario", given.scenario, "a scenario, or else --list")
    return given


def listing() -> str:
    rows = [("scenario", "loads", "what it is")]
    for name, scenario in SCENARIOS.items():
        loads = " ".join(f"{load:g}" for load in scenario.loads)
        rows.append((name, loads, scenario.summary))
    return "\n".join(line.rstrip() for line in table(rows, left=3))


def show(what: str) -> None:
    """In place of what was shown before: a line of a terminal, while it takes long."""
    print(f"\r{what}\x1b[K", end="", file=sys.stderr, flush=True)


def hide(what: str) -> None:
    """Nobody is there to see it."""


def compare(given: argparse.Namespace, tell: Tell = hide) -> int:
    """After Ctrl-C there is a table of what was known, and no file."""
    name, scenario = scenario_of(given.scenario)
    pickers = [*PICKERS] if given.picker is None else given.picker.split(",")
    for picker in pickers:
        if picker not in PICKERS:
            raise ConfigError("picker", picker, f"some of {', '.join(PICKERS)}")
    once("picker", pickers)
    loads = scenario.loads if given.load is None else numbers("load", given.load)
    scenario = replace(scenario, loads=loads)  # and so they are checked
    once("load", loads)
    seeds = [int(seed) for seed in numbers("seed", given.seed)]
    once("seed", seeds)
    if given.json is not None:
        files.check("json", given.json)
    if given.plot is not None:
        check(given.plot)
    rows = [Row(load, picker, []) for load in loads for picker in pickers]
    try:
        play(scenario, rows, seeds, tell)
    except KeyboardInterrupt:
        if known := [row for row in rows if len(row.results) == len(seeds)]:
            print("\n".join(report(name, scenario, known, seeds)))
        raise
    print("\n".join(report(name, scenario, rows, seeds)))
    if given.json is not None:
        files.write_json(given.json, facts(name, scenario, rows, seeds))
    if given.plot is not None:
        plot(given.plot, name, rows)
    return 0


def scenario_of(name: str) -> tuple[str, Scenario]:
    """Raises ConfigError for what is neither a name nor a file with a scenario."""
    if name in SCENARIOS:
        return name, SCENARIOS[name]
    path = Path(name)
    if path.suffix != ".toml":
        wanted = f"a file that ends in .toml, or one of {', '.join(SCENARIOS)}"
        raise ConfigError("scenario", name, wanted)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        wanted = f"a file that can be read: {getattr(error, 'strerror', None) or error}"
        raise ConfigError("scenario", name, wanted) from None
    try:
        return path.stem, parse(text)
    except ConfigError as error:
        raise ConfigError(error.field, error.value, error.want, name) from None


def numbers(field: str, text: str) -> tuple[float, ...]:
    """Whole ones for seeds; their bounds are the scenario's matter."""
    kind = int if field == "seed" else float
    try:
        return tuple(kind(each) for each in text.split(","))
    except ValueError:
        wanted = f"{'whole ' if kind is int else ''}numbers with commas between"
        raise ConfigError(field, text, wanted) from None


def once(field: str, values: Sequence[object]) -> None:
    """Raises ConfigError if a value is given twice: the same run again shows nothing
    new."""
    for value in values:
        if values.count(value) > 1:
            raise ConfigError(field, value, "each only once")


def play(scenario: Scenario, rows: list[Row], seeds: list[int], tell: Tell) -> None:
    """Adds to each row a result for each seed."""
    gc.collect()
    gc.disable()  # there is little to find, and to look takes 5 to 10 % of the time
    number, count = 0, len(rows) * len(seeds)
    try:
        for (load, same), seed in product(by_load(rows), seeds):
            traffic = draw(scenario, load, seed)
            for row in same:
                number += 1
                what = f"load {load:g}, {row.picker}, seed {seed}"
                tell(f"{what}: run {number} of {count}")
                run = simulate(
                    scenario, row.picker, load=load, seed=seed, traffic=traffic
                )
                row.results.append(run)
    except ValueError as error:
        raise ConfigError("window", scenario.window, f"a longer one: {error}") from None
    finally:
        gc.enable()
        tell("")  # or what follows, an error too, would go on in that line


def by_load(rows: list[Row]) -> Iterator[tuple[float, list[Row]]]:
    for load, same in groupby(rows, lambda row: row.load):
        yield load, [*same]


def of_zone(scenario: Scenario, zone: int) -> Column:
    def utilization(result: Result) -> float:
        return of_zones(scenario, result.utilization)[zone]

    return Column(scenario.zone_of(zone), utilization, ".2f")


def tail_at(second: int) -> Column:
    """Of the requests that were sent in the second after that one."""
    head = f"p99 at {second} s"
    return Column(head, lambda result: 1000.0 * result.tails[second], ".0f")


def columns(scenario: Scenario, rows: list[Row]) -> Iterator[Column]:
    yield from COLUMNS
    if scenario.zones:
        yield AWAY
        yield from (
            of_zone(scenario, zone) for zone in range(min(MOST_ZONES, scenario.zones))
        )
    if scenario.samples_zones:
        yield ZONE_ERROR
    if scenario.sinkholes:
        yield SINKHOLE
    elif scenario.gray:
        yield GRAY
    if scenario.joining:
        yield from (
            tail_at(second) for second in TAILS_AT if second < int(scenario.window)
        )
    if scenario.attempts > 1:
        yield ATTEMPTS
    if scenario.throttle:
        yield THROTTLED
    if any(result.probes for row in rows for result in row.results):
        yield PROBES


def report(
    name: str, scenario: Scenario, rows: list[Row], seeds: list[int]
) -> Iterator[str]:
    shown = [*columns(scenario, rows)]
    cells = [["load", "picker", *(column.head for column in shown)]]
    load = None
    for row in rows:
        first = f"{row.load:g}" if row.load != load else ""
        load = row.load
        cells.append([first, row.picker, *(cell(column, row) for column in shown)])
    runs = "one seed" if len(seeds) == 1 else f"{len(seeds)} seeds"
    yield f"{name}: {scenario.summary or 'a scenario of your own'}; {runs}"
    yield from table(cells, left=2)


def cell(column: Column, row: Row) -> str:
    mean, deviation = over_seeds(row.results, column.read)
    text = format(mean, column.form)
    if len(row.results) == 1:
        return text
    return f"{text} +-{format(deviation, column.form)}"


def facts(
    name: str, scenario: Scenario, rows: list[Row], seeds: list[int]
) -> dict[str, object]:
    runs = [
        {"load": row.load, "picker": row.picker, "seed": seed, **result._asdict()}
        for row in rows
        for seed, result in zip(seeds, row.results, strict=True)
    ]
    return {"scenario": name, **asdict(scenario), "runs": runs}


def plot(file: str, name: str, rows: list[Row]) -> None:
    write(file, lambda: picture(name, rows))


def picture(name: str, rows: list[Row]) -> "Figure":
    """p99 and max/mean over the load, a line for each picker."""
    figure = blank(9, 4)
    figure.suptitle(name)
    both = figure.subplots(1, 2)
    for axes, column in zip(both, (P99, SPREAD), strict=True):
        for picker in dict.fromkeys(row.picker for row in rows):
            own = [row for row in rows if row.picker == picker]
            spreads = [over_seeds(row.results, column.read) for row in own]
            axes.errorbar(
                [row.load for row in own],
                [spread.mean for spread in spreads],
                yerr=[spread.deviation for spread in spreads],
                marker="o",
                capsize=3,
                label=picker,
            )
        axes.set_xlabel("load")
        axes.set_ylabel(column.head)
    both[0].set_yscale("log")
    both[0].legend(fontsize=8)
    return figure
