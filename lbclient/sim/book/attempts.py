"""What a task sees of attempts when some of the tasks refuse all requests.

SRE book, ch. 21, "Deciding to Retry" and figure 21-1: each request carries the number
of its attempt. In the book's figure a request has three attempts, and no budget bounds
the retries. The experiment plays this, and retries with a budget and with "don't retry"
beside it. Clients pick at random, because other pickers avoid tasks that refuse.

In the book a retry may go to any task. In lbclient it goes to a task that has not
refused the request. Both rules are played.
"""

from dataclasses import dataclass, replace

from lbclient.pickers import picker_factory
from lbclient.sim import Scenario
from lbclient.sim.book.claims import Claim
from lbclient.sim.simulation import Simulation
from lbclient.sim.traffic import draw

SHARES = (0.0, 0.1, 0.5, 1.0)  # of the tasks that refuse all
UNBOUNDED = 2.0  # retries a request: a budget that all three attempts fit into
WITHIN, BUDGET, TOLD = "three attempts", "budget of 10 %", "and 'don't retry'"
ANYWHERE, ELSEWHERE = "retries anywhere", "retries elsewhere"
LOAD = 0.1  # little: what is left over can do all of it
SIZE = 10  # clients, and backends
SHOWS = ("SRE book, figure 21-1",)
WHERE = "SRE book, ch. 21, Deciding to Retry"


@dataclass(frozen=True, slots=True)
class AttemptsSeen:
    """The attempts that tasks receive, by the share of tasks that refuse.

    `histograms` has, by rule, how many attempts of each number a refusing task receives
    for each 1,000 first attempts. `growth` has attempts for each request, by what
    bounds them. `failed` has the share of requests that fail, by rule, within the
    budget and with tasks that say "don't retry".
    """

    histograms: dict[str, dict[float, list[float]]]
    growth: dict[str, dict[float, float]]
    failed: dict[str, dict[float, float]]

    def claims(self) -> list[Claim]:
        most = {name: growth[1.0] for name, growth in self.growth.items()}
        anywhere, elsewhere = (self.histograms[at] for at in (ANYWHERE, ELSEWHERE))
        return [
            Claim(WHERE, "all refuse, three attempts: 'just below 3X'",
                  most[WITHIN], 2.9, 3.0, "just below 3", "3 % below"),
            Claim(WHERE, "all refuse, 10 % retry budget: 'just 1.1x'",
                  most[BUDGET], 1.05, 1.12, "1.1",
                  "a budget has some calls' worth to begin with"),
            Claim(WHERE, "all refuse and say so: no more than that",
                  most[TOLD], 1.0, 1.11, "", "no more than the budget's"),
            Claim(f"{WHERE}, figure 21-1",
                  "half refuse, retries anywhere: second attempts of 1,000",
                  anywhere[0.5][1], 450, 550, "", "a picture; r = 0.5 gives 500"),
            Claim(f"{WHERE}, figure 21-1",
                  "half refuse, retries anywhere: third attempts of 1,000",
                  anywhere[0.5][2], 200, 300, "", "a picture; r squared gives 250"),
            Claim(f"{WHERE}, figure 21-1",
                  "one of ten refuses, retries anywhere: second attempts of "
                  "1,000 that it sees, though nine could help",
                  anywhere[0.1][1], 60, 140, "", "r = 0.1 gives 100"),
            Claim(f"{WHERE}, figure 21-1",
                  "the same by lbclient's rule, retries elsewhere",
                  elsewhere[0.1][1], 0, 0, "100", "",
                  "a retry never goes to a task that has refused the request"),
            Claim(WHERE, "one of ten refuses, retries anywhere: requests that fail",
                  self.failed[ANYWHERE][0.1], 0.005, 0.06, "",
                  "the budget covers a tenth; 0.04 of one draw"),
            Claim(WHERE, "the same by lbclient's rule, retries elsewhere",
                  self.failed[ELSEWHERE][0.1], 0.0, 0.02, "",
                  "half of the other rule's at most"),
        ]  # fmt: skip


def run(seed: int, quick: bool) -> AttemptsSeen:
    histograms: dict[str, dict[float, list[float]]] = {ANYWHERE: {}, ELSEWHERE: {}}
    growth: dict[str, dict[float, float]] = {WITHIN: {}, BUDGET: {}, TOLD: {}}
    failed: dict[str, dict[float, float]] = {ANYWHERE: {}, ELSEWHERE: {}}
    for share in SHARES:
        bounded = Scenario(
            clients=SIZE, backends=SIZE, subset_size=SIZE, attempts=3,
            refusing=round(share * SIZE), warm_up=0.0, window=40.0 if quick else 80.0,
        )  # fmt: skip
        growth[BUDGET][share] = _play(bounded, seed).run().attempts
        for rule in (ANYWHERE, ELSEWHERE):
            within = replace(
                bounded, retry_ratio=UNBOUNDED, avoid_tried=rule == ELSEWHERE
            )
            simulation = _play(within, seed)
            all_sent = simulation.run()
            histograms[rule][share] = _of_a_thousand(simulation)
            told = replace(within, retry_ratio=bounded.retry_ratio, admission=True)
            result = _play(told, seed).run()
            failed[rule][share] = result.errors
            if rule == ELSEWHERE:
                growth[WITHIN][share] = all_sent.attempts
                growth[TOLD][share] = result.attempts
    return AttemptsSeen(histograms, growth, failed)


def _play(scenario: Scenario, seed: int) -> Simulation:
    return Simulation(
        scenario, picker_factory("random"), draw(scenario, LOAD, seed), seed
    )


def _of_a_thousand(simulation: Simulation) -> list[float]:
    """The mean of the tasks that refuse, or of all tasks if none refuses."""
    all_ = [one.admission for one in simulation.backends if one.admission is not None]
    seen = [one.attempts for one in all_ if one.refuses_all]
    seen = seen or [one.attempts for one in all_]
    counts = [sum(each) for each in zip(*seen, strict=True)]
    return [1000.0 * count / counts[0] for count in counts]
