"""What docs/simulator.md claims, run again, each with a verdict.

    python -m benchmarks.simulator                         all, some two hours of a core
    python -m benchmarks.simulator latency --only far,S1   what begins like that
    python -m benchmarks.simulator --runs runs.jsonl --for 100
    python -m benchmarks.simulator targets objective       two other benchmarks
    python -m benchmarks.simulator speed                   how fast the simulator is

Runs are kept in a file, if one is given, and not made twice: so it may be stopped, by
Ctrl-C or after so many seconds, and called again as long as the code stays the same.
Then it has exit status 3. --page writes the tables of what is played into the page.
Cells are means over seeds, with the deviation of a single one; exit status 1 if a claim
fails.
"""

from collections import Counter
from collections.abc import Iterator
from math import inf
from pathlib import Path
from statistics import fmean

from benchmarks import objective, policies
from benchmarks.harness.figures import table
from benchmarks.harness.options import conclude, exit_with, parser_of
from benchmarks.simulator import speed
from benchmarks.simulator.parts import PARTS, Part, Rows
from benchmarks.simulator.runs import OutOfTime, Runs
from lbclient.config import tables
from lbclient.sim.book import Claim

OTHERS = ("targets", "objective", "speed")
BEGIN = "<!-- {}: `python -m benchmarks.simulator` writes this table -->\n"
END = "<!-- end of the table -->\n"
MORE = 3  # the exit status if there is more to play


def main() -> int:
    parser = parser_of("simulator", __doc__)
    add = parser.add_argument
    names = (*PARTS, *OTHERS)
    said = f"of {', '.join(names)}; default: all but speed"
    add("part", nargs="*", choices=(*names, []), metavar="part", help=said)
    add("--only", default="", metavar="A,B", help="scenarios whose names begin so")
    add("--seeds", default="1,2,3", metavar="N,O", help="default: 1,2,3")
    add("--runs", type=Path, metavar="FILE", help="keep runs in FILE")
    said = "stop after so many; wants --runs, to go on with"
    add("--for", type=float, metavar="SECONDS", dest="seconds", help=said)
    add("--page", type=Path, metavar="FILE", help="write the tables into FILE")
    given = parser.parse_args()
    if given.seconds is not None and given.runs is None:
        parser.error("--for wants --runs, else what was played is lost")
    if given.part == ["speed"]:
        speed.main()
        return 0
    seeds = [int(seed) for seed in given.seeds.split(",")]
    runs = Runs(given.runs, seeds, inf if given.seconds is None else given.seconds)
    wanted = given.part or [*PARTS, "targets", "objective"]
    claims: list[Claim] = []
    try:
        for name in wanted:
            if name in PARTS:
                claims += _play(name, PARTS[name], runs, given.only, given.page)
    except OutOfTime:
        print("there is more to play: call again with the same --runs")
        return MORE
    for claim in claims:
        why = f": {claim.departs}" if claim.departs else ""
        print(f"{claim.finding:7}  {claim.says}: {claim.ours} ({claim.within}){why}")
    counts = Counter(claim.finding for claim in claims)
    if counts:
        print(", ".join(f"{count} {finding}" for finding, count in counts.items()))
    missed = [claim.says for claim in claims if not claim.holds]
    if "targets" in wanted:
        file = Path(f"{given.runs or 'policies-runs'}.targets")
        missed += _targets(policies.Runs(file, seeds))
    if "objective" in wanted:
        kept = None if given.runs is None else f"{given.runs}.objective"
        missed += objective.missed(objective.play(objective.Cells(kept), seeds))
    found = [{**vars_of(claim), "finding": claim.finding} for claim in claims]
    return conclude(given, found, missed)


def vars_of(claim: Claim) -> dict[str, object]:
    return {name: getattr(claim, name) for name in ("where", "says", "value", "high")}


def _play(
    name: str, part: Part, runs: Runs, only: str, page: Path | None
) -> Iterator[Claim]:
    titles = [one for one in part.titles if one.startswith(tuple(only.split(",")))]
    for title in titles:
        runs.make(part.cases(title))
    if not titles:
        return
    rows = part.table(runs, titles)
    print(f"{name}\n{table(rows)}", flush=True)
    if page is not None and part.is_on_page:
        page.write_text(with_table(page.read_text(), name, rows))
    for title in titles:
        yield from part.claims(runs, title)


def _targets(runs: policies.Runs) -> Iterator[str]:
    for target in policies.targets():
        if fmean(policies.judge(target, runs)) > target.most:
            yield f"{target.scenario}: {target.what}"


def with_table(page: str, name: str, rows: Rows) -> str:
    """The page with another table of that name.

    Raises ValueError if the page has no place for it.
    """
    head, *body = (f"| {' | '.join(row)} |\n" for row in rows)
    line = "|" + "---|" * len(rows[0]) + "\n"
    text = "".join((head, line, *body))
    return tables.with_table(page, BEGIN.format(name), text, END)


if __name__ == "__main__":
    exit_with(main)
