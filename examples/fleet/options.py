"""The demo's settings: what can be chosen, and what follows from it."""

import argparse
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

from lbclient.pickers import PICKERS

POLICIES = (
    "round_robin",
    "least_loaded",
    "weighted_round_robin",
    "weighted_least_loaded",
)
CORES = 2  # emulated, of each backend
FAST = 2.5  # times as fast as the others is every second backend
HEALTH_INTERVAL = 1.0
BLACKOUT = 1.0  # of weighted round robin; A58's 10 s are longer than a phase

EPILOG = """\
examples:
  lbclient demo --quick
  lbclient demo --backends 12 --load 0.6 --json result.json
  lbclient demo --policies round_robin,weighted_least_loaded --heavy-tail

Exit status: 0; 1 if a call failed in the rolling restart, the demo itself could not go
on, or the output cannot be written; 2 for bad arguments; 130 after Ctrl-C; 141 if the
reader of the output has gone.
"""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long the phases last, in seconds."""

    settle: float  # of each policy, not measured
    measure: float  # at least
    measure_most: float  # until max/mean is known well enough, or this is over
    restart: float  # at least, for all backends together
    down: float  # between SIGKILL and the new start
    frozen: float
    around: float  # before and after a kill or a freeze


DEFAULT = Timing(4.5, 5.5, 5.5, restart=9.0, down=1.0, frozen=2.5, around=1.0)
QUICK = Timing(2.25, 3.0, 6.0, restart=4.0, down=0.3, frozen=1.5, around=0.3)


@dataclass(frozen=True, slots=True)
class Options:
    backends: int
    clients: int
    rate: float
    load: float
    heavy_tail: bool
    seed: int
    policies: tuple[str, ...]
    timing: Timing
    json: str | None

    @property
    def speeds(self) -> list[float]:
        return [FAST if number % 2 else 1.0 for number in range(self.backends)]

    @property
    def mean_cost(self) -> float:
        """Core seconds at speed 1 that make `rate` calls/s the load asked for."""
        return self.load * CORES * sum(self.speeds) / self.rate

    @property
    def judges_balance(self) -> bool:
        """Whether windows are long enough for the few dear calls to even out."""
        return self.timing is DEFAULT and not self.heavy_tail

    def configuration(self) -> dict[str, Any]:
        return asdict(self) | {
            "speeds": self.speeds,
            "mean_cost": self.mean_cost,
            "cores": CORES,
            "health_interval": HEALTH_INTERVAL,
            "weighted_round_robin_blackout": BLACKOUT,
        }

    def __str__(self) -> str:
        tail = ", 1 in 100 of them 100 to 1000 times dearer" if self.heavy_tail else ""
        return textwrap.fill(
            f"{self.backends} backends with {CORES} emulated cores each, every second "
            f"one {FAST} times as fast; {self.clients} clients; {self.rate:g} calls/s "
            f"at random times, lognormal costs of {self.mean_cost * 1000:.1f} ms on "
            f"average{tail}: {self.load:.0%} of what the fleet can do. Health interval "
            f"{HEALTH_INTERVAL:g} s; weighted round robin with a blackout of "
            f"{BLACKOUT:g} s, for gRFC A58's 10 s outlast a phase.",
            width=79,
        )


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lbclient demo",
        description="Shows a real fleet coming into balance: the same load under four "
        "policies, then a rolling restart, a kill and a freeze.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--quick", action="store_true",
        help="4 backends and 2 clients, for about 40 s instead of 60")  # fmt: skip
    add("--json", metavar="FILE", help="write all figures and the configuration there")
    add("--backends", type=whole(2, 32), metavar="N", help="default: 8")
    add("--clients", type=whole(1, 16), metavar="N", help="default: 4")
    add("--rate", type=real(10, 2000), default=500.0, metavar="CALLS",
        help="calls per second of all clients together (default: 500)")  # fmt: skip
    add("--load", type=real(0.05, 0.95), default=0.5, metavar="SHARE",
        help="share of the fleet's capacity; the mean cost of a call follows from it "
        "and the rate (default: 0.5, at which round robin just does not saturate the "
        "slow backends)")  # fmt: skip
    add("--heavy-tail", action="store_true",
        help="1 call in 100 costs 100 to 1000 times as much; same mean")  # fmt: skip
    add("--seed", type=whole(0, 2**32 - 1), default=1, metavar="N",
        help="of arrivals and costs (default: 1)")  # fmt: skip
    add("--policies", type=policies, default=POLICIES, metavar="A,B,...",
        help=f"which of {', '.join(PICKERS)} to compare "
        f"(default: {', '.join(POLICIES)})")  # fmt: skip
    return parser


def parse(argv: Sequence[str] | None) -> Options:
    parser = make_parser()
    given = parser.parse_args(argv)
    if given.json is not None:
        try:
            open(given.json, "a").close()  # sooner rather than after the run
        except OSError as error:
            parser.error(f"argument --json: {error}")
    return Options(
        backends=given.backends or (4 if given.quick else 8),
        clients=given.clients or (2 if given.quick else 4),
        rate=given.rate,
        load=given.load,
        heavy_tail=given.heavy_tail,
        seed=given.seed,
        policies=given.policies,
        timing=QUICK if given.quick else DEFAULT,
        json=given.json,
    )


def whole(low: int, high: int) -> Callable[[str], int]:
    return _bounded(int, "a whole number", low, high)


def real(low: float, high: float) -> Callable[[str], float]:
    return _bounded(float, "a number", low, high)


def _bounded(kind: Any, what: str, low: float, high: float) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = -inf
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(
                f"want {what} from {low} to {high}, not {text!r}"
            )
        return value

    return convert


def policies(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in PICKERS:
            raise argparse.ArgumentTypeError(
                f"{name!r} is none of {', '.join(PICKERS)}"
            )
    return names
