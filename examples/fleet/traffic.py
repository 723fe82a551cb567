"""What the clients ask for: Poisson arrivals, and costs of which few are large.

Open loop: the next call comes when it comes, however slow the answers are. One
seed gives one sequence, so every policy is put to the same calls.
"""

from math import exp, log
from random import Random

SIGMA = 1.0  # of the lognormal: 1 call in 100 costs more than 6 mean ones
HEAVY_SHARE = 0.01
HEAVY_FACTOR = (100.0, 1000.0)  # loguniform between the two


class Traffic:
    """One client's calls: `gap` seconds to the next, which costs `cost`."""

    def __init__(
        self, rate: float, mean_cost: float, heavy_tail: bool, rng: Random
    ) -> None:
        self._rate = rate
        self._heavy_tail = heavy_tail
        self._rng = rng
        self._mu = log(mean_cost) - SIGMA**2 / 2  # mean of a lognormal: e^(mu + s^2/2)
        if heavy_tail:
            low, high = HEAVY_FACTOR
            mean_factor = (high - low) / log(high / low)
            self._mu -= log(1 + HEAVY_SHARE * (mean_factor - 1))

    def gap(self) -> float:
        return self._rng.expovariate(self._rate)

    def cost(self) -> float:
        cost = self._rng.lognormvariate(self._mu, SIGMA)
        if self._heavy_tail and self._rng.random() < HEAVY_SHARE:
            low, high = HEAVY_FACTOR
            cost *= exp(self._rng.uniform(log(low), log(high)))
        return cost
