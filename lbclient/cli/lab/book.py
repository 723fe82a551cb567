"""Reproduces the book's figures and tables, and draws them: `lbclient sim book`."""

import argparse
import gc
import json
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lbclient.cli import files
from lbclient.cli.lab.pictures import require, write
from lbclient.cli.layout import count, hanging
from lbclient.cli.numbers import whole
from lbclient.core.errors import ConfigError
from lbclient.sim.book import EXPERIMENTS, SHOWS, Claim, Experiment, Finding

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPILOG = """\
The texts are the SRE book, chapters 20 and 21, and CACM 2023, "Reinventing Backend
Subsetting at Google". The command repeats every figure and table of theirs and
compares the results with the texts' values and words. A claim

  holds     our value is as the text has it, within the bounds
  departs   our value is another one, for the reason given
  FAILS     neither

docs/book.md shows everything.

experiments:
{figures}

examples:
  lbclient sim book --plot figures
  lbclient sim book --quick --json
  lbclient sim book --only 20-3,wasted,"table 5" --seed 2

Everything takes less than a minute, --quick some seconds. Exit status: 0; 1 if a
claim FAILS, or the output cannot be written; 2 for bad arguments; 130 after Ctrl-C;
141 if the reader of the output has gone.
"""


def main(argv: list[str]) -> int:
    try:
        given = parse_arguments(argv)
        names = names_of(given.only)
        if given.json not in (None, "-"):
            files.check("json", given.json)
        drawings = ready_to_draw(given.plot) if given.plot is not None else None
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


def make_parser() -> argparse.ArgumentParser:
    figures = textwrap.indent("\n".join(summaries()), "  ")
    parser = argparse.ArgumentParser(
        prog="lbclient sim book",
        description="Computes and draws the figures and tables of the SRE book, "
        "chapters 20 and 21, and of CACM 2023.",
        epilog=EPILOG.format(figures=figures),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--plot", "--out", metavar="DIR",
        help="draw each experiment as DIR/NAME.png (matplotlib)")  # fmt: skip
    add("--only", "--figure", metavar="A,B",
        help="experiments by name, or figures and tables: 20-3, 'table 5' "
        "(default: all)")  # fmt: skip
    add("--seed", type=whole, default=1, metavar="N", help="default: %(default)s")
    add("--quick", action="store_true", help="smaller fleets and fewer draws")
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
        shows = f" ({short_sources(name)})" if SHOWS[name] else ""
        yield hanging(f"{name:{width}}", sentence.removesuffix(".") + shows, width=77)


def short_sources(name: str) -> str:
    """
    >>> short_sources("connections")
    'SRE book, figure 20-3; figure 20-4; figure 20-5; CACM 2023, figure 1'
    """
    parts: list[str] = []
    text = ""
    for source in SHOWS[name]:
        before, text = text, source.partition(", ")[0]
        parts.append(source.removeprefix(f"{before}, ") if before == text else source)
    return "; ".join(parts)


def names_of(text: str | None) -> list[str]:
    """The experiments by these names, and those that show these figures, each once."""
    if text is None:
        return [*EXPERIMENTS]
    found: dict[str, None] = {}
    for word in text.split(","):
        names = [one for one in EXPERIMENTS if one == word or shows(one, word)]
        if not names:
            want = f"some of {', '.join(EXPERIMENTS)}, or a figure such as 20-3"
            raise ConfigError("only", word, want)
        found |= dict.fromkeys(names)
    return [*found]


def shows(name: str, word: str) -> bool:
    """Whether it is among the figures and tables of the experiment, as said briefly."""
    ending = f" {word.strip().lower()}"
    return any(source.lower().endswith(ending) for source in SHOWS[name])


def ready_to_draw(out: str) -> Path:
    """The directory, made if need be. Raises ConfigError before anything is run."""
    require("plot", out)
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        want = f"a directory that can be written: {error.strerror or error}"
        raise ConfigError("plot", out, want) from None
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
        files.write_json(given.json, what)


def report(found: Mapping[str, Experiment]) -> Iterator[str]:
    for name, experiment in found.items():
        yield f"{name}: {short_sources(name)}" if SHOWS[name] else name
        for claim in experiment.claims():
            head = f"  {claim.finding:7}  "
            yield hanging(head, claim.says)
            yield hanging(" " * len(head), ". ".join(values(claim)))
    yield ""
    yield summary(claims_of(found))


def values(claim: Claim) -> Iterator[str]:
    """The text's and ours, the reasons of bounds and departure, and the source."""
    text = f"text {claim.text}; " if claim.text else ""
    why = f" ({claim.why})" if claim.why else ""
    if claim.text == claim.ours and claim.within == "exactly":
        yield f"the same as the text: {claim.ours}"
    else:
        yield f"{text}ours {claim.ours}, want {wanted(claim)}{why}"
    if claim.departs:
        yield f"Because {claim.departs}"
    yield claim.where


def wanted(claim: Claim) -> str:
    if claim.within == "exactly":
        return f"{claim.low}"
    return claim.within


def summary(claims: Iterator[Claim]) -> str:
    counts = Counter(claim.finding for claim in claims)
    held, departed, failed = (counts[finding] for finding in Finding)
    total = count(counts.total(), "claim")
    return f"{total}: {held} hold, {departed} depart, {failed} fail"


def facts(seed: int, quick: bool, found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "seed": seed,
        "quick": quick,
        "figures": {
            name: {
                "shows": SHOWS[name],
                "claims": [
                    {**asdict(claim), "verdict": claim.finding, "holds": claim.holds}
                    for claim in experiment.claims()
                ],
                **asdict(experiment),
            }
            for name, experiment in found.items()
        },
    }
