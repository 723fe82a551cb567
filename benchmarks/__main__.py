"""Runs the benchmarks of docs/benchmarks.md one after the other, and writes that page.

    python -m benchmarks                   the short form of all: ten minutes
    python -m benchmarks --full            all of it: some hours
    python -m benchmarks --only overhead   some of them; the others' figures stay
    python -m benchmarks --resume          without those that the last run has finished
    python -m benchmarks --compare         tells what moved, and writes nothing
    python -m benchmarks --page            writes the page from the record, runs nothing

What each has found is kept in build/benchmarks, with all that it said, so that a run
that was ended can be resumed. At the end the page and benchmarks/recorded.json are
written, and the ratios that moved by more than their noise since the last record are
named. Of thousands of figures chance makes some worse: a benchmark with such a one is
run again, and only what moved both times is named. Exit status 1 if one moved for the
worse, or a benchmark told nothing.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path

from benchmarks.harness.one_by_one import run
from benchmarks.harness.options import exit_with
from benchmarks.harness.page import with_figures
from benchmarks.harness.processes import ROOT
from benchmarks.harness.record import Moved, Record, Run, load, moved, moved_again, save
from benchmarks.listed import BENCHMARKS, Listed

RECORD = ROOT / "benchmarks" / "recorded.json"
PAGE = ROOT / "docs" / "benchmarks.md"
KEPT = ROOT / "build" / "benchmarks"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    names = [one.name for one in BENCHMARKS]
    add("--full", action="store_true", help="the long form of each")
    add("--only", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    add("--resume", action="store_true", help="run what is not finished yet")
    what = "do not write the page and the record"
    add("--compare", action="store_true", help=what)
    add("--page", action="store_true", help="run nothing, and write the page")
    return made


def kept_file(*, is_full: bool) -> Path:
    return KEPT / ("full.json" if is_full else "short.json")


def run_all(chosen: Iterable[Listed], kept: Record, *, is_full: bool) -> dict[str, Run]:
    """What each of them found; kept as soon as it is known.

    Not run again are those that are whole in `kept`.
    """
    kept, found = dict(kept), {}
    for listed in chosen:
        if listed.arguments(is_full=is_full) is None:
            continue
        of = kept.get(listed.name)
        if of is None or not of.end.is_whole:
            print(f"{listed.name:20} ", end="", flush=True)
            of = run(listed, KEPT, is_full=is_full)
            kept[listed.name] = of
            save(kept_file(is_full=is_full), kept)
            missed = "".join(f"\n{'':21}{what}" for what in of.missed)
            print(f"{of.seconds:4.0f} s  {of.end}  {of.said}{missed}", flush=True)
        found[listed.name] = of
    return found


def told_again(before: Record, found: dict[str, Run], *, is_full: bool) -> list[Moved]:
    """What moved, and stays so when benchmarks with a worse figure are run again.

    The second run takes the place of the first in `found`.
    """
    changes = moved(before, found)
    doubtful = {one.benchmark for one in changes if one.is_worse}
    if not doubtful:
        return changes
    print("some are worse, perhaps by chance; once more:", flush=True)
    kept = {**load(kept_file(is_full=is_full)), **found}
    sure = {name: of for name, of in kept.items() if name not in doubtful}
    chosen = [one for one in BENCHMARKS if one.name in doubtful]
    again = run_all(chosen, sure, is_full=is_full)
    again = {name: of for name, of in again.items() if of.end.is_whole}
    found |= again
    once = [one for one in changes if one.benchmark not in again]
    return once + moved_again(changes, moved(before, again))


def in_order(runs: dict[str, Run]) -> dict[str, Run]:
    """As they are listed, without those that no longer are."""
    return {one.name: runs[one.name] for one in BENCHMARKS if one.name in runs}


def recorded(before: dict[str, Run], found: dict[str, Run]) -> dict[str, Run]:
    """What is to be recorded: a run that told nothing replaces no figures."""
    new = {
        name: of
        for name, of in found.items()
        if of.end.is_whole or name not in before or not before[name].end.is_whole
    }
    return {**before, **new}


def write(runs: dict[str, Run]) -> None:
    save(RECORD, in_order(runs))
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_figures(page, load(RECORD)), encoding="utf-8")


def main() -> int:
    given = parser().parse_args()
    before = load(RECORD)
    if given.page:
        write(before)
        return 0
    chosen = [one for one in BENCHMARKS if not given.only or one.name in given.only]
    try:
        kept = load(kept_file(is_full=given.full)) if given.resume else {}
        found = run_all(chosen, kept, is_full=given.full)
        changes = told_again(before, found, is_full=given.full)
    except KeyboardInterrupt:
        print("\nended: --resume goes on with what is not finished yet")
        return 130
    minutes = sum(of.seconds for of in found.values()) / 60
    print(f"{minutes:.1f} minutes in all", flush=True)
    print("\n".join(map(str, changes)) or "no ratio moved beyond its noise")
    if not given.compare:
        write(recorded(before, found))
    is_broken = any(not of.end.is_whole for of in found.values())
    return int(is_broken or any(one.is_worse for one in changes))


if __name__ == "__main__":
    exit_with(main)
