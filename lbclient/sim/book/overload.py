"""A fleet that is offered more than its capacity: what is sent, and what is served.

SRE book, ch. 21: clients that throttle send K times what is accepted, however high the
demand is, and a task continues to serve the load that it is provisioned for.
"""

from dataclasses import dataclass, replace

from lbclient.sim import Result, Scenario, simulate
from lbclient.sim.book.claims import Claim
from lbclient.sim.traffic import draw

LOADS = (0.8, 1.5, 2.0, 5.0, 10.0)  # what is offered, in capacities
KS = (1.1, 1.5, 2.0)  # multipliers of a throttle; the book names 1.1 and 2
NOTHING, REFUSES, BOTH = "nothing", "admission", "admission, throttling"
THROTTLING = "SRE book, ch. 21, Client-Side Throttling"
SHOWS = ()  # the text has no figure of it
CONCLUSIONS = "SRE book, ch. 21, Conclusions"

FLEET = Scenario(
    clients=2,
    backends=2,
    subset_size=2,
    cores=1,
    costs="equal",
    full=1000,
    timeout=1.0,
    warm_up=130.0,  # a throttle remembers two minutes
    window=40.0,
    refusal_cost=0.05,
    admission=True,
)


@dataclass(frozen=True, slots=True)
class Overload:
    """What is sent and served, in capacities, by the offered load.

    `sent` has what backends receive, by K; `goodput` what is served in time, by the
    measures that are taken.
    """

    sent: dict[float, dict[float, float]]
    goodput: dict[str, dict[float, float]]

    def claims(self) -> list[Claim]:
        goodput, sent = self.goodput, self.sent
        most = max(LOADS)
        served = 1.0 / (1.0 + FLEET.refusal_cost)  # K = 2: a refusal for each
        return [
            Claim(THROTTLING, "K = 2, ten times too much: 'one request for each' is "
                  "refused, so arrivals are twice what is served",
                  sent[2.0][most] / goodput[BOTH][most], 1.8, 2.2, "2",
                  "10 % of chance"),
            Claim(THROTTLING, "K = 1.1: one 'rejected by the backend for every 10', "
                  "arrivals are 1.1 times the capacity",
                  sent[1.1][most], 1.0, 1.25, "1.1", "10 % of chance"),
            Claim(CONCLUSIONS, "'2x or even 10x': served of the capacity at 10x, with"
                  " admission and throttling",
                  goodput[BOTH][most], round(served - 0.03, 3), 1.0, "1",
                  "a refusal for each request takes 1 / 21 of the capacity"),
            Claim(THROTTLING, "without throttling refusals 'add up quickly'; the same"
                  " with admission only", goodput[REFUSES][most], 0.4, 0.65, "",
                  "9 refusals of a twentieth each would leave 0.55"),
            Claim(CONCLUSIONS, "'terrible behavior': the same with neither",
                  goodput[NOTHING][most], 0, 0.1, "", "next to nothing"),
        ]  # fmt: skip


def run(seed: int, quick: bool) -> Overload:
    loads = (0.8, 10.0) if quick else LOADS
    fleet = replace(FLEET, window=10.0) if quick else FLEET
    at_once = replace(fleet, warm_up=20.0)
    ways = {
        NOTHING: replace(at_once, admission=False),
        REFUSES: at_once,
        BOTH: replace(fleet, throttle=2.0),
    }
    runs = {name: _play(way, loads, seed) for name, way in ways.items()}
    throttled = {k: _play(replace(fleet, throttle=k), loads, seed) for k in KS[:-1]}
    throttled[KS[-1]] = runs[BOTH]
    return Overload(
        {
            k: {load: load * one.attempts for load, one in by_load.items()}
            for k, by_load in throttled.items()
        },
        {
            name: {load: load * (1.0 - one.errors) for load, one in by_load.items()}
            for name, by_load in runs.items()
        },
    )


def _play(
    scenario: Scenario, loads: tuple[float, ...], seed: int
) -> dict[float, Result]:
    return {
        load: simulate(
            scenario, "least_loaded", load=load, seed=seed,
            traffic=draw(scenario, load, seed),
        )
        for load in loads
    }  # fmt: skip
