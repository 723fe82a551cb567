"""Runs a server of the user's as a task of several worker processes."""

import argparse
import asyncio
import json
import os
import signal
import sys

from lbclient import metrics
from lbclient.cli.numbers import whole
from lbclient.cli.operate.task_metrics import mark_ended, scraped_at
from lbclient.cli.operate.task_page import describe, shown_at
from lbclient.core.errors import ConfigError
from lbclient.server.workers.orphans import is_init
from lbclient.server.workers.task import serve_by_workers
from lbclient.server.workers.worker import set_up_logging

LEVELS = ("debug", "info", "warning", "error", "critical")

EPILOG = """\
MODULE:FUNCTION is a function without arguments that returns a server of lbclient or
grpc, asynchronous or synchronous; a coroutine function, or one that returns an
asynchronous context manager for a server, does as well. Each worker imports the module,
and calls the function.

Prints its address when all workers are ready. Signals:
  SIGTERM, Ctrl-C  all workers become lame ducks together, finish their calls and end;
                   a later signal ends them immediately
  SIGHUP           replaces the workers one by one, each by one that is ready before

A worker that ends is started again, after pauses of 0.1 to 30 s.

examples:
  lbclient serve shop.server:make_server --workers 4 --port 50051
  lbclient serve shop.server:make_server --workers auto

Exit status: 0 after SIGTERM or Ctrl-C; 1 if it cannot write its output; 2 for bad
arguments, also where a worker finds them; 3 if a worker cannot start, before all have
been ready.
"""


def main(argv: list[str]) -> int:
    if is_init():
        # Of the first process of a container the kernel drops signals that it does not
        # handle, and the supervisor does not yet.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    given = make_parser().parse_args(argv)
    set_up_logging(given.log_level)
    sys.path.insert(0, os.path.abspath(given.app_dir))
    try:
        asyncio.run(run(given))
    except ConfigError as error:
        return complain(error, 2)
    except RuntimeError as error:
        return complain(error, 3)
    return 0


def complain(error: Exception, status: int) -> int:
    print(f"lbclient serve: {error}", file=sys.stderr)
    return status


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lbclient serve",
        description="Runs a server as one or several processes behind one address.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("make_server", metavar="MODULE:FUNCTION", help="what makes a worker's server")
    add("--workers", type=count, default=1, metavar="N", help="number of processes; "
        "auto: one a CPU of the control group (default: %(default)s)")  # fmt: skip
    add("--port", type=whole, metavar="PORT", help="a port without TLS for all "
        "workers, besides those that the function adds; 0: any free one")  # fmt: skip
    add("--host", default="[::]", metavar="HOST", help="where --port listens "
        "(default: %(default)s, all addresses of the machine)")  # fmt: skip
    add("--app-dir", default=".", metavar="DIR", help="folder that MODULE is "
        "looked for in, besides the installed ones (default: this one)")  # fmt: skip
    add("--log-level", choices=LEVELS, default="info", help="what goes to stderr, "
        "unless the program sets up logging itself (default: %(default)s)")  # fmt: skip
    add("--metrics", type=whole, metavar="PORT", help="serve Prometheus metrics of all "
        "workers on this port")  # fmt: skip
    add("--page", type=whole, metavar="PORT", help="serve the page of all workers on "
        "this port of 127.0.0.1, at /lbz")  # fmt: skip
    add("--json", action="store_true", help="print the address as a line of JSON")
    return parser


def count(text: str) -> int | str:
    return text if text == "auto" else whole(text)


async def run(given: argparse.Namespace) -> None:
    def ready(address: str, workers: int) -> None:
        if given.json:
            print(json.dumps({"listening": address, "workers": workers}), flush=True)
        else:
            print(f"listening on {address}, {workers} workers", flush=True)

    async with (
        scraped_at(given.metrics, given.host) as ended,
        shown_at(given.page) as started,
    ):
        await serve_by_workers(
            given.make_server,
            None,
            given.workers,
            given.host,
            given.port,
            given.log_level,
            ready,
            None if ended is None else metrics.export,
            mark_ended if ended is None else ended,
            None if started is None else describe,
            (lambda _: None) if started is None else started,
        )
