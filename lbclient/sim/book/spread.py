"""Why round robin spreads load unevenly: each of the causes alone, and all together.

SRE book, ch. 20, "Simple Round Robin", names the causes. At the chosen loads no backend
is full; full backends would all look the same.
"""

from dataclasses import dataclass, replace

from lbclient.sim import Scenario, simulate
from lbclient.sim.book.claims import ANY, Claim
from lbclient.sim.traffic import draw

PICKERS = (
    "random",
    "round_robin",
    "least_loaded",
    "weighted_round_robin",
    "weighted_least_loaded",
)
SHOWS = ()  # the text has no figure of it
LOAD = 0.35  # of all processors
WHERE = "SRE book, ch. 20, Simple Round Robin"

EVEN = Scenario(
    clients=40, backends=20, subset_size=10, costs="equal", warm_up=15.0, window=25.0
)
MIXED = (1.0, 2.0)  # speeds of the machines


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
    """Utilization of the busiest backend over the idlest one: by cause, then picker."""

    ratios: dict[str, dict[str, float]]

    def claims(self) -> list[Claim]:
        ratios = self.ratios
        even, machines = ratios["nothing"], ratios["machines differ"]
        least = "SRE book, ch. 20, Least-Loaded Round Robin"
        weighted = "SRE book, ch. 20, Weighted Round Robin"
        return [
            Claim(WHERE, "round robin, nothing wrong: even",
                  even["round_robin"], 1.0, 1.1, "", "5 %, twice, of chance"),
            Claim(WHERE, "'significantly better than just selecting backend tasks"
                  " randomly': uneven by random picks over uneven by round robin,"
                  " nothing wrong", _times(even), 1.2, ANY, "",
                  "words; uneven is the ratio less 1"),
            Claim(WHERE, "the same where costs differ", _times(ratios["costs differ"]),
                  0.4, 2.5, "more than 1", "a few expensive requests in 25 s",
                  "here chance decides who gets the requests that cost 100 to 1,000"
                  " times as much, and turns cannot even that out"),
            Claim(WHERE, "round robin, machines 2x apart: 'a spread of up to 2x'",
                  machines["round_robin"], 1.8, 2.2, "up to 2", "10 % of chance"),
            Claim(WHERE, "round robin, all causes at once: 'such a spread ... for a"
                  " number of reasons'",
                  ratios["all of these"]["round_robin"], 2.0, 10.0, "up to 2",
                  "each cause adds to the 2 of machines alone",
                  "the text does not say how strong its causes were; all of ours are at"
                  " work at once"),
            Claim(least, "least loaded, machines 2x apart: 'about as poorly'",
                  machines["least_loaded"], 1.6, 2.2, "2", "20 % of chance"),
            Claim(weighted, "weighted round robin, machines 2x apart: 'very well'",
                  machines["weighted_round_robin"], 1.0, 1.2, "",
                  "words; a tenth of the spread at most"),
        ]  # fmt: skip


def _times(by_picker: dict[str, float]) -> float:
    """How uneven random picks are, as a multiple of round robin."""
    return (by_picker["random"] - 1.0) / (by_picker["round_robin"] - 1.0)


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
