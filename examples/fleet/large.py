"""A fleet that is larger than a subset: 40 backends x 40 clients on one machine.

    make fleet                        about a minute
    make fleet ARGS=--quick           20 x 20, about half of it
    python examples/fleet/large.py --json FILE

Real servers, channels and connections: each backend has a port of its own, ten share a
process, and so do ten clients. Each client has a task number and a subset of the
backends, which it finds in a file. Four things are shown, each as a table:

1. Connections are even: every backend has as many clients as the others.
2. The file gets some backends more, and loses them again: few connections move.
3. One customer wants more than its quota and is refused; nobody else is.
4. A batch job wants more than is left: behind `lbclient proxy`, and then directly.

Exit status: 0; 1 if a verdict is MISSED, or the fleet cannot go on; 2 for bad
arguments; 130 after Ctrl-C. Needs Linux, whose table of connections it reads.
"""

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from child import run_or_exit
from large_fleet import PROCESSES, Fleet, Plan
from large_show import Show
from report import as_text

FULL = Plan(40, 40, 12, 4, stock=20, web=100.0, seconds=8.0)
QUICK = Plan(20, 20, 6, 2, stock=10, web=50.0, seconds=3.0)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="20 x 20, in half of the time"
    )
    parser.add_argument("--json", metavar="FILE", help="write all counts")
    return parser


async def run(plan: Plan) -> Show:
    """Plays everything; no process is left behind, however it ends."""
    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    print(f"starting {plan.backends} backends and {plan.clients} clients in "
          f"{2 * PROCESSES} processes ...", flush=True)  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        async with Fleet(plan, Path(folder)) as fleet:
            await fleet.start()
            show = Show(fleet)
            await show.play()
            return show


def main(argv: Sequence[str] | None = None) -> int:
    given = make_parser().parse_args(argv)
    show = run_or_exit("large fleet", run(QUICK if given.quick else FULL))
    print(f"\n{as_text(show.verdict)}")
    if given.json is not None:
        found = {**show.found, "verdict": [asdict(one) for one in show.verdict]}
        Path(given.json).write_text(json.dumps(found, indent=1))
    return int(any(finding.kept is False for finding in show.verdict))


if __name__ == "__main__":
    sys.exit(main())
