"""The parts of docs/simulator.md: what each plays, its tables, and what it claims."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from benchmarks.simulator import latency
from benchmarks.simulator.runs import Case, Run, Runs, over, spread
from lbclient.sim import SCENARIOS
from lbclient.sim.book import Claim

OURS = latency.OURS
Rows = list[list[str]]
Changes = tuple[tuple[str, float | str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A section of the page. `cases` are by the scenarios that are asked for."""

    titles: tuple[str, ...]
    cases: Callable[[str], Iterable[Case]]
    table: Callable[[Runs, list[str]], Rows]
    claims: Callable[[Runs, str], Iterable[Claim]]
    is_on_page: bool = True  # or its table is another one's


def _p99(run: Run) -> float:
    return run.p99


# --- latency: beside other policies ---------------------------------------------------

SEEDS = "seeds differ by more than the two do"
EJECTED_LATER = "it looks at latency only to eject, which takes some late answers"

# Where ours has a longer p99 than the best of the others by more than 3 %, and why.
# Values are by how much it may be at most.
REASONS: dict[tuple[str, float], tuple[float, str]] = {
    ("S10_sparse", 0.3): (1.15, SEEDS),
    ("S2_diverse, 100 clients of 5 backends", 0.3): (1.15, SEEDS),
    ("S4_heavy", 0.3): (1.15, SEEDS),
    ("gray", 0.3): (1.25, EJECTED_LATER),
    ("gray", 0.5): (1.2, EJECTED_LATER),
    ("gray", 0.7): (1.1, EJECTED_LATER),
    ("on_off", 0.95): (1.06, "the fleet is full in each burst: the oracle fails, too"),
}


def _latency_cases(title: str) -> Iterator[Case]:
    for load in latency.LOADS:
        yield from latency.cases(title, load).values()


def _latency_table(runs: Runs, titles: list[str]) -> Rows:
    cells = [latency.cell(runs, *one) for one in product(titles, latency.LOADS)]
    return [latency.HEAD, *map(latency.row, cells)]


def _latency_claims(runs: Runs, title: str) -> Iterator[Claim]:
    for load in latency.LOADS:
        found = latency.cell(runs, title, load)
        most, reason = REASONS.get((title, load), (latency.NEAR, ""))
        if found.is_full and not reason:
            most, reason = 1e6, "the fleet is full: the oracle fails requests, too"
        yield Claim(
            where="latency",
            says=f"{title} @{load:g}: p99 over that of {found.best}",
            value=round(found.ratio.mean, 3),
            low=0.0,
            high=max(most, latency.NEAR),
            departs=reason if found.ratio.mean > latency.NEAR else "",
        )


# --- long waits ---------------------------------------------------------------------

WAITS: dict[str, Changes] = {
    "all in flight": (("told", "nothing"),),
    "who does not wait, estimated": (),
    "who does not wait, exactly": (("told", "runnable"),),
}
# p99 with the estimate in parts of that without, at most.
WAIT_TARGETS = {
    ("long_waits", 0.5): 1.03,
    ("long_waits", 0.7): 0.9,
    ("long_waits", 0.85): 0.95,
    ("S5_io", 0.7): 1.03,
    ("S2_diverse", 0.85): 1.03,
    ("S4_heavy", 0.5): 1.03,
    ("batches", 0.5): 1.03,
    ("gray", 0.5): 1.05,
}


def _wait_cases(title: str) -> Iterator[tuple[str, Case]]:
    for name, load in WAIT_TARGETS:
        if name == title:
            changes = latency.ALIKE[title]
            for told, more in WAITS.items():
                yield told, Case(title, load, OURS, (), changes + more)


def _wait_table(runs: Runs, titles: list[str]) -> Rows:
    rows = [["scenario@load", *(f"p99, ms: {told}" for told in WAITS)]]
    for title in titles:
        by_load: dict[float, list[str]] = {}
        for _, case in _wait_cases(title):
            said = over(runs.of(case), _p99).said(".0f", 1000.0)
            by_load.setdefault(case.load, []).append(said)
        rows += [[f"{title}@{load:g}", *cells] for load, cells in by_load.items()]
    return rows


def _wait_claims(runs: Runs, title: str) -> Iterator[Claim]:
    cases = [case for _, case in _wait_cases(title)]
    for first in range(0, len(cases), len(WAITS)):
        without, with_it, _ = (runs.of(one) for one in cases[first : first + 3])
        load = cases[first].load
        yield Claim(
            where="waits",
            says=f"{title}@{load:g}: p99 with the estimate over that without",
            value=_ratio(with_it, without),
            low=0.0,
            high=WAIT_TARGETS[title, load],
        )


def _ratio(runs: list[Run], others: list[Run]) -> float:
    """Of p99, seed by seed, in the mean."""
    both = zip(runs, others, strict=True)
    return round(spread(run.p99 / other.p99 for run, other in both).mean, 3)


# --- the queue delay ----------------------------------------------------------------

OFFERED = (0.9, 1.5, 4.0, 10.0)
# In capacities, at least with admission and at most without.
GOODPUT = {0.9: (0.88, 1.0), 1.5: (0.9, 0.05), 4.0: (0.85, 0.05), 10.0: (0.8, 0.05)}


def _queue_cases(title: str) -> Iterator[Case]:
    for load in OFFERED:
        yield Case(title, load, "least_loaded")


def _goodput(runs: Runs, title: str, load: float) -> float:
    made = runs.of(Case(title, load, "least_loaded"))
    return load * (1.0 - over(made, lambda run: run.errors).mean)


def _queue_table(runs: Runs, titles: list[str]) -> Rows:
    rows = [["offered, times the capacity", *(f"{load:g}" for load in OFFERED)]]
    for title in titles:
        goodput = [f"{_goodput(runs, title, load):.2f}" for load in OFFERED]
        rows.append([f"goodput of {title}", *goodput])
    return rows


def _queue_claims(runs: Runs, title: str) -> Iterator[Claim]:
    for load, (least, most) in GOODPUT.items():
        admits = title == "queue_delay"
        yield Claim(
            where="queue",
            says=f"{title}@{load:g}: goodput, in capacities",
            value=round(_goodput(runs, title, load), 3),
            low=least if admits else 0.0,
            high=1.0 if admits else most,
        )


# --- reports that are wrong, late or missing ----------------------------------------

WRONG = tuple(name for name in SCENARIOS if name.startswith("reports_"))
ROBUST = (*WRONG, "rates_late", "one_liar", "three_backends")
ROBUST_SHOWN = ("least_loaded", "prequal", "weighted_round_robin", OURS)


# How much longer p99 may be than where reports are ignored, and why.
MISLED = {
    "reports_wrong": (2.0, "a third of the fleet lies, and has more than it can do"),
}


def _robust_cases(title: str) -> Iterator[Case]:
    for picker in ROBUST_SHOWN:
        [load] = SCENARIOS[title].loads
        changes: Changes = () if title == "three_backends" else latency.SIZE
        yield Case(title, load, picker, (), changes + _lasts(title))


def _lasts(title: str) -> Changes:
    return () if "stop" in title else latency.SHORT


def _robust_table(runs: Runs, titles: list[str]) -> Rows:
    rows = [["scenario@load", *ROBUST_SHOWN]]
    for title in titles:
        cells = []
        for case in _robust_cases(title):
            made = runs.of(case)
            errors = over(made, lambda run: run.errors).mean
            said = over(made, lambda run: run.spread).said(".2f")
            said += ", " + over(made, _p99).said(".0f", 1000.0)
            cells.append(said + (f", {100.0 * errors:.2f} %" if errors >= 5e-5 else ""))
        rows.append([f"{title}@{SCENARIOS[title].loads[0]:g}", *cells])
    return rows


def _robust_claims(runs: Runs, title: str) -> Iterator[Claim]:
    made = {case.picker: runs.of(case) for case in _robust_cases(title)}
    yield Claim(
        where="reports",
        says=f"{title}: errors of ours, %",
        value=round(100.0 * over(made[OURS], lambda run: run.errors).mean, 3),
        low=0.0,
        high=0.1,
    )
    most, reason = MISLED.get(title, (1.05, ""))
    yield Claim(
        where="reports",
        says=f"{title}: p99 over least_loaded's",
        value=_ratio(made[OURS], made["least_loaded"]),
        low=0.0,
        high=most,
        departs=reason,
    )


PARTS: dict[str, Part] = {
    "latency": Part(
        titles=tuple(latency.ALIKE), cases=_latency_cases,
        table=_latency_table, claims=_latency_claims,
    ),
    "waits": Part(
        titles=tuple(dict.fromkeys(name for name, _ in WAIT_TARGETS)),
        cases=lambda title: (case for _, case in _wait_cases(title)),
        table=_wait_table, claims=_wait_claims,
    ),
    "queue": Part(
        titles=("queue_delay", "queue_delay_without"), cases=_queue_cases,
        table=_queue_table, claims=_queue_claims,
    ),
    "reports": Part(
        titles=ROBUST, cases=_robust_cases,
        table=_robust_table, claims=_robust_claims, is_on_page=False,
    ),
}  # fmt: skip
