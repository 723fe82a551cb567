"""Wasted capacity: what the other tasks could still serve when the busiest one is full.

SRE book, ch. 20, figures 20-1 and 20-2, show a fleet that is balanced badly and one
that is balanced well. Here two pickers balance the same requests in the same fleet.
"""

from dataclasses import dataclass, replace
from statistics import fmean

from lbclient.sim import SCENARIOS, simulate
from lbclient.sim.book.claims import Claim
from lbclient.sim.traffic import draw

PICKERS = ("round_robin", "weighted_least_loaded")
LOAD = 0.5  # at which round robin keeps the slow machines below their limit
SHOWS = ("SRE book, figure 20-1", "SRE book, figure 20-2")
WHERE = "SRE book, ch. 20, The Ideal Case"


@dataclass(frozen=True, slots=True)
class Wasted:
    """Utilization of each task by picker: in each second, and of the whole time."""

    seconds: dict[str, list[list[float]]]
    utilization: dict[str, list[float]]

    def usable(self, picker: str) -> float:
        """The share of the capacity that is usable until the busiest task is full."""
        utilization = self.utilization[picker]
        return fmean(utilization) / max(utilization)

    def claims(self) -> list[Claim]:
        poor, good = (1000.0 * self.usable(picker) for picker in PICKERS)
        return [
            Claim(f"{WHERE}, figures 20-1 and 20-2", "usable, of 1,000 CPUs balanced"
                  " badly", poor, 650, 750, "700",
                  "7 %: machines differ 2.5 times, which gives 700 without chance"),
            Claim(f"{WHERE}, figures 20-1 and 20-2", "usable, of 1,000 CPUs balanced"
                  " well", good, 970, 1000, "all", "a picture; 3 % of chance"),
        ]  # fmt: skip


def run(seed: int, quick: bool) -> Wasted:
    scenario = replace(
        SCENARIOS["S2_diverse"],
        warm_up=10.0,
        window=20.0 if quick else 30.0,
        clients=10 if quick else 40,
        backends=10 if quick else 40,
        subset_size=10 if quick else 20,
    )
    traffic = draw(scenario, LOAD, seed)
    runs = {
        picker: simulate(scenario, picker, load=LOAD, seed=seed, traffic=traffic)
        for picker in PICKERS
    }
    return Wasted(
        {picker: result.seconds for picker, result in runs.items()},
        {picker: result.utilization for picker, result in runs.items()},
    )
