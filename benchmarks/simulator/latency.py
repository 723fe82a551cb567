"""Ours beside other policies, at five loads of each scenario: who has the least p99."""

from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.simulator.runs import ORACLE, Case, Runs, Spread, over, spread
from lbclient.sim import SCENARIOS

OURS = "weighted_least_loaded"
OTHERS = (
    "round_robin",
    "least_loaded",
    "weighted_round_robin",
    "prequal",
    "p2c",
    "peak_ewma",
)
LOADS = (0.3, 0.5, 0.7, 0.85, 0.95)
NEAR = 1.03  # of the least p99 among `OTHERS`: so near is as good

# Fields that make a run last a second or so; each scenario keeps what it is about.
SIZE = (("clients", 20), ("backends", 20), ("subset_size", 10))
SHORT = (("warm_up", 8.0), ("window", 10.0))
ALIKE: dict[str, tuple[tuple[str, float], ...]] = {
    "S1_homog": SIZE + SHORT,
    "S1_homog, one core": (*SIZE, ("warm_up", 8.0), ("window", 30.0), ("cores", 1)),
    "S2_diverse": SIZE + SHORT,
    "S2_diverse, 100 clients of 5 backends": (
        ("clients", 100), ("backends", 5), ("subset_size", 5),
        ("warm_up", 8.0), ("window", 30.0),
    ),
    "S3_antag": SIZE + SHORT,
    "S4_heavy": (*SIZE, ("warm_up", 8.0), ("window", 20.0)),
    "S5_io": SIZE + SHORT,
    "S6_unequal": SIZE + SHORT,
    "S10_sparse": (("clients", 150), ("backends", 20), ("subset_size", 10)),
    "sizes": (("warm_up", 8.0), ("window", 6.0)),
    "batches": SIZE + SHORT,
    "gray": SHORT,
    "partial": SHORT,
    "two_methods": (("warm_up", 10.0), ("window", 20.0)),
    "far": SHORT,
    "on_off": SHORT,
    "load_step": (("warm_up", 10.0), ("window", 10.0)),
    "long_waits": (("warm_up", 20.0), ("window", 10.0)),
    "leavers": (("warm_up", 8.0), ("window", 10.0)),
    "crashes": (("warm_up", 8.0), ("window", 12.0)),
    "scale_up": SHORT,
}  # fmt: skip


def cases(title: str, load: float) -> dict[str, Case]:
    """By picker."""
    name = title.partition(",")[0]
    pickers = (OURS, *OTHERS, ORACLE)
    return {each: Case(name, load, each, (), ALIKE[title]) for each in pickers}


class Cell(NamedTuple):
    """One scenario at one load."""

    title: str
    load: float
    p99: dict[str, Spread]  # by picker; seconds
    p50: dict[str, Spread]
    errors: dict[str, float]
    best: str  # of the others by p99
    ratio: Spread  # of ours to that, seed by seed

    @property
    def is_near(self) -> bool:
        return self.ratio.mean <= NEAR

    @property
    def is_full(self) -> bool:
        """Whether even the oracle fails requests: p99 is then their timeout's."""
        return self.errors[ORACLE] >= 0.005


def cell(runs: Runs, title: str, load: float) -> Cell:
    made = {name: runs.of(case) for name, case in cases(title, load).items()}
    p99 = {name: over(found, lambda run: run.p99) for name, found in made.items()}
    best = min(OTHERS, key=lambda name: p99[name].mean)
    both = zip(made[OURS], made[best], strict=True)
    return Cell(
        title,
        load,
        p99,
        {name: over(found, lambda run: run.p50) for name, found in made.items()},
        {
            name: over(found, lambda run: run.errors).mean
            for name, found in made.items()
        },
        best,
        spread(ours.p99 / other.p99 for ours, other in both),
    )


HEAD = ["scenario@load", *OTHERS, OURS, ORACLE, "ours / the best of the others"]


def row(found: Cell) -> list[str]:
    def said(name: str) -> str:
        errors = found.errors[name]
        failed = f", {errors:.2%}".replace("%", " %") if errors >= 5e-5 else ""
        return found.p99[name].said(".0f", 1000.0) + failed

    ratio = found.ratio.said(".2f")
    if not found.is_near:
        ratio = f"**{ratio}** ({found.best})"
    pickers = (*OTHERS, OURS, ORACLE)
    return [f"{found.title} @{found.load:g}", *map(said, pickers), ratio]


def titles(only: str) -> Iterator[str]:
    """Whose name begins like that, by commas; all without."""
    wanted = tuple(only.split(",")) if only else ("",)
    for title in ALIKE:
        if title.startswith(wanted):
            assert title.partition(",")[0] in SCENARIOS
            yield title
