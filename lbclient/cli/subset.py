"""Subsets on paper: who gets which backends, how good that is, and how many to take.

Nothing connects to anything. Clients and backends are numbered from 0, and a
client's subset is what a channel with that task number takes.
"""

import argparse
import json
import sys

from lbclient.cli.subset_answers import Answer, Fleet, advise, compare, measure, single
from lbclient.cli.subset_plots import PICTURES, Scene, draw
from lbclient.errors import ConfigError
from lbclient.subsets import ALGORITHMS
from lbclient.subsets.advice import Bursts

SUMMARY = "choose subsets on paper: measure, compare, advise, draw"

# The SRE book's own example, and the size that channels have unless told otherwise.
CLIENTS, BACKENDS, SIZE = 300, 300, 20

EPILOG = """\
Without --client, --compare, --advise and --plot all properties of one algorithm
are shown.

figures, of the articles' own sizes unless you give others:
  distribution   connections of each backend (SRE book, figures 20-3 to 20-5)
  utilization    by clients per backend, for all pairs of jobs up to --clients
                 and --backends; takes some seconds (CACM 2023, figure 2)
  churn          subsets before and after a resize (CACM 2023, figure 3)
  ring           who stands where, and whom --client sees (CACM 2023, figure 4)

examples:
  lbclient subset --clients 1000 --backends 1000 --compare
  lbclient subset --backends 1000 --client 7 --resize 1001
  lbclient subset --clients 40 --backends 500 --advise
  lbclient subset --algorithm random --size 90 --plot random.png

Time grows with clients x size, and with clients x backends for algorithms that
shuffle. Exit status: 0; 2 for bad arguments; 130 after Ctrl-C.
"""


def main(argv: list[str]) -> int:
    try:
        given = parse(argv)
        answer = plot(given) if given.plot or given.figure else answer_to(given)
    except (ConfigError, OSError) as error:
        print(f"lbclient subset: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(json.dumps(answer.facts, indent=2) if given.json else answer.text)
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    """Numbers that are none stay texts: who takes them says what they must be."""
    parser = argparse.ArgumentParser(
        prog="lbclient subset",
        description="Computes which backends each client connects to, and what that is "
        "worth.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--algorithm", default="rocksteadier", metavar="NAME",
        help=f"one of {', '.join(ALGORITHMS)} (default: rocksteadier)")  # fmt: skip
    add("--clients", type=whole, metavar="M", help=f"default: {CLIENTS}")
    add("--backends", type=whole, metavar="N", help=f"default: {BACKENDS}")
    add("--size", type=whole, metavar="K",
        help=f"backends of each client (default: {SIZE}); with --advise the least "
        "that may be advised")  # fmt: skip
    add("--offset", type=whole, default=0, metavar="O",
        help="of this client job among others, lbclient.subsets.job_offset of its "
        "name (default: 0)")  # fmt: skip
    add("--resize", type=whole, metavar="N2",
        help="what so many backends change (default: one more)")  # fmt: skip
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--client", type=whole, metavar="I", help="the subset of one")
    what.add_argument(
        "--compare", action="store_true", help="all algorithms in one table"
    )
    what.add_argument(
        "--advise", action="store_true", help="how large a subset should be"
    )
    add("--excess", type=real, default=1.25, metavar="E",
        help="--advise: the load of the busiest backend over the mean load may be so "
        "much (default: 1.25)")  # fmt: skip
    add("--hot-share", type=real, metavar="S",
        help="--advise: this share of the clients, any of them, ...")  # fmt: skip
    add("--hot-traffic", type=real, metavar="T",
        help="... sends this share of all calls")  # fmt: skip
    add("--plot", metavar="FILE", help="draw a figure: a .png, .svg or .pdf")
    add("--figure", choices=PICTURES, help="which one (default: distribution)")
    add("--json", action="store_true", help="print everything as JSON")
    return parser.parse_args(argv)


def whole(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text


def real(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def fleet_of(
    given: argparse.Namespace, clients: int, backends: int, size: int
) -> Fleet:
    """What was asked for, with these sizes where nothing was said."""
    return Fleet(
        given.algorithm,
        clients if given.clients is None else given.clients,
        backends if given.backends is None else given.backends,
        size if given.size is None else given.size,
        given.offset,
    )


def answer_to(given: argparse.Namespace) -> Answer:
    fleet = fleet_of(given, CLIENTS, BACKENDS, SIZE)
    if given.advise:
        return advise(fleet, excess_of(given), bursts_of(given))
    resized = resized_of(given, fleet)
    if given.client is not None:
        return single(fleet, given.client, resized)
    return (compare if given.compare else measure)(fleet, resized)


def resized_of(given: argparse.Namespace, fleet: Fleet) -> Fleet:
    return fleet.resized(fleet.backends + 1 if given.resize is None else given.resize)


def excess_of(given: argparse.Namespace) -> float:
    if not isinstance(given.excess, float) or not given.excess >= 1.0:
        raise ConfigError("excess", given.excess, "a number, at least 1")
    return given.excess


def bursts_of(given: argparse.Namespace) -> Bursts | None:
    if given.hot_share is None and given.hot_traffic is None:
        return None
    return Bursts(given.hot_share, given.hot_traffic)


def plot(given: argparse.Namespace) -> Answer:
    name, file = given.figure or "distribution", given.plot
    if file is None:
        raise ConfigError("plot", file, "a file to draw the figure in")
    picture = PICTURES[name]
    fleet = fleet_of(given, picture.clients, picture.backends, picture.size)
    client = 1 if given.client is None else given.client
    draw(name, Scene(fleet, resized_of(given, fleet), client), file)
    return Answer(f"{name}: {file}", {"figure": name, "file": file})
