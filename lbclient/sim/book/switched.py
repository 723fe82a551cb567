"""A running fleet's clients change their picker."""

from dataclasses import dataclass, replace
from statistics import fmean

from lbclient.pickers import picker_factory
from lbclient.sim import SCENARIOS, SMOOTHING
from lbclient.sim.book.claims import ANY, Claim
from lbclient.sim.simulation import Simulation
from lbclient.sim.traffic import draw

BEFORE, AFTER = "least_loaded", "weighted_round_robin"
LOAD = 0.6  # of all processors
SETTLED = 10.0  # seconds after the switch; reports are smoothed over 5 s
SHOWS = ("SRE book, figure 20-6",)
WHERE = "SRE book, ch. 20, Weighted Round Robin"


@dataclass(frozen=True, slots=True)
class Switched:
    """Utilization of each backend in each second.

    The clients change their picker after `at` seconds.
    """

    at: int
    seconds: list[list[float]]

    def before(self) -> list[float]:
        return means(self.seconds[: self.at])

    def after(self) -> list[float]:
        return means(self.seconds[self.at + int(SETTLED) :])

    def claims(self) -> list[Claim]:
        before, after = self.before(), self.after()
        ratio = max(before) / min(before)
        shrunk = (max(before) - min(before)) / (max(after) - min(after))
        least = "SRE book, ch. 20, Least-Loaded Round Robin"
        return [
            Claim(least, "most over least loaded: 'twice as much CPU'",
                  ratio, 1.6, 2.6, "2", "machines differ 2.5 times"),
            Claim(f"{WHERE}, figure 20-6", "spread, before over after: 'decreased"
                  " drastically'", shrunk, 4.0, ANY, "", "words and a picture"),
            Claim(f"{WHERE}, figure 20-6", "most over least loaded, afterwards",
                  max(after) / min(after), 1.0, 1.25, "", "a picture: close together"),
        ]  # fmt: skip


def means(rows: list[list[float]]) -> list[float]:
    """The mean utilization of each backend."""
    return [fmean(column) for column in zip(*rows, strict=True)]


def run(seed: int, quick: bool) -> Switched:
    half = 15.0 if quick else 60.0
    scenario = replace(
        SCENARIOS["S2_diverse"],
        clients=10 if quick else 20,
        backends=10 if quick else 20,
        subset_size=10,
        warm_up=10.0,
        window=half + SETTLED + half,
    )
    simulation = Simulation(
        scenario,
        picker_factory(BEFORE),
        draw(scenario, LOAD, seed),
        seed,
        SMOOTHING[AFTER],
    )
    simulation.switch(scenario.warm_up + half, picker_factory(AFTER))
    return Switched(int(half), simulation.run().seconds)
