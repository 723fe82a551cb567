"""Runs of the simulator: made once, kept in a file, and cells of several seeds."""

import gc
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from time import monotonic
from typing import NamedTuple

from lbclient.core.protocols import PickerFactory
from lbclient.pickers import PICKERS, picker_factory
from lbclient.sim import SCENARIOS, SMOOTHING, Scenario
from lbclient.sim.oracle import oracle
from lbclient.sim.simulation import Simulation
from lbclient.sim.traffic import Traffic, draw

ORACLE = "oracle"


class Run(NamedTuple):
    """Of one seed; latencies in seconds, shares from 0 to 1."""

    p50: float
    p99: float
    spread: float
    errors: float
    busiest: float  # utilization
    ill: float  # fair shares of those that are not well
    probes: float  # a request
    attempts: float = 1.0  # likewise


class Case(NamedTuple):
    """What is played for each seed. `options` are the picker's, `changes` are fields of
    the scenario."""

    name: str
    load: float
    picker: str
    options: tuple[tuple[str, float], ...] = ()
    changes: tuple[tuple[str, float | str], ...] = ()

    @property
    def scenario(self) -> Scenario:
        return replace(SCENARIOS[self.name], **dict(self.changes))  # type: ignore[arg-type]

    def factory(self) -> PickerFactory:
        if self.picker == ORACLE:
            return oracle()
        if self.options:
            return partial(PICKERS[self.picker], **dict(self.options))
        return picker_factory(self.picker)


class OutOfTime(Exception):
    """No run begins any more; those that are made are kept."""


class Runs:
    """Makes runs, and remembers them in a file of a line each, if there is one."""

    def __init__(self, file: Path | None, seeds: Iterable[int], seconds: float) -> None:
        self.seeds = [*seeds]
        self._file = file
        self._until = monotonic() + seconds
        self._known: dict[str, Run] = {}
        self._drawn: tuple[object, Traffic] | None = None
        if file is not None and file.exists():
            for line in file.read_text(encoding="utf-8").splitlines():
                key, *values = json.loads(line)
                self._known[key] = Run(*values)

    def of(self, case: Case) -> list[Run]:
        """One for each seed."""
        return [self._one(case, seed) for seed in self.seeds]

    def make(self, cases: Iterable[Case]) -> None:
        """Seed by seed, so that pickers share their requests."""
        cases = [*cases]
        for seed in self.seeds:
            for case in cases:
                self._one(case, seed)

    def _one(self, case: Case, seed: int) -> Run:
        key = f"{case.name} {case.load:g} {case.picker} {seed}"
        key += "".join(f" {name}={value}" for name, value in case.options)
        key += "".join(f" {name}:{value}" for name, value in case.changes)
        if key in self._known:
            return self._known[key]
        if monotonic() > self._until:
            raise OutOfTime
        scenario = case.scenario
        smoothing = SMOOTHING.get(case.picker, scenario.smoothing)
        traffic = self._draw(case, seed)
        gc.collect()
        gc.disable()
        made = Simulation(scenario, case.factory(), traffic, seed, smoothing).run()
        gc.enable()
        busiest = max(made.utilization)
        run = Run(
            made.p50, made.p99, made.spread, made.errors, busiest, made.sinkhole,
            made.probes, made.attempts,
        )  # fmt: skip
        self._known[key] = run
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, *run]) + "\n")
        return run

    def _draw(self, case: Case, seed: int) -> Traffic:
        key = case.name, case.changes, case.load, seed
        if self._drawn is None or self._drawn[0] != key:
            self._drawn = key, draw(case.scenario, case.load, seed)
        return self._drawn[1]


class Spread(NamedTuple):
    """A mean over seeds, and the deviation of one seed."""

    mean: float
    deviation: float

    def said(self, form: str, scale: float = 1.0) -> str:
        """With the deviation if there is one to see."""
        mean, deviation = (
            f"{self.mean * scale:{form}}",
            f"{self.deviation * scale:{form}}",
        )
        return mean if float(deviation) == 0.0 else f"{mean} ±{deviation}"


def spread(values: Iterable[float]) -> Spread:
    """
    >>> spread([1.0, 2.0, 3.0]).said(".1f")
    '2.0 ±1.0'
    """
    values = [*values]
    return Spread(fmean(values), stdev(values) if len(values) > 1 else 0.0)


def over(runs: list[Run], field: Callable[[Run], float]) -> Spread:
    return spread(field(run) for run in runs)
