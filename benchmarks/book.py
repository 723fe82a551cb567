"""The figures of the SRE book (chapters 20 and 21) and of CACM 2023, recomputed.

    python -m benchmarks.book            a minute
    python -m benchmarks.book --quick    some seconds: smaller fleets, fewer draws

The experiments of `lbclient sim book`: of each, how many of the text's claims hold, and
how many depart for a reason that is known, see docs/book.md. Exit status 1 if a claim
fails.
"""

from collections import Counter
from typing import Any

from benchmarks.harness.figures import table
from benchmarks.harness.measured import Measured
from benchmarks.harness.options import conclude, exit_with, parser_of
from lbclient.sim.book import EXPERIMENTS, Finding

SEED = 1


def main() -> int:
    quick = "smaller fleets and fewer draws"
    given = parser_of("book", __doc__, quick=quick).parse_args()
    found: dict[str, Any] = {}
    told, failed = [], []
    for name, run in EXPERIMENTS.items():
        claims = run(SEED, given.quick).claims()
        counts = Counter(claim.finding for claim in claims)
        found[name] = {finding: counts[finding] for finding in Finding}
        failed += [f"{name}: {one.says}" for one in claims if not one.holds]
        share = counts[Finding.HOLDS] / len(claims)
        both = (share, share)
        told.append(
            Measured(name=f"{name}: claims that hold", value=share, spread=both)
        )
    rows = [[name, *map(str, counts.values())] for name, counts in found.items()]
    print(table([["experiment", *Finding], *rows]))
    return conclude(given, found, failed, measured=told)


if __name__ == "__main__":
    exit_with(main)
