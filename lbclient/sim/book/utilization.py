"""Utilization with four algorithms, over all pairs of client and backend jobs.

CACM 2023, figure 2. The printed condition, "kN <= 256", must have lost a sign: with k =
20 it leaves N <= 12. It is read as k <= N <= 256, which gives 59,148 pairs. The figure
has no numbers, so the claims are the text's remarks on it.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import inf
from statistics import fmean
from typing import NamedTuple

from lbclient.sim.book.claims import Claim, same
from lbclient.subsets import ALGORITHMS
from lbclient.subsets.properties import balance, choose, scenarios
from lbclient.subsets.ringsteady import ringsteady

SHOWS = ("CACM 2023, figure 2",)
SIZE, MOST = 20, 256  # k, and the largest N of either job
PANELS = {  # of the figure, from a on
    "2a": "random",
    "2b": "deterministic_leftover",
    "2c": "ringsteady_unscaled",
    "2d": "ringsteady",
}
BINS = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, inf)  # clients for each backend
FEW, MANY, MOST_CLIENTS = (0.0, 1.0), (1.0, inf), (8.0, inf)  # likewise, from and to
ALL = (0.0, inf)
BALANCE = "CACM 2023, Connection balance, figure 2"
RING = "CACM 2023, Ringsteady subsetting, figure 2"
SCALING = "CACM 2023, Frontend and backend scaling, figure 2"


class Bin(NamedTuple):
    """Pairs of jobs by how many clients there are for each backend, from `start` on."""

    start: float
    pairs: int
    mean: float
    worst: float


@dataclass(frozen=True, slots=True)
class Utilization:
    """`bins` by panel; `ideal` is the worst utilization if both sides are scaled."""

    bins: dict[str, list[Bin]]
    ideal: float

    def _of(self, panel: str, ratios: tuple[float, float]) -> list[Bin]:
        low, high = ratios
        return [one for one in self.bins[panel] if low <= one.start < high]

    def mean(self, panel: str, ratios: tuple[float, float] = ALL) -> float:
        found = self._of(panel, ratios)
        return sum(one.pairs * one.mean for one in found) / sum(
            one.pairs for one in found
        )

    def worst(self, panel: str, ratios: tuple[float, float]) -> float:
        return min(one.worst for one in self._of(panel, ratios))

    def claims(self) -> list[Claim]:
        exact = "no chance in it; to a hundredth, for a part of the pairs"
        gain = self.mean("2d", MANY) - self.mean("2c", MANY)
        loss = self.mean("2c", FEW) - self.mean("2d", FEW)
        lower = self.worst("2c", MANY) - self.worst("2b", MANY)
        return [
            Claim(BALANCE, "2a: random 'improves naturally' with more clients for each"
                  " backend; mean from 8 on less mean below 1",
                  self.mean("2a", MOST_CLIENTS) - self.mean("2a", FEW), 0.3, 0.5, "",
                  "a picture: rises to nearly 1; +- 0.1 by other random numbers"),
            Claim(BALANCE, "2b: deterministic converges to the ideal; mean from 8"
                  " clients for each backend on", self.mean("2b", MOST_CLIENTS),
                  0.99, 1, "", "a picture: touches 1"),
            Claim(RING, "2c: Ringsteady is 'significantly better than random'; mean"
                  " less random's", self.mean("2c") - self.mean("2a"),
                  0.2, 0.4, "", "a picture; +- 0.1 by other random numbers"),
            Claim(RING, "2c: 'lower utilization in some cases than deterministic';"
                  " the worst from 1 client for each backend on, less deterministic's",
                  lower, -0.2, -0.01, "", "must be below 0"),
            Claim(SCALING, "2c: with more clients it 'does not converge toward the"
                  " ideal'; mean from 8 on", self.mean("2c", MOST_CLIENTS),
                  0.95, 0.995, "", exact),
            Claim(SCALING, "2d: backend scaling improves it for M > N, by",
                  gain, 0.005, 0.02, "", exact),
            Claim(SCALING, "2d: 'a small degradation' for M < N, of",
                  loss, 0.0, 0.01, "", exact),
            Claim(SCALING, "2d: lower 'in some cases' than deterministic; mean less"
                  " deterministic's", self.mean("2d") - self.mean("2b"),
                  -0.05, -0.01, "", exact),
            same(SCALING, "both sides scaled: always ideal; the worst utilization",
                 f"{self.ideal:g}", "1"),
        ]  # fmt: skip


def run(seed: int, quick: bool) -> Utilization:
    """The result is the same for all seeds: it depends on clients' numbers only."""
    every = 9 if quick else 1
    numbers = range(SIZE, MOST + 1, every)
    bins = {panel: _bins(name, numbers) for panel, name in PANELS.items()}
    return Utilization(bins, min(_both_scaled(numbers)))


def _bins(name: str, numbers: range) -> list[Bin]:
    found: dict[float, list[float]] = {start: [] for start in BINS[:-1]}
    for clients, backends, used in scenarios(ALGORITHMS[name], MOST, numbers, SIZE):
        found[BINS[bisect_right(BINS, clients / backends) - 1]].append(used)
    return [
        Bin(start, len(values), fmean(values), min(values))
        for start, values in found.items()
    ]


def _both_scaled(numbers: range) -> Iterator[float]:
    """Some of the pairs, each chosen anew: clients move when their number changes."""
    for backends in numbers[::8]:
        for clients in range(1, MOST + 1, 17):
            rule = partial(ringsteady, clients=clients)
            yield balance(choose(rule, clients, backends, SIZE), backends).utilization
