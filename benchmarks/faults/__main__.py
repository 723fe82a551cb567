"""What faults cost the callers, ours beside plain grpc.aio's `round_robin`.

    python -m benchmarks.faults                   all, in their long form
    python -m benchmarks.faults --quick           all, in their short form
    python -m benchmarks.faults --only NAME ...   some of them, and so on

Each fault is made by real processes on loopback, or in network namespaces of its own,
and both clients meet it in the same run. Prints a table, or with --markdown that of
docs/faults.md, which has of a fault that was tried with several pickers the one that
fared worst. Exits with 1 if a promise was not kept.
"""

import asyncio
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from textwrap import shorten
from time import monotonic

import benchmarks.faults
from benchmarks.faults.row import Result, Row
from benchmarks.harness.measured import Measured
from benchmarks.harness.options import conclude, exit_with, parser_of

NOT_FAULTS = {
    "__main__",
    "caller",
    "fleet",
    "flooder",
    "goaway",
    "link",
    "network",
    "row",
    "slot_server",
    "stranger",
    "task",
}
MOST_SAID = 160  # characters
LONG, SHORT = 20.0, 4.0  # seconds of load in each part of a fault


def names() -> list[str]:
    modules = pkgutil.iter_modules(benchmarks.faults.__path__)
    return sorted({module.name for module in modules} - NOT_FAULTS)


def worst_of_each(rows: list[Row]) -> list[tuple[Row, int]]:
    """Of the variants of each fault the one that fared worst, and how many they are."""
    alike: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        alike.setdefault((row.fault, row.promise), []).append(row)
    return [
        (max(group, key=lambda row: (not row.holds, row.ours.failed)), len(group))
        for group in alike.values()
    ]


def cells(row: Row, variants: int) -> list[str]:
    named = f", {row.variant}" if row.variant else ""
    worst = f", the worst of {variants}" if variants > 1 else ""
    return [
        f"{row.fault}{named}{worst}",
        row.promise,
        "yes" if row.holds else "NO",
        failed(row.ours),
        failed(row.theirs),
        recovered(row.ours),
        recovered(row.theirs),
        shorten(row.ours.said, MOST_SAID, placeholder=" ..."),
    ]


def failed(result: Result | None) -> str:
    return "-" if result is None else f"{result.failed:,} of {result.calls:,}"


def recovered(result: Result | None) -> str:
    if result is None or result.recovered_after is None:
        return "-"
    return f"{result.recovered_after:.1f}"


HEADINGS = [
    "fault", "promise", "kept", "failed, ours", "failed, grpc.aio",
    "seconds to recover, ours", "grpc.aio", "what statistics() said",
]  # fmt: skip


def print_table(rows: list[Row], is_markdown: bool) -> None:
    if is_markdown:
        print("| " + " | ".join(HEADINGS) + " |")
        print("|" + "---|" * len(HEADINGS))
        for row, variants in worst_of_each(rows):
            told = [each.replace("|", "/") for each in cells(row, variants)]
            print("| " + " | ".join(told) + " |")
        return
    for row in rows:
        for heading, cell in zip(HEADINGS, cells(row, 1), strict=True):
            print(f"{heading:>26}  {cell}")
        print()


def told(rows: list[Row]) -> Iterator[Measured]:
    """Calls that failed, of both clients, and how soon ours recover."""
    for row, _ in worst_of_each(rows):
        for whose, result in (("lbclient", row.ours), ("grpc.aio", row.theirs)):
            if result is None:
                continue
            share = 100.0 * result.failed / max(1, result.calls)
            name = f"{row.fault}, {whose}"
            yield Measured(name=f"{name}: failed calls", value=share, unit="%")
            after = result.recovered_after
            if after is not None:
                yield Measured(name=f"{name}: recovered after", value=after, unit="s")


def main() -> int:
    parser = parser_of("faults", __doc__, quick="the short form of each")
    add = parser.add_argument
    what = f"some of {', '.join(names())}"
    add("--only", nargs="+", metavar="NAME", choices=names(), help=what)
    add("--markdown", action="store_true", help="the table of docs/faults.md")
    options = parser.parse_args()
    rows: list[Row] = []
    for name in options.only or names():
        began_at = monotonic()
        module = import_module(f"benchmarks.faults.{name}")
        rows += asyncio.run(module.run(SHORT if options.quick else LONG))
        print(f"# {name}: {monotonic() - began_at:.0f} s", flush=True)
    print_table(rows, options.markdown)
    broken = [f"{row.fault}: {row.promise}" for row in rows if not row.holds]
    return conclude(options, rows, broken, measured=told(rows))


if __name__ == "__main__":
    exit_with(main)
