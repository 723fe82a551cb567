"""Why round robin spreads unevenly: each of its causes alone, and all at once.

SRE book, ch. 20, "Simple Round Robin", names them. Loads are chosen so that no backend
is full: else the limit itself would make them look alike.
"""

from dataclasses import dataclass, replace

from lbclient.sim import Scenario, simulate
from lbclient.sim.book.claims import Claim
from lbclient.sim.traffic import draw

PICKERS = (
    "round_robin",
    "least_loaded",
    "weighted_round_robin",
    "weighted_least_loaded",
)
LOAD = 0.35
WHERE = "SRE book, ch. 20, Simple Round Robin"

EVEN = Scenario(
    clients=40, backends=20, subset_size=10, costs="equal", warm_up=15.0, window=25.0
)
MIXED = (1.0, 2.0)


def hot(scenario: Scenario) -> Scenario:
    return replace(scenario, hot_share=0.1, hot_traffic=0.3)


def shaken(scenario: Scenario) -> Scenario:
    return replace(scenario, neighbour=0.8, restart_every=8.0, restart_speed=0.6)


CAUSES = {
    "nothing": EVEN,
    "clients differ": hot(EVEN),
    "costs differ": replace(EVEN, costs="heavy"),
    "machines differ": replace(EVEN, speeds=MIXED),
    "neighbours, restarts": shaken(EVEN),
    "all of these": replace(hot(shaken(EVEN)), costs="heavy", speeds=MIXED),
}


@dataclass(frozen=True, slots=True)
class SpreadByCause:
    """The busiest backend's utilization over the idlest's: by cause, then picker."""

    ratios: dict[str, dict[str, float]]

    def claims(self) -> list[Claim]:
        ratios = self.ratios
        machines = ratios["machines differ"]
        least = "SRE book, ch. 20, Least-Loaded Round Robin"
        weighted = "SRE book, ch. 20, Weighted Round Robin"
        return [
            Claim(WHERE, "round robin, nothing wrong: even",
                  ratios["nothing"]["round_robin"], 1.0, 1.1),
            Claim(WHERE, "round robin, machines 2x apart: 'a spread of up to 2x'",
                  machines["round_robin"], 1.8, 2.2),
            Claim(WHERE, "round robin, all causes at once: more than that",
                  ratios["all of these"]["round_robin"], 2.0, 10.0),
            Claim(least, "least loaded, machines 2x apart: 'about as poorly'",
                  machines["least_loaded"], 1.6, 2.2),
            Claim(weighted, "weighted round robin, machines 2x apart: 'very well'",
                  machines["weighted_round_robin"], 1.0, 1.2),
        ]  # fmt: skip


def run(seed: int, quick: bool) -> SpreadByCause:
    ratios = {}
    for cause, scenario in CAUSES.items():
        if quick:
            scenario = replace(
                scenario, clients=20, backends=10, subset_size=5, window=10.0
            )
        traffic = draw(scenario, LOAD, seed)
        ratios[cause] = {
            picker: extent(
                simulate(
                    scenario, picker, load=LOAD, seed=seed, traffic=traffic
                ).utilization
            )
            for picker in PICKERS
        }
    return SpreadByCause(ratios)


def extent(utilization: list[float]) -> float:
    return max(utilization) / min(utilization)
