"""What all benchmarks have on the command line: their docstring is their help.

No benchmark itself; each of the others is `python -m benchmarks.NAME`.
"""

import argparse
from typing import Any

from lbclient.cli import files
from lbclient.cli.lab import pictures
from lbclient.core.errors import ConfigError


def parser_of(name: str, doc: str | None) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_output(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--json", metavar="FILE", type=writable, help="write all figures to FILE")
    add("--plot", metavar="FILE", type=drawable, help="draw a .png, .svg or .pdf")


def writable(file: str) -> str:
    """Asked before the run rather than after it."""
    try:
        files.check("file", file)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(f"want {error.want}") from None
    return file


def drawable(file: str) -> str:
    try:
        import matplotlib.figure  # noqa: F401

        pictures.check(file)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(f"want {error.want}") from None
    except ImportError:
        want = "needs matplotlib: pip install 'lbclient[plot]'"
        raise argparse.ArgumentTypeError(want) from None
    return file


def write_json(file: str, figures: Any) -> None:
    files.write_json("json", file, figures)


def verdict(missed: list[str]) -> int:
    """Says it in a line, and as the exit status."""
    print("MISSED: " + "; ".join(missed) if missed else "all that is promised holds")
    return int(bool(missed))


if __name__ == "__main__":
    parser_of("command", __doc__).parse_args()
