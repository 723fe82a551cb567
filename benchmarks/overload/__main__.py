"""A server in more demand than it can meet, beside a bare grpc.aio server.

    python -m benchmarks.overload                  all cells of a minute: about 4 hours
    python -m benchmarks.overload --quick          some, of 8 s: about 6 minutes
    python -m benchmarks.overload --handler 10 --times 10 20 --surroundings quiet
    python -m benchmarks.overload --handler 10 --without intake queue-delay
    python -m benchmarks.overload --handler emulated --times 12.5 --critical 0.04
    python -m benchmarks.overload --read FILE FILE --plot FILE

Load is open: Poisson arrivals from a process of its own, half of them SHEDDABLE, a
twentieth CRITICAL_PLUS and the others CRITICAL, with a deadline of 1 s. A cell is a
server, a handler, its surroundings (quiet; beside a neighbour that burns one core; in a
cgroup of half a core) and a load in times of the capacity, which is what a bare server
gets done of that handler in these surroundings when it has just enough to do. Goodput
is what is answered in time.

What is allowed is what fits in the CPU that the server could have, less what refusing
takes: see `allowed`. What would fit of CRITICAL_PLUS is the smaller of what is offered
of it and what was served at all; of CRITICAL what that leaves, and so on.

Exit status 1 if a server of ours misses a target: goodput of 0.9 of what is allowed up
to 20 times where it is quiet, and 0.8 beside the neighbour; p99 of half the deadline;
all is served within 2 s of the flood; at no load fewer answers in time than those of
grpc.aio alone while the load lasts; of CRITICAL_PLUS and of CRITICAL 0.99 of what would
fit. Where the load itself was sent late (p99: 100 ms) the cell is not judged.
"""

import argparse
import asyncio
import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.figures import say_machine
from benchmarks.harness.options import conclude, exit_with, parser_of
from benchmarks.overload import handlers
from benchmarks.overload.allowed import Refusing
from benchmarks.overload.cells import (
    SURROUNDINGS,
    Cell,
    Figures,
    cost_of_refusing,
    placed,
    run,
    served_by_bare,
)
from benchmarks.overload.load import CLIENTS, missing
from benchmarks.overload.neighbours import Impossible
from benchmarks.overload.picture import picture
from benchmarks.overload.say import say, say_bare, say_cost
from benchmarks.overload.serve import BARE, OURS, WITHOUT
from benchmarks.overload.targets import late, measured_of, missed
from benchmarks.overload.without import MECHANISMS

KINDS = (OURS, BARE)
TIMES = (2.0, 5.0, 10.0, 20.0, 30.0)
SECONDS, QUICK = 60.0, 8.0
QUICK_HANDLERS, QUICK_TIMES = ("1", "10"), (2.0, 10.0)
QUICK_SURROUNDINGS = ("quiet", "neighbour")


async def measure(given: argparse.Namespace) -> list[Figures]:
    kinds = [*given.kind, *(WITHOUT + name for name in given.without)]
    runs, cost = [], Refusing(0.0, 0.0)
    if kinds != [BARE]:
        cost = await cost_of_refusing()
        say_cost(cost)
    for surroundings in given.surroundings:
        try:
            async with placed(surroundings) as place:
                for handler in given.handler:
                    bare = await served_by_bare(handler, place)
                    say_bare(handlers.named(handler), surroundings, bare)
                    for cell in cells(handler, surroundings, kinds, given):
                        runs.append(await run(cell, place, bare, cost, given.seconds))
                        say(runs[-1])
        except Impossible as error:
            print(f"\nleft out, {surroundings}: {error}", flush=True)
    return runs


def cells(
    handler: str, surroundings: str, kinds: Sequence[str], given: argparse.Namespace
) -> list[Cell]:
    """A server of each kind one after the other, so that neighbours in time compare."""
    return [
        Cell(handler, surroundings, kind, clients, times, critical)
        for clients in given.clients
        for critical in given.critical
        for times in given.times
        for kind in kinds
    ]


def read(files: Sequence[str]) -> dict[str, Any]:
    """What pieces that were run one by one come to."""
    pieces = [json.loads(Path(file).read_text()) for file in files]
    return {**pieces[0], "runs": [run for piece in pieces for run in piece["runs"]]}


def figures_of(fields: dict[str, Any]) -> Figures:
    return Figures(**{**fields, "cell": Cell(**fields["cell"])})


def a_handler(name: str) -> str:
    if not handlers.is_known(name):
        want = f"milliseconds of CPU, emulated, or one of {', '.join(handlers.NAMES)}"
        raise argparse.ArgumentTypeError(f"want {want}")
    return name


def positive(text: str) -> float:
    number = float(text)
    if not 0.0 < number < 1e6:
        raise argparse.ArgumentTypeError("want a number beyond 0")
    return number


def parsed() -> argparse.Namespace:
    quick = "fewer cells, and shorter ones"
    parser = parser_of("overload", __doc__, quick, plot=True)
    add = parser.add_argument
    add("--seconds", type=positive, help=f"of each cell; {SECONDS:g} unless told")
    what = "ms of CPU; or mixed, waiting, threads, emulated"
    add("--handler", nargs="+", type=a_handler, metavar="NAME", help=what)
    add("--times", nargs="+", type=positive, help="the capacity, offered")
    add("--surroundings", nargs="+", choices=SURROUNDINGS)
    add("--kind", nargs="*", choices=KINDS, default=list(KINDS))
    what = "besides, for each a server of ours without it"
    add("--without", nargs="+", choices=MECHANISMS, default=[], help=what)
    add("--clients", nargs="+", choices=CLIENTS, default=["frames"])
    add("--critical", nargs="+", type=positive, default=[0.5], metavar="SHARE",
        help="of the load")  # fmt: skip
    add("--read", metavar="FILE", nargs="+", help="run nothing")
    given = parser.parse_args()
    quick = given.quick
    given.seconds = given.seconds or (QUICK if quick else SECONDS)
    given.handler = given.handler or (QUICK_HANDLERS if quick else handlers.NAMES)
    given.times = given.times or (QUICK_TIMES if quick else TIMES)
    given.surroundings = given.surroundings or (
        QUICK_SURROUNDINGS if quick else SURROUNDINGS
    )
    return given


def main() -> int:
    given = parsed()
    if given.read:
        found = read(given.read)
        runs = [figures_of(fields) for fields in found["runs"]]
        for one in runs:
            say(one)
    else:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # else nothing ends
        of = say_machine()
        for clients in [one for one in given.clients if missing(one)]:
            print(f"left out, {clients} clients: {missing(clients)}", flush=True)
            given.clients.remove(clients)
        runs = asyncio.run(measure(given))
        found = {**of, "runs": runs}
    for said in late(runs):
        print(f"not judged, the load was sent late: {said}")
    print()
    told = measured_of(runs)
    return conclude(given, found, missed(runs), lambda: picture(runs), measured=told)


if __name__ == "__main__":
    exit_with(main)
