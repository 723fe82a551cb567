"""One scenario, as processes and in the simulator: do both say the same?

    python -m benchmarks.real_and_simulated               about two and a half minutes
    python -m benchmarks.real_and_simulated --picker round_robin --seconds 10

Eight real backends, each with an emulated processor of two cores, every second one 2.5
times as fast, and four client processes, as in `lbclient demo`; then the same in
virtual time, with the very same requests: who sends what, when, and what it costs.
What a call takes on the way is measured and put into the model. Requests are dear and
few, so that two cores can carry them all.

Exit status 1 if max/mean or p99 are more than 25 % apart. In the simulation chance
decides who begins where, so its figures are means of several runs.
"""

import asyncio
import sys
from array import array
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Any, NamedTuple

import grpc

from benchmarks.harness.figures import table
from benchmarks.harness.measured import Measured
from benchmarks.harness.options import conclude, exit_with, parser_of
from examples.fleet.figures import balance, percentile
from examples.fleet.traffic import Traffic as Requests
from lbclient.core.protocols import PickerFactory
from lbclient.pickers import WeightedRoundRobin, picker_factory
from lbclient.sim import Scenario
from lbclient.sim.simulation import Simulation
from lbclient.sim.traffic import Traffic

# The demo's programs import their neighbours by bare names.
sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "fleet"))
programs: Any = import_module("fleet")
messages: Any = import_module("fleet_pb2")
services: Any = import_module("fleet_pb2_grpc")

PICKERS = (
    "round_robin",
    "least_loaded",
    "weighted_round_robin",
    "weighted_least_loaded",
)
APART = 0.25  # of either figure, at most
SPEEDS = (1.0, 2.5)
BACKENDS, CLIENTS, CORES = 8, 4, 2
LOAD = 0.45  # under round robin the slow half is at 0.79
RATE = 150.0  # requests a second, of all clients
COST = LOAD * CORES * BACKENDS * fmean(SPEEDS) / RATE
SETTLE = 6.0  # seconds, not measured
HEALTH_INTERVAL = 1.0  # a backend reports twice in it
BLACKOUT = 1.0  # of weighted_round_robin: 10 s would outlast what is not measured
SMOOTHING = 1.0  # as examples/fleet/backend.py has it
SEEDS = range(1, 6)  # of the simulation's own chance
TRIPS = 40  # calls that do nothing, to measure what the way takes


class Figures(NamedTuple):
    spread: float  # max/mean utilization
    p50: float
    p99: float
    failed: int


def requests(seed: int, seconds: float) -> Iterator[tuple[float, int, float]]:
    """When, from whom, at what cost: what the client processes draw, too."""
    for client in range(CLIENTS):
        drawn = Requests(RATE / CLIENTS, COST, False, Random(f"{seed}/{client}"))
        at = drawn.gap()
        while at < seconds:
            yield at, client, drawn.cost()
            at += drawn.gap()


def simulated(
    picker: str, seed: int, seconds: float, round_trip: float, chance: int
) -> Figures:
    scenario = Scenario(
        clients=CLIENTS, backends=BACKENDS, subset_size=BACKENDS, cores=CORES,
        speeds=SPEEDS, cost=COST, round_trip=round_trip, full=10_000, timeout=30.0,
        smoothing=SMOOTHING, health_interval=HEALTH_INTERVAL / 2.0, told="runnable",
        warm_up=SETTLE, window=seconds,
    )  # fmt: skip
    times, clients, costs = zip(*sorted(requests(seed, SETTLE + seconds)), strict=True)
    traffic = Traffic(
        array("d", times), array("H", clients), array("d", costs), array("d")
    )
    result = Simulation(scenario, factory_of(picker), traffic, chance, SMOOTHING).run()
    failed = round(result.errors * result.requests)
    return Figures(result.spread, result.p50, result.p99, failed)


def factory_of(picker: str) -> PickerFactory:
    if picker == "weighted_round_robin":
        return partial(WeightedRoundRobin, blackout=BLACKOUT)
    return picker_factory(picker)


def mean(runs: list[Figures]) -> Figures:
    spread, p50, p99, failed = (fmean(column) for column in zip(*runs, strict=True))
    return Figures(spread, p50, p99, round(failed))


async def real(fleet: Any, picker: str, seed: int, seconds: float) -> Figures:
    fleet.begin([order(fleet, picker, seed, client) for client in range(CLIENTS)])
    clock = asyncio.get_running_loop().time
    await asyncio.sleep(SETTLE)
    before, since = await fleet.usages(), clock()
    await asyncio.sleep(seconds)
    after = await fleet.usages()
    calls = await fleet.end()
    lasted = sorted(c.ended_at - c.sent_at for c in calls if c.sent_at >= since)
    failed = sum(call.code != "OK" for call in calls) + fleet.skipped
    return Figures(
        balance([before, after]).max_over_mean or 1.0,
        percentile(lasted, 0.50) or 0.0,
        percentile(lasted, 0.99) or 0.0,
        failed,
    )


def order(fleet: Any, picker: str, seed: int, client: int) -> dict[str, Any]:
    return {
        "target": fleet.target,
        "picker": picker,
        "blackout": BLACKOUT,
        "health_interval": HEALTH_INTERVAL,
        "subset_size": BACKENDS,
        "rate": RATE / CLIENTS,
        "mean_cost": COST,
        "heavy_tail": False,
        "seed": f"{seed}/{client}",
    }


async def trip(address: str) -> float:
    """Seconds that a call takes besides its work, on a connection that is there."""
    clock = asyncio.get_running_loop().time
    lasted = []
    direct = [("grpc.enable_http_proxy", 0)]
    async with grpc.aio.insecure_channel(address, direct) as channel:
        stub: Any = services.FleetStub(channel)
        for _ in range(TRIPS):
            began = clock()
            await stub.Work(messages.WorkRequest(cost=0.0), timeout=5.0)
            lasted.append(clock() - began)
    return median(lasted)


async def compare(
    pickers: list[str], seed: int, seconds: float
) -> tuple[float, dict[str, tuple[Figures, Figures]]]:
    """Real and simulated figures by picker, and what the way takes."""
    speeds = [SPEEDS[number % len(SPEEDS)] for number in range(BACKENDS)]
    measured = {}
    async with programs.Fleet(speeds, CLIENTS, CORES, Random()) as fleet:
        await fleet.start()
        round_trip = median([await trip(backend.address) for backend in fleet.backends])
        for picker in pickers:
            measured[picker] = await real(fleet, picker, seed, seconds)
    return round_trip, {
        picker: (
            figures,
            mean([simulated(picker, seed, seconds, round_trip, one) for one in SEEDS]),
        )
        for picker, figures in measured.items()
    }


def ratios(there: Figures, here: Figures) -> tuple[float, float]:
    return there.spread / here.spread, there.p99 / here.p99


def report(found: dict[str, tuple[Figures, Figures]]) -> str:
    head = ["picker", "max/mean", "simulated", "ratio", "p50 ms", "simulated",
            "p99 ms", "simulated", "ratio", "failed"]  # fmt: skip
    rows = [head]
    for picker, (there, here) in found.items():
        spread, p99 = ratios(there, here)
        rows.append(
            [
                picker,
                f"{there.spread:.3f}",
                f"{here.spread:.3f}",
                f"{spread:.2f}",
                f"{there.p50 * 1000:.0f}",
                f"{here.p50 * 1000:.0f}",
                f"{there.p99 * 1000:.0f}",
                f"{here.p99 * 1000:.0f}",
                f"{p99:.2f}",
                f"{there.failed}",
            ]
        )
    return table(rows)


def apart(found: dict[str, tuple[Figures, Figures]]) -> list[str]:
    """The pickers of which the figures differ by too much."""
    return [
        picker
        for picker, both in found.items()
        if not all(1.0 - APART <= ratio <= 1.0 + APART for ratio in ratios(*both))
    ]


def main() -> int:
    parser = parser_of("real_and_simulated", __doc__)
    add = parser.add_argument
    add("--picker", default=",".join(PICKERS), metavar="A,B", help="default: four")
    add("--seconds", type=float, default=24.0, help="measured (default: 24)")
    add("--seed", type=int, default=1, help="of the requests (default: 1)")
    given = parser.parse_args()
    pickers = given.picker.split(",")
    round_trip, found = asyncio.run(compare(pickers, given.seed, given.seconds))
    print(f"{RATE:g} requests/s of {COST * 1000:.0f} ms, load {LOAD:g}; ", end="")
    print(f"a call takes {round_trip * 1000:.1f} ms besides its work")
    print(report(found))
    facts = {
        picker: {"real": there._asdict(), "simulated": here._asdict()}
        for picker, (there, here) in found.items()
    }
    everything = {"seed": given.seed, "round_trip": round_trip, "pickers": facts}
    told = []
    for picker, both in found.items():
        spread, p99 = ratios(*both)
        name = f"{picker}, real / simulated"
        told += [
            Measured(name=f"{name}: utilization, max/mean", value=spread),
            Measured(name=f"{name}: p99", value=p99),
        ]
    return conclude(given, everything, apart(found), measured=told)


if __name__ == "__main__":
    exit_with(main)
