"""What a task sees of attempts when some of the tasks refuse all: figure 21-1.

SRE book, ch. 21, "Deciding to Retry": each request carries how often it was tried. As
for the book's figure no budget bounds the retries but three attempts a request; beside
it, what budgets and "don't retry" make of it. Clients pick at random, for a picker
that passes refusing tasks by would leave little to see.
"""

from dataclasses import dataclass

from lbclient.pickers import picker_factory
from lbclient.sim import Scenario
from lbclient.sim.book.claims import Claim
from lbclient.sim.simulation import Simulation
from lbclient.sim.traffic import draw

SHARES = (0.0, 0.1, 0.5, 1.0)  # of the tasks that refuse all
UNBOUNDED = 2.0  # retries a request: a budget that all three attempts fit into
WITHIN, BUDGET, TOLD = "three attempts", "budget of 10 %", "and 'don't retry'"
LOAD = 0.1  # little: what is left over can do all of it
SIZE = 10
WHERE = "SRE book, ch. 21, Deciding to Retry"


@dataclass(frozen=True, slots=True)
class AttemptsSeen:
    """By share of refusing tasks: for each 1,000 first attempts that a task received,
    those of each number; and attempts a request, by what bounds them."""

    histograms: dict[float, list[float]]
    growth: dict[str, dict[float, float]]

    def claims(self) -> list[Claim]:
        most = {name: growth[1.0] for name, growth in self.growth.items()}
        half = self.histograms[0.5]
        return [
            Claim(WHERE, "all refuse, three attempts: 'just below 3X'",
                  most[WITHIN], 2.9, 3.0),
            Claim(WHERE, "all refuse, 10 % retry budget: 'just 1.1x'",
                  most[BUDGET], 1.05, 1.12),
            Claim(WHERE, "all refuse and say so: no more than that",
                  most[TOLD], 1.0, most[BUDGET] + 0.01),
            Claim(f"{WHERE}, figure 21-1", "half refuse: second attempts of 1,000",
                  half[1], 450, 550),
            Claim(f"{WHERE}, figure 21-1", "half refuse: third attempts of 1,000",
                  half[2], 200, 300),
        ]  # fmt: skip


def run(seed: int, quick: bool) -> AttemptsSeen:
    window = 20.0 if quick else 400.0
    growth: dict[str, dict[float, float]] = {WITHIN: {}, BUDGET: {}, TOLD: {}}
    histograms = {}
    for share in SHARES:
        for name, ratio, admission in (
            (WITHIN, UNBOUNDED, False),
            (BUDGET, 0.1, False),
            (TOLD, 0.1, True),
        ):
            scenario = Scenario(
                clients=SIZE, backends=SIZE, subset_size=SIZE, attempts=3,
                retry_ratio=ratio, admission=admission,
                refusing=round(share * SIZE), warm_up=0.0, window=window,
            )  # fmt: skip
            simulation = _play(scenario, seed)
            growth[name][share] = simulation.run().attempts
            if name == WITHIN:
                histograms[share] = _of_a_thousand(simulation)
    return AttemptsSeen(histograms, growth)


def _play(scenario: Scenario, seed: int) -> Simulation:
    return Simulation(
        scenario, picker_factory("random"), draw(scenario, LOAD, seed), seed
    )


def _of_a_thousand(simulation: Simulation) -> list[float]:
    """In the mean of all tasks: refusing or not, they are sent the same."""
    seen = [backend.attempts for backend in simulation.backends]
    counts = [sum(each) for each in zip(*seen, strict=True)]
    return [1000.0 * count / counts[0] for count in counts]
