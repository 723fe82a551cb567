"""The command line: one command a file, found in a literal dict."""

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version

from lbclient.cli import demo, subset

COMMANDS: dict[str, tuple[Callable[[list[str]], int], str]] = {
    "demo": (demo.main, demo.SUMMARY),
    "subset": (subset.main, subset.SUMMARY),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns the process's exit status."""
    width = max(map(len, COMMANDS)) + 2
    listing = "\n".join(
        f"  {name:{width}}{summary}" for name, (_, summary) in COMMANDS.items()
    )
    parser = argparse.ArgumentParser(
        prog="lbclient",
        usage="lbclient [-h] [--version] command ...",
        description="Client-side load balancing for asyncio gRPC.",
        epilog=f"commands:\n{listing}\n\nexample:\n  lbclient demo --quick\n\n"
        "`lbclient command --help` tells more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action="version", version=f"lbclient {version('lbclient')}"
    )
    parser.add_argument("command", nargs="?", choices=COMMANDS, help=argparse.SUPPRESS)
    parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.command is None:
        parser.print_help(sys.stderr)
        return 2
    command, _ = COMMANDS[given.command]
    return command(given.rest)
