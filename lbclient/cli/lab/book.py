"""The texts' figures, computed and drawn: `lbclient sim book`."""

import argparse
import gc
import json
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lbclient.cli import files
from lbclient.cli.lab.pictures import require, write
from lbclient.cli.layout import hanging
from lbclient.cli.numbers import whole
from lbclient.core.errors import ConfigError
from lbclient.sim.book import EXPERIMENTS, Claim, Experiment

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPILOG = """\
The texts are the SRE book, chapters 20 and 21, and CACM 2023, "Reinventing Backend
Subsetting at Google". The command repeats their experiments and compares the results
with their claims: docs/book.md shows all of them.

figures:
{figures}

examples:
  lbclient sim book --out figures
  lbclient sim book --quick --json
  lbclient sim book --figure wasted,switched --seed 2 --out .

All figures take about a minute of processor time. Exit status: 0; 1 if a claim does not
hold, or the output cannot be written; 2 for bad arguments; 130 after Ctrl-C; 141 if
the reader of the output has gone.
"""


def main(argv: list[str]) -> int:
    try:
        given = parse_arguments(argv)
        names = names_of(given.figure)
        if given.json not in (None, "-"):
            files.check("json", given.json)
        drawings = ready_to_draw(given.out) if given.out is not None else None
        found: dict[str, Experiment] = {}
        for name, experiment in experiments(names, given.seed, given.quick):
            found[name] = experiment
            if drawings is not None:
                draw(drawings / f"{name}.png", name, experiment)
        show(given, found)
        return int(not all(claim.holds for claim in claims_of(found)))
    except ConfigError as error:
        print(f"lbclient sim book: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def make_parser() -> argparse.ArgumentParser:
    figures = textwrap.indent("\n".join(summaries()), "  ")
    parser = argparse.ArgumentParser(
        prog="lbclient sim book",
        description="Computes and draws the figures of the SRE book and CACM 2023.",
        epilog=EPILOG.format(figures=figures),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--out", metavar="DIR", help="draw each figure as DIR/NAME.png (matplotlib)")
    add(
        "--figure",
        metavar="A,B",
        help=f"figures: {', '.join(EXPERIMENTS)} (default: all)",
    )
    add("--seed", type=whole, default=1, metavar="N", help="default: 1")
    add("--quick", action="store_true", help="smaller fleets, in a few seconds")
    add("--json", nargs="?", const="-", metavar="FILE",
        help="write all numbers; without FILE instead of the table")  # fmt: skip
    return parser


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    given = make_parser().parse_args(argv)
    if not isinstance(given.seed, int):
        raise ConfigError("seed", given.seed, "a whole number")
    return given


def summaries() -> Iterator[str]:
    width = max(map(len, EXPERIMENTS)) + 2
    for name, run in EXPERIMENTS.items():
        text = sys.modules[run.__module__].__doc__ or ""
        sentence = " ".join(text.split("\n\n")[0].split())
        yield hanging(f"{name:{width}}", sentence, width=77)


def names_of(text: str | None) -> list[str]:
    names = [*EXPERIMENTS] if text is None else text.split(",")
    for name in names:
        if name not in EXPERIMENTS:
            raise ConfigError("figure", name, f"some of {', '.join(EXPERIMENTS)}")
    return names


def ready_to_draw(out: str) -> Path:
    """The directory, made if need be. Raises ConfigError before anything is run."""
    require("out", out)
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        want = f"a directory that can be written: {error.strerror or error}"
        raise ConfigError("out", out, want) from None
    return Path(out)


def experiments(
    names: list[str], seed: int, quick: bool
) -> Iterator[tuple[str, Experiment]]:
    gc.disable()  # as in `lbclient sim`
    try:
        for name in names:
            yield name, EXPERIMENTS[name](seed, quick)
            gc.collect()
    finally:
        gc.enable()


def draw(file: Path, name: str, experiment: Experiment) -> None:
    def picture() -> "Figure":
        from lbclient.cli.lab.book_plots import PLOTS

        return PLOTS[name](experiment)

    write(str(file), picture)


def claims_of(found: Mapping[str, Experiment]) -> Iterator[Claim]:
    for experiment in found.values():
        yield from experiment.claims()


def show(given: argparse.Namespace, found: Mapping[str, Experiment]) -> None:
    if given.json != "-":
        print("\n".join(report(found)))
    if given.json is None:
        return
    what = facts(given.seed, given.quick, found)
    if given.json == "-":
        print(json.dumps(what, indent=1))
    else:
        files.write_json("json", given.json, what)


def report(found: Mapping[str, Experiment]) -> Iterator[str]:
    for name, experiment in found.items():
        yield name
        for claim in experiment.claims():
            verdict = "holds" if claim.holds else "FAILS"
            head = f"  {verdict} {claim.value:8.4g}  "
            text = f"{claim.says} ({claim.low:g} to {claim.high:g}). {claim.where}"
            yield hanging(head, text)


def facts(seed: int, quick: bool, found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "seed": seed,
        "quick": quick,
        "figures": {
            name: {
                "claims": [
                    {**asdict(claim), "holds": claim.holds}
                    for claim in experiment.claims()
                ],
                **asdict(experiment),
            }
            for name, experiment in found.items()
        },
    }
