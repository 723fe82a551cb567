"""Subsets on paper: who gets which backends, how good that is, and how many to take.

Nothing connects to anything. Clients and backends are numbered from 0, and a
client's subset is what a channel with that task number takes.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from math import inf

from lbclient.cli.lab.subset_answers import (
    Fleet,
    SubsetAnswer,
    advise,
    compare,
    measure,
    single,
)
from lbclient.cli.lab.subset_plots import PICTURES, Scene, draw, sizes
from lbclient.cli.lab.subset_workers import of_workers
from lbclient.cli.numbers import real, whole
from lbclient.config import ChannelConfig, find_setting
from lbclient.core.errors import ConfigError
from lbclient.subsets import ALGORITHMS, SUBSET_SIZE, job_offset
from lbclient.subsets.advice import Bursts

# The SRE book's own example, and the size that channels have unless told otherwise.
CLIENTS, BACKENDS = 300, 300
ALGORITHM = "rocksteadier"  # what channels take where all have numbers, as here
EXCESS = 1.25  # the busiest backend over the mean that advice allows; ours
FIGURE = "distribution"

# What would be ignored beside, or without, the other is refused.
NOT_WITH = (
    ("algorithm", "compare"),
    ("plot", "compare"),
    ("plot", "advise"),
    ("figure", "compare"),
    ("figure", "advise"),
    ("resize", "advise"),
    ("offset", "client_job"),
    ("algorithm", "workers"),
    ("plot", "workers"),
    ("figure", "workers"),
    ("resize", "workers"),
)
ONLY_WITH = (
    ("excess", "advise"),
    ("hot_share", "advise"),
    ("hot_traffic", "advise"),
    ("figure", "plot"),
    ("max_connections", "workers"),
)

EPILOG = """\
Without --client, --compare, --advise, --workers and --plot it shows all
properties of one algorithm.

figures (default --clients, --backends and --size: those of the articles):
  distribution   connections of each backend (SRE book, figures 20-3 to 20-5)
  utilization    by clients per backend, for all pairs of jobs up to --clients
                 and --backends; takes some seconds (CACM 2023, figure 2)
  churn          subsets before and after --resize (CACM 2023, figure 3)
  ring           the ring, and the subset of --client (CACM 2023, figure 4)

An option without effect is an error.

examples:
  lbclient subset --clients 1000 --backends 1000 --compare
  lbclient subset --backends 1000 --client 7 --resize 1001
  lbclient subset --clients 40 --backends 500 --advise
  lbclient subset --clients 40 --backends 60 --workers 8
  lbclient subset --algorithm random --size 90 --plot random.png

Time grows with clients x size, and with clients x backends for algorithms that
shuffle. Exit status: 0; 2 for bad arguments; 130 after Ctrl-C; if the output
cannot be written 1, or 141 if its reader has gone.
"""


def main(argv: list[str]) -> int:
    try:
        given = parse(argv)
        answer = answer_to(given) if given.plot is None else plot(given)
    except ConfigError as error:
        print(f"lbclient subset: {error}", file=sys.stderr)
        return 2
    print(json.dumps(answer.facts, indent=2) if given.json else answer.text)
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lbclient subset",
        description="Computes the backends of each client, and how even they are.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--algorithm", metavar="NAME",
        help=f"one of {', '.join(ALGORITHMS)} (default: {ALGORITHM}, which is also "
        "auto's); whole takes all backends, whatever --size is")  # fmt: skip
    add("--clients", type=whole, metavar="M", help=f"default: {CLIENTS}")
    add("--backends", type=whole, metavar="N", help=f"default: {BACKENDS}")
    add("--size", type=whole, metavar="K",
        help=f"backends of each client (default: {SUBSET_SIZE}); with --advise the "
        "least size to advise")  # fmt: skip
    add("--client-job", metavar="NAME",
        help="one client job of several, as client_job of a channel")  # fmt: skip
    add("--offset", type=whole, metavar="O",
        help="the same as a number: lbclient.subsets.job_offset of its name "
        "(default: 0)")  # fmt: skip
    add("--resize", type=whole, metavar="N2",
        help="show the effect of N2 backends (default: one more)")  # fmt: skip
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--client", type=whole, metavar="I", help="one client's subset")
    what.add_argument(
        "--compare", action="store_true", help="all algorithms but whole in one table"
    )
    what.add_argument(
        "--advise", action="store_true", help="how large a subset should be"
    )
    what.add_argument("--workers", type=whole, metavar="W",
        help="backends are tasks of W workers: connections to these")  # fmt: skip
    add("--max-connections", type=whole, metavar="C",
        help="--workers: as of a channel (default: "
        f"{find_setting(ChannelConfig, 'max_connections').default})")  # fmt: skip
    add("--excess", type=real, metavar="E",
        help="--advise: highest acceptable load of the busiest backend over the "
        f"mean load (default: {EXCESS})")  # fmt: skip
    add("--hot-share", type=real, metavar="S",
        help="--advise: this share of the clients, any of them, ...")  # fmt: skip
    add("--hot-traffic", type=real, metavar="T",
        help="... sends this share of all calls")  # fmt: skip
    add("--plot", metavar="FILE", help="draw a figure: a .png, .svg or .pdf")
    add("--figure", choices=PICTURES, help=f"which one (default: {FIGURE})")
    add("--json", action="store_true", help="print everything as JSON")
    return parser


def parse(argv: list[str]) -> argparse.Namespace:
    """Numbers that are none stay texts: who takes them says what they must be."""
    given = make_parser().parse_args(argv)
    for field, want in ignored(given):
        raise ConfigError(field, getattr(given, field), want)
    return given


def ignored(given: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """The fields that would change nothing, and what is wanted instead."""
    said = {
        field
        for field, value in vars(given).items()
        if value is not None and value is not False
    }
    for field, other in NOT_WITH:
        if {field, other} <= said:
            yield field, f"no {option(other)} beside it"
    for field, other in ONLY_WITH:
        if field in said and other not in said:
            yield field, f"{option(other)} beside it"
    if given.plot is not None:
        name = given.figure or FIGURE
        for field in ("algorithm", "client", "resize"):
            if field in said - PICTURES[name].heeds:
                yield field, f"another figure than {name}, which does not heed it"
    match given.client, given.clients:
        case int(client), int(clients) if client >= clients:
            yield "client", f"a number below --clients, {clients}"


def option(field: str) -> str:
    return "--" + field.replace("_", "-")


def fleet_of(
    given: argparse.Namespace, clients: int, backends: int, size: int
) -> Fleet:
    """What was asked for, with these sizes where nothing was said."""
    return Fleet(
        ALGORITHM if given.algorithm in (None, "auto") else given.algorithm,
        clients if given.clients is None else given.clients,
        backends if given.backends is None else given.backends,
        size if given.size is None else given.size,
        job_offset(given.client_job or "") if given.offset is None else given.offset,
    )


def answer_to(given: argparse.Namespace) -> SubsetAnswer:
    fleet = fleet_of(given, CLIENTS, BACKENDS, SUBSET_SIZE)
    if given.advise:
        return advise(fleet, excess_of(given), bursts_of(given))
    if given.workers is not None:
        most = find_setting(ChannelConfig, "max_connections").default
        if given.max_connections is not None:
            most = given.max_connections
        return of_workers(fleet, given.workers, most)
    resized = resized_of(given, fleet)
    if given.client is not None:
        return single(fleet, given.client, resized)
    return (compare if given.compare else measure)(fleet, resized)


def resized_of(given: argparse.Namespace, fleet: Fleet) -> Fleet:
    return fleet.resized(fleet.backends + 1 if given.resize is None else given.resize)


def excess_of(given: argparse.Namespace) -> float:
    excess = EXCESS if given.excess is None else given.excess
    if not isinstance(excess, float) or not 1.0 <= excess < inf:
        raise ConfigError("excess", excess, "a number, at least 1")
    return excess


def bursts_of(given: argparse.Namespace) -> Bursts | None:
    if given.hot_share is None and given.hot_traffic is None:
        return None
    return Bursts(given.hot_share, given.hot_traffic)


def plot(given: argparse.Namespace) -> SubsetAnswer:
    name, file = given.figure or FIGURE, given.plot
    picture = PICTURES[name]
    says_none = given.clients is given.backends is given.size is None
    fleet = fleet_of(
        given, *(picture.sizes if says_none else (CLIENTS, BACKENDS, SUBSET_SIZE))
    )
    client = 1 if given.client is None else given.client
    draw(name, Scene(fleet, resized_of(given, fleet), client), file)
    is_article_s = (fleet.clients, fleet.backends, fleet.taken) == picture.sizes
    source = f", the sizes of {picture.source}" if is_article_s else ""
    return SubsetAnswer(
        f"{name}: {file}\n{sizes(name, fleet)}{source}",
        {"figure": name, "file": file} | fleet.facts(),
    )
