"""Whether the pickers do what they are there for: targets, over three seeds.

    python -m benchmarks.policies                      all, about an hour
    python -m benchmarks.policies S2 S10 --seed 1,2    what begins like that

Scenarios are those of `lbclient sim`. A figure is the mean over seeds, in brackets the
worst seed's. Runs are kept in a file and not made twice, so it may be stopped and
called again: --runs FILE, to be deleted when a picker has changed.
"""

import gc
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from benchmarks.harness.measured import Measured
from benchmarks.harness.options import conclude, exit_with, parser_of
from lbclient.pickers import PICKERS, WITHOUT_SLOW_START, picker_factory
from lbclient.sim import SCENARIOS, SMOOTHING, Result
from lbclient.sim.result import variation
from lbclient.sim.simulation import Simulation
from lbclient.sim.traffic import Traffic, draw

OURS, A58, PREQUAL = "weighted_least_loaded", "weighted_round_robin", "prequal"
NEAR, BLOCK, SLOWED_AT = 0.1, 5, 20  # of S8: a share, and seconds

# max/mean utilization of `OURS` and `A58`, at most.
SPREADS = {
    (OURS, "S0_start"): 1.06,
    (OURS, "S1_homog"): 1.015,
    (OURS, "S2_diverse"): 1.015,
    (OURS, "S2_few"): 1.015,
    (OURS, "S3_antag"): 1.015,
    (OURS, "S4_heavy"): 1.04,
    (OURS, "S5_io"): 1.02,
    (OURS, "S6_unequal"): 1.01,
    (A58, "S2_diverse"): 1.07,
    (A58, "S5_io"): 1.06,
}
# p99 of `OURS` in parts of A58's.
TAILS = {
    ("S1_homog", 0.7): 0.87,
    ("S2_diverse", 0.7): 0.85,
    ("S2_diverse", 0.85): 0.60,
    ("S2_diverse", 0.95): 0.15,
}
BUSY = tuple(name for name in SCENARIOS if name[0] == "S" and name != "S10_sparse")
RAMPING = tuple(name for name in PICKERS if PICKERS[name] not in WITHOUT_SLOW_START)
# Seconds after backends join, and p99 of `RAMPING` in parts of that without slow start;
# that of a second varies by so much from seed to seed.
AFTER_JOINING = {2: 1.1, 10: 1.3}
# If they are cold, none at 10 s: without slow start they fail many times as many, which
# then wait nowhere. Of all seconds until then p99 and errors are not to be more.
SECONDS, COLD = 11, 1.05
GAINS, SMOOTHINGS = (0.1, 0.3, 1.0, 2.0), (1.0, 2.0, 5.0, 10.0)


class Run(NamedTuple):
    """What a target looks at, of one run."""

    spread: float
    errors: float
    p99: float
    sinkhole: float
    probes: float
    wobble: float  # coefficient of variation in time, of the worst backend's 5 s
    back: float  # seconds from the step of S8 until all are near the mean
    tails: list[float]  # p99 of each second


def digest(result: Result) -> Run:
    backends = range(len(result.utilization))
    wobble = max(variation(result, backend, BLOCK) for backend in backends)
    return Run(
        result.spread,
        result.errors,
        result.p99,
        result.sinkhole,
        result.probes,
        wobble,
        back(result),
        result.tails,
    )


def back(result: Result) -> float:
    """From when on everybody's utilization, over 5 s, is within 10 % of the mean."""
    after = result.seconds[SLOWED_AT:]
    for second in range(len(after) - BLOCK):
        rows = after[second : second + BLOCK]
        each = [fmean(column) for column in zip(*rows, strict=True)]
        mean = fmean(each)
        if max(abs(one - mean) for one in each) <= NEAR * mean:
            return float(second)
    return float(len(after))


class Runs:
    """Makes runs, and remembers them in a file of a line each."""

    def __init__(self, file: Path, seeds: list[int]) -> None:
        self._file = file
        self._seeds = seeds
        self._known: dict[str, Run] = {}
        self._drawn: tuple[object, Traffic] | None = None
        if file.exists():
            for line in file.read_text(encoding="utf-8").splitlines():
                key, *values = json.loads(line)
                self._known[key] = Run(*values)

    def of(
        self,
        name: str,
        load: float,
        picker: str,
        smoothing: float = 0.0,
        **options: float,
    ) -> list[Run]:
        """One for each seed. `smoothing` 0.0: as `lbclient sim` does it."""
        return [
            self._one(name, load, picker, seed, smoothing, options)
            for seed in self._seeds
        ]

    def _one(
        self,
        name: str,
        load: float,
        picker: str,
        seed: int,
        smoothing: float,
        options: dict[str, float],
    ) -> Run:
        key = f"{name} {load} {picker} {seed} {smoothing} {sorted(options.items())}"
        if key in self._known:
            return self._known[key]
        scenario = SCENARIOS[name]
        factory = picker_factory(picker)
        if options:
            factory = partial(PICKERS[picker], **options)
        smooth = SMOOTHING.get(picker, scenario.smoothing)
        traffic = self._draw(name, load, seed)
        gc.collect()
        gc.disable()
        simulation = Simulation(scenario, factory, traffic, seed, smoothing or smooth)
        run = self._known[key] = digest(simulation.run())
        gc.enable()
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps([key, *run]) + "\n")
        return run

    def _draw(self, name: str, load: float, seed: int) -> Traffic:
        key = name, load, seed
        if self._drawn is None or self._drawn[0] != key:
            self._drawn = key, draw(SCENARIOS[name], load, seed)
        return self._drawn[1]


class Target(NamedTuple):
    """`figures` are one for each seed; their mean may be `most` at most."""

    scenario: str
    what: str
    most: float
    figures: Callable[[Runs], list[float]]


def field(name: str, load: float, what: str, most: float, picker: str = OURS) -> Target:
    attribute = {"max/mean": "spread", "sinkhole's share": "sinkhole"}.get(what, what)
    return Target(
        f"{name}@{load:g}",
        f"{what} of {picker}",
        most,
        lambda runs: [getattr(run, attribute) for run in runs.of(name, load, picker)],
    )


def tail(name: str, load: float, other: str, most: float) -> Target:
    def figures(runs: Runs) -> list[float]:
        both = zip(runs.of(name, load, OURS), runs.of(name, load, other), strict=True)
        return [ours.p99 / others.p99 for ours, others in both]

    return Target(f"{name}@{load:g}", f"p99 of {OURS} / {other}", most, figures)


def newcomers(name: str, load: float, picker: str, second: int) -> Target:
    """Slow start strands no capacity."""

    def figures(runs: Runs) -> list[float]:
        with_it = runs.of(name, load, picker)
        without = runs.of(name, load, picker, slow_start=0.0)
        return [
            one.tails[second] / other.tails[second]
            for one, other in zip(with_it, without, strict=True)
        ]

    what = f"p99 of {picker} at {second} s / without slow start"
    return Target(f"{name}@{load:g}", what, AFTER_JOINING[second], figures)


def wobble(gain: float, smoothing: float) -> Target:
    """No oscillation: of the backend whose utilization varies most."""
    return Target(
        "S2_diverse@0.85",
        f"CV in time, gain {gain:g}, reports over {smoothing:g} s",
        0.06,
        lambda runs: [
            run.wobble
            for run in runs.of("S2_diverse", 0.85, OURS, smoothing, gain=gain)
        ],
    )


def cold_newcomers(name: str, load: float, picker: str) -> Iterator[Target]:
    """Slow start is worth it where it is meant for."""

    def tails(runs: Runs) -> list[float]:
        return [
            fmean(one.tails[:SECONDS]) / fmean(other.tails[:SECONDS])
            for one, other in both(runs)
        ]

    def errors(runs: Runs) -> list[float]:
        return [one.errors / other.errors for one, other in both(runs)]

    def both(runs: Runs) -> Iterator[tuple[Run, Run]]:
        without = runs.of(name, load, picker, slow_start=0.0)
        return zip(runs.of(name, load, picker), without, strict=True)

    yield newcomers(name, load, picker, 2)
    what = f"mean p99 of {picker} in {SECONDS} s / without slow start"
    yield Target(f"{name}@{load:g}", what, COLD, tails)
    what = f"errors of {picker} / without slow start"
    yield Target(f"{name}@{load:g}", what, COLD, errors)


def targets() -> Iterator[Target]:
    for name in BUSY:
        for load in SCENARIOS[name].loads:
            yield from busy(name, load)
    yield field("S10_sparse", 0.7, "errors", 0.001)
    yield tail("S10_sparse", 0.7, PREQUAL, 1.1)
    yield field("S10_sparse", 0.7, "probes", 1.0)
    for name in ("reports_wrong", "reports_high", "one_liar"):
        yield field(name, 0.7, "errors", 0.001)
        yield tail(name, 0.7, "least_loaded", 2.0)
    for picker in RAMPING:
        for second in AFTER_JOINING:
            yield newcomers("scale_up", 0.864, picker, second)
        yield from cold_newcomers("scale_up_cold", 0.864, picker)
    for gain in GAINS:
        for smoothing in SMOOTHINGS:
            yield wobble(gain, smoothing)


def busy(name: str, load: float) -> Iterator[Target]:
    for (picker, where), most in SPREADS.items():
        if where == name:
            yield field(name, load, "max/mean", most, picker)
    if (name, load) in TAILS:
        yield tail(name, load, A58, TAILS[name, load])
    yield tail(name, load, PREQUAL, 1.0)
    yield field(name, load, "probes", 0.05)
    match name:
        case "S0_start" | "S6_unequal":
            yield field(name, load, "errors", 0.0)
        case "S7_sinkhole":
            yield field(name, load, "errors", 0.001)
            yield field(name, load, "sinkhole's share", 0.1)
        case "S8_step":
            yield field(name, load, "back", 3.0)


def judge(target: Target, runs: Runs) -> list[float]:
    """Prints the verdict, and returns the figure of each seed."""
    figures = target.figures(runs)
    print(
        f"{'holds ' if fmean(figures) <= target.most else 'MISSED'}  "
        f"{target.scenario:16} {fmean(figures):7.4f} <= {target.most:<6g} "
        f"({max(figures):.4f})  {target.what}",
        flush=True,
    )
    return figures


def main() -> int:
    parser = parser_of("policies", __doc__)
    parser.add_argument("scenario", nargs="*", help="how its name begins")
    parser.add_argument("--seed", default="1,2,3", metavar="N,O")
    parser.add_argument("--runs", type=Path, default=Path("policies-runs.jsonl"))
    given = parser.parse_args()
    runs = Runs(given.runs, [int(seed) for seed in given.seed.split(",")])
    found = []
    for target in targets():
        if given.scenario and not target.scenario.startswith(tuple(given.scenario)):
            continue
        figures = judge(target, runs)
        found.append((target.scenario, target.what, target.most, figures))
    told = [
        Measured(
            name=f"{scenario}: {what}",
            value=fmean(figures),
            spread=(min(figures), max(figures)),
            better="less",
            goal=most,
        )
        for scenario, what, most, figures in found
    ]
    return conclude(given, found, None, measured=told)


if __name__ == "__main__":
    exit_with(main)
