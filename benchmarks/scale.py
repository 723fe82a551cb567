"""Large fleets, without a network: connections, churn, and calls by simulation.

    python -m benchmarks.scale            about 6 minutes
    python -m benchmarks.scale --quick    about a minute

*Connections*: as many clients as backends, 100, 1,000 and 10,000, in subsets of 20, by
lbclient's rule and others: connections of the busiest backend over the mean; those
that clients open when 1 % more backends come, over the least that leaves all even; and
the CPU to choose a subset, for each client.

*Health*: reports that a backend sends a second where clients are as many as backends,
by the calls a second of each client, over an hour. They do not depend on how many
clients and backends there are.

*Calls*: up to 1,000 clients with 1,000 backends of two speeds, load 0.7, by the rule
`rocksteadier`: utilization of the busiest backend over the mean, and p99. Pickers have
the same requests. What does not grow with the fleet is 1 from size to size.
"""

import gc
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from time import process_time
from typing import Any

from benchmarks.harness.measured import Measured
from benchmarks.harness.options import conclude, exit_with, parser_of
from benchmarks.harness.plays import played
from lbclient.config import ChannelConfig
from lbclient.core.backends.demand import ReportInterval
from lbclient.core.protocols import PickerFactory
from lbclient.pickers import WeightedRoundRobin, picker_factory
from lbclient.sim import Scenario
from lbclient.sim.simulation import Simulation
from lbclient.sim.traffic import draw
from lbclient.subsets import order
from lbclient.subsets.properties import balance, choose, churn, ideal_churn

OURS, SIZE, SHARE = "rocksteadier", 20, 100
RULES = (OURS, "ringsteady", "random")
SLOW_RULES = (*RULES, "deterministic", "rendezvous")  # they sort or shuffle a list
MOST_OF_SLOW = 1_000
FLEETS = (100, 1_000, 10_000)

PICKERS: dict[str, PickerFactory] = {
    "round_robin": picker_factory("round_robin"),
    "weighted_round_robin": partial(WeightedRoundRobin, blackout=1.0),
    "weighted_least_loaded": picker_factory("weighted_least_loaded"),
}
CALLING, QUICK_CALLING = (10, 100, 1_000), (100, 1_000)
LOAD, SEED = 0.7, 1
INTERVAL = ChannelConfig().health_interval
CALL_RATES = (0.001, 0.1, 1.0, 10.0, 1_000.0)  # a second
WATCHED = 3_600  # seconds
FIELD = Scenario(
    subset=OURS,
    subset_size=SIZE,
    speeds=(1.0, 2.5),
    cost=0.1,
    warm_up=15.0,
    window=15.0,
)
QUICK = replace(FIELD, warm_up=4.0, window=4.0)


@dataclass(frozen=True, slots=True)
class Connections:
    rule: str
    fleet: int
    max_over_mean: float
    opened_over_ideal: float
    microseconds: float  # of CPU, for each client


def connections(rule: str, fleet: int) -> Connections:
    began = process_time()
    algorithm = partial(order, rule)
    before = choose(algorithm, fleet, fleet, SIZE)
    took = process_time() - began
    resized = fleet + fleet // SHARE
    opened = churn(before, choose(algorithm, fleet, resized, SIZE)).mean
    return Connections(
        rule,
        fleet,
        balance(before, fleet).max_over_mean,
        opened / ideal_churn(fleet, resized, SIZE),
        1e6 * took / fleet,
    )


def reports(rate: float) -> float:
    """Health reports a second of one backend, whose clients make so many calls each."""
    report_interval, chance = ReportInterval(INTERVAL / 2, 0.0), Random(SEED)
    started, next_at, count = 0, 0.0, 0.0
    for second in range(WATCHED):
        while next_at <= second:
            started += 1
            next_at += chance.expovariate(rate / SIZE)
        report_interval.observe(started, 0, second)
        count += 1.0 / report_interval.every
    return SIZE * count / WATCHED  # as many clients have it in their subsets


@dataclass(frozen=True, slots=True)
class Calls:
    picker: str
    fleet: int
    max_over_mean: float
    p99: float
    errors: float
    requests: int


def calls(picker: str, fleet: int, field: Scenario) -> Calls:
    scenario = replace(field, clients=fleet, backends=fleet)
    traffic = draw(scenario, LOAD, SEED)
    gc.collect()
    gc.disable()
    run = Simulation(scenario, PICKERS[picker], traffic, SEED, None).run()
    gc.enable()
    return Calls(picker, fleet, run.spread, run.p99, run.errors, run.requests)


def exact(name: str, value: float, **more: Any) -> Measured:
    """A figure that is the same in every run."""
    return Measured(name=name, value=value, spread=(value, value), **more)


def told(seen: list[Connections], called: list[Calls]) -> list[Measured]:
    said = [
        exact(
            f"{rate:g} calls/s of each client: reports of a backend", count, unit="/s"
        )
        for rate, count in ((rate, reports(rate)) for rate in CALL_RATES)
    ]
    for one in seen:
        name = f"{one.fleet:,} x {one.fleet:,}, {one.rule}"
        said += [
            exact(f"{name}: connections, max/mean", one.max_over_mean),
            exact(f"{name}: opened for 1 % more, over ideal", one.opened_over_ideal),
            Measured(name=f"{name}: to choose", value=one.microseconds, unit="us"),
        ]
    of = {(one.picker, one.fleet): one for one in called}
    for (picker, fleet), run in of.items():
        name = f"{fleet:,} x {fleet:,}, calls, {picker}"
        said.append(exact(f"{name}: utilization, max/mean", run.max_over_mean))
        if picker != "round_robin":
            ratio = run.p99 / of["round_robin", fleet].p99
            said.append(exact(f"{name} / round_robin: p99", ratio, better="less"))
    least, most = min(of, key=_fleet)[1], max(of, key=_fleet)[1]
    for picker in PICKERS:
        ratio = of[picker, most].p99 / of[picker, least].p99
        said.append(exact(f"calls, {picker}: p99 at {most:,} / at {least:,}", ratio))
    return said


def _fleet(key: tuple[str, int]) -> int:
    return key[1]


def main() -> int:
    given = parser_of("scale", __doc__, quick="fewer rules, shorter").parse_args()
    seen = []
    for fleet in FLEETS:
        is_slow = fleet <= MOST_OF_SLOW and not given.quick
        for rule in SLOW_RULES if is_slow else RULES:
            seen.append(connections(rule, fleet))
            print(seen[-1], flush=True)
    field = QUICK if given.quick else FIELD
    fleets = QUICK_CALLING if given.quick else CALLING
    games = [(picker, fleet, field) for fleet in fleets for picker in PICKERS]
    called = []
    for one in played(calls, games):
        called.append(one)
        print(one, flush=True)
    found = {"connections": seen, "calls": called}
    return conclude(given, found, None, measured=told(seen, called))


if __name__ == "__main__":
    exit_with(main)
