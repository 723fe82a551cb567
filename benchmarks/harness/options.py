"""The command line of benchmarks: options, files, exit status. A benchmark's docstring
is its help."""

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, NoReturn

from benchmarks.harness import figures
from benchmarks.harness.measured import Measured

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")


def exit_with(main: Callable[[], int | None]) -> NoReturn:
    """Runs `main` and exits with its status, or after Ctrl-C with 130, as in shells."""
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)


def parser_of(
    name: str, doc: str | None, quick: str = "", json: bool = True, plot: bool = False
) -> argparse.ArgumentParser:
    """With --quick if there are words for its help, with --json, and with --plot.

    With --json comes --measured, by which `python -m benchmarks` hears the figures.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    if quick:
        add("--quick", action="store_true", help=quick)
    if json:
        add("--json", metavar="FILE", type=writable, help="write all figures to FILE")
        what = "write the figures of docs/benchmarks.md to FILE"
        add("--measured", metavar="FILE", type=writable, help=what)
    if plot:
        add("--plot", metavar="FILE", type=drawable, help="draw a .png, .svg or .pdf")
    return parser


def writable(file: str) -> str:
    """Checked before the run, which may take long."""
    path = Path(file)
    is_new = not path.exists()
    try:
        path.open("a").close()
    except OSError as error:
        want = f"want a file that can be written: {error.strerror}"
        raise argparse.ArgumentTypeError(want) from None
    if is_new:
        os.unlink(os.path.realpath(path))  # where a link leads, not the link
    return file


def drawable(file: str) -> str:
    if PurePath(file).suffix not in SUFFIXES:
        want = f"want a name that ends in {', '.join(SUFFIXES)}"
        raise argparse.ArgumentTypeError(want)
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        want = "needs matplotlib: pip install 'lbclient[plot]'"
        raise argparse.ArgumentTypeError(want) from None
    return writable(file)


def conclude(
    given: argparse.Namespace,
    found: Any,
    missed: list[str] | None,
    draw: "Callable[[], Figure] | None" = None,
    measured: Iterable[Measured] = (),
) -> int:
    """Writes the files that were asked for, and says which targets were missed.

    `measured` are the figures that are compared from run to run, on docs/benchmarks.md;
    some have goals. `missed` are other targets, or say more of one of these after its
    name; None: there are none. Returns the exit status.
    """
    told = [*measured]
    said = missed or []
    names = [one.name for one in told if one.misses]
    others = [words for words in said if not words.startswith(tuple(names))]
    every = said + [
        name for name in names if not any(words.startswith(name) for words in said)
    ]
    if given.json:
        figures.write_json(given.json, found)
    if draw is not None and given.plot:
        figures.write_plot(given.plot, draw())
    if given.measured:
        figures.write_json(given.measured, {"missed": others, "measured": told})
    if missed is not None or any(one.goal is not None for one in told):
        print("MISSED: " + "; ".join(every) if every else "all that is promised holds")
    return int(bool(every))
