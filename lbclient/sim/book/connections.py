"""Connections of each backend with random and with deterministic subsets.

SRE book, ch. 20, figures 20-3 to 20-5: 300 clients of 300 backends, and how large
random subsets must be for even connections. CACM 2023, figure 1, has no numbers; the
same fleet with subsets of 20 takes its place.
"""

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median, pvariance

from lbclient.sim.book.claims import ANY, Claim
from lbclient.subsets import order
from lbclient.subsets.properties import balance, choose

SHOWS = (
    "SRE book, figure 20-3",
    "SRE book, figure 20-4",
    "SRE book, figure 20-5",
    "CACM 2023, figure 1",
)
CLIENTS = BACKENDS = 300  # as in figures 20-3 to 20-5
OF_20_3, OF_20_4, OF_20_5, OF_CACM = 90, 30, 10, 20  # backends of each client
SHARES = (0.1, 0.3, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9)  # of all backends, in a subset
EVEN = 1.1  # the busiest, over the mean. The book's example of what costs too much
RANDOM = "SRE book, ch. 20, Random Subsetting"
DETERMINISTIC = "SRE book, ch. 20, Deterministic Subsetting"
CACM = "CACM 2023, Random subsetting"


@dataclass(frozen=True, slots=True)
class SubsetConnections:
    """How many connections backends have.

    `drawn` has, by the size of random subsets, the least and the most connections of a
    backend in each draw. `random` has all connections of one draw, `deterministic` all
    connections by the size of subsets.
    """

    drawn: dict[int, list[tuple[int, int]]]
    random: dict[int, list[int]]
    deterministic: dict[int, list[int]]
    rocksteadier: dict[int, list[int]]

    def idlest(self, size: int) -> float:
        return median(least for least, _ in self.drawn[size])

    def busiest(self, size: int) -> float:
        return median(most for _, most in self.drawn[size])

    @property
    def even_from(self) -> float:
        """The smallest share at which the busiest backend has `EVEN` times the mean."""
        enough = (s for s in SHARES if self.busiest(_size(s)) <= EVEN * _size(s))
        return next(enough)

    def claims(self) -> list[Claim]:
        over_mean = [self.busiest(_size(share)) / _size(share) for share in SHARES]
        chance = "medians of 30 draws; the median of all is 68"
        shown = self.random[OF_CACM]
        by_chance = OF_CACM * (1.0 - OF_CACM / BACKENDS)
        left = self.deterministic[OF_20_3]
        return [
            Claim(f"{RANDOM}, figure 20-3", "subsets of 90: connections of the idlest",
                  self.idlest(OF_20_3), 65, 71, "57, 63 %", chance,
                  "the figure shows an unlucky draw, of which there is one in 400; the"
                  " median is 76 % of the mean"),
            Claim(f"{RANDOM}, figure 20-3", "subsets of 90: connections of the busiest",
                  self.busiest(OF_20_3), 108, 122, "109, 121 %",
                  "98 of 100 draws are within"),
            Claim(f"{RANDOM}, figure 20-4", "subsets of 30: connections of the idlest",
                  self.idlest(OF_20_4), 11, 19, "15, 50 %",
                  "98 of 100 draws are within"),
            Claim(f"{RANDOM}, figure 20-4", "subsets of 30: connections of the busiest",
                  self.busiest(OF_20_4), 42, 53, "45, 150 %",
                  "98 of 100 draws are within"),
            Claim(RANDOM, "'smaller subset sizes lead to even worse imbalances': the"
                  " largest step up of the busiest, over the mean, as subsets grow",
                  max(larger - size for size, larger in pairwise(over_mean)),
                  -1, 0, "", "each larger size must be better"),
            Claim(RANDOM, "'relatively evenly' needs subsets 'as large as 75 %': the"
                  f" share of all backends at which the busiest has {EVEN:g} x mean",
                  self.even_from, 0.7, 0.8, "0.75",
                  "even to 10 %, an excess that the book calls costly; steps of 0.05"),
            Claim(f"{DETERMINISTIC}, figure 20-5", "subsets of 10: connections of all",
                  _extent(self.deterministic[OF_20_5]), "10", "10",
                  "exactly the same"),
            Claim(f"{DETERMINISTIC}, figure 20-5", "the same by rocksteadier",
                  _extent(self.rocksteadier[OF_20_5]), "10", "10",
                  "exactly the same"),
            Claim(DETERMINISTIC, "if k does not divide N: 'differ by at most 1'."
                  " Subsets of 90: busiest less idlest",
                  max(left) - min(left), 10, 25, "1",
                  "the shuffles are fixed",
                  "the book's code, which is taken here, leaves 30 of 300 backends out"
                  " in each round; its prose enlarges some subsets"),
            Claim(DETERMINISTIC, "the same by rocksteadier",
                  _extent(self.rocksteadier[OF_20_3]), "90", "90", "differ by 1"),
            Claim(f"{CACM}, figure 1", "'far from uniform': busiest over idlest,"
                  " subsets of 20", max(shown) / max(1, min(shown)), 2, ANY, "",
                  "a picture; 300 x 300, one draw"),
            Claim(f"{CACM}, figure 1", "as uneven as chance: the variance over the"
                  " binomial's", pvariance(shown) / by_chance, 0.7, 1.3, "",
                  "a picture; 300 values have it to 0.08, 4 times this"),
        ]  # fmt: skip


def run(seed: int, quick: bool) -> SubsetConnections:
    draws = 8 if quick else 30
    sizes = sorted({OF_20_3, OF_20_4, *map(_size, SHARES)})
    return SubsetConnections(
        {size: [_extremes(seed * draws + n, size) for n in range(draws)]
         for size in sizes},
        {size: _of("random", size, seed) for size in (OF_20_3, OF_20_4, OF_CACM)},
        {size: _of("deterministic", size) for size in (OF_20_5, OF_20_3)},
        {size: _of("rocksteadier", size) for size in (OF_20_5, OF_20_3)},
    )  # fmt: skip


def _size(share: float) -> int:
    return round(share * BACKENDS)


def _of(algorithm: str, size: int, draw: int = 0) -> list[int]:
    """The connections of each backend. Each draw is a client job of its own."""
    rule = partial(order, algorithm, offset=draw * CLIENTS)
    return [*balance(choose(rule, CLIENTS, BACKENDS, size), BACKENDS).connections]


def _extremes(draw: int, size: int) -> tuple[int, int]:
    connections = _of("random", size, draw)
    return min(connections), max(connections)


def _extent(connections: list[int]) -> str:
    least, most = min(connections), max(connections)
    return f"{least}" if least == most else f"{least} to {most}"
