"""The command line: one command a file, found in two literal dicts.

Only the one that is asked for is imported: a health check should not wait for the rest.
"""

import argparse
import errno
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from lbclient import __version__

OPERATE = {
    "completion": "print a script by which a shell completes these commands",
    "doctor": "check a target for the usual problems, and say what to do",
    "inspect": "show the channels, backends and servers of a process",
    "probe": "check the health of one server, for example of a container",
    "proxy": "forward calls of any method, to isolate backends from batch jobs",
    "serve": "run a server as one or several processes behind one address",
    "resolve": "show the endpoints of a target, once or as they change",
}
LAB = {
    "demo": "run a fleet of real processes under four policies (about 60 s)",
    "sim": "compare pickers on a simulated fleet",
    "subset": "plan subsets: measure, compare, advise, draw",
}
"""Each is the module of its name, whose `main` takes the words and returns a status;
`make_parser` is for completion."""

COMMANDS = dict(sorted((OPERATE | LAB).items()))

UNWRITTEN = (errno.EPIPE, errno.ENOSPC)  # the reader has gone, the disk is full


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns the process's exit status."""
    try:
        try:
            return _run(argv)
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (OSError, ExceptionGroup) as error:
        return _unwritten(error)


def make_parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS)) + 2
    listing = "\n".join(
        f"  {name:{width}}{summary}" for name, summary in COMMANDS.items()
    )
    parser = argparse.ArgumentParser(
        prog="lbclient",
        usage="lbclient [-h] [--version] command ...",
        description="Client-side load balancing for asyncio gRPC.",
        epilog=f"commands:\n{listing}\n\nexample:\n  lbclient demo --quick\n\n"
        "`lbclient command --help` shows options, examples and exit statuses.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action="version", version=f"lbclient {__version__}"
    )
    return parser


def _run(argv: Sequence[str] | None) -> int:
    parser = make_parser()
    parser.add_argument("command", nargs="?", choices=COMMANDS, help=argparse.SUPPRESS)
    parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.command is None:
        parser.print_help(sys.stderr)
        return 2
    status: int = module_of(given.command).main(given.rest)
    return status


def module_of(command: str) -> Any:
    folder = "operate" if command in OPERATE else "lab"
    return import_module(f"lbclient.cli.{folder}.{command}")


def _unwritten(error: Exception) -> int:
    """The status of a command that nobody listens to. Raises what else went wrong."""
    cause = error
    while isinstance(cause, ExceptionGroup):
        cause = cause.exceptions[0]
    if not isinstance(cause, OSError) or cause.errno not in UNWRITTEN:
        raise error
    # What is still in the buffer would fail again when the interpreter exits.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if cause.errno == errno.EPIPE:
        return 128 + signal.SIGPIPE  # as `head` leaves programs that know no better
    print(f"lbclient: {cause.strerror}", file=sys.stderr)
    return 1
