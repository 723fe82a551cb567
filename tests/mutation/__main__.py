"""Mutates the modules that decide, and says which mutants no test notices.

    python -m tests.mutation                               all mutants of all modules
    python -m tests.mutation core/retries/retry.py --most 30

A mutant is a module with one change in its syntax tree: another comparison, the other
branch, a number that is one more, a condition that always holds, a result that is
dropped. The module's tests run on it, each mutant in a process of its own, until one
fails. A survivor is code that can be wrong unnoticed: it wants a test, or a reason in
`reasons.toml`. Those with a reason are counted, and the others printed. `--page FILE`
writes the counts into the table of a page.
"""

import argparse
import os
import sys
import time
from pathlib import Path
from random import Random

from tests.mutation.making import Mutant, mutants
from tests.mutation.modules import TESTS
from tests.mutation.reasons import covers, reasons_of
from tests.mutation.running import PACKAGE, ROOT, preload, survivors

BEGIN, END = "<!-- mutants: python -m tests.mutation -->\n", "<!-- end of mutants -->\n"
HEAD = "| module | mutants | noticed | survive with a reason | without |\n"


def try_module(module: str, skipped: int, most: int, seed: int) -> tuple[int, ...]:
    """How many mutants there are, and how many are noticed, survive with a reason, and
    without one."""
    began_at = time.monotonic()
    every = mutants((PACKAGE / module).read_text())
    some = list(every)
    Random(f"{seed} {module}").shuffle(some)
    some = some[skipped : skipped + most]
    left = survivors(module, TESTS[module], some)
    if left is None:
        print(f"{module}: its tests fail without any change")
        return len(every), 0, 0, len(every)
    reasons = reasons_of(module)
    new = [one for one in left if not any(covers(each, one) for each in reasons)]
    counts = len(some), len(some) - len(left), len(left) - len(new), len(new)
    print(
        f"{module}: {counts[1]} of {counts[0]} noticed ({len(every)} in all),"
        f" {counts[2]} survive with a reason, {counts[3]} without;"
        f" {time.monotonic() - began_at:.0f} s"
    )
    for one in sorted(new, key=lambda one: one.line):
        print(f"    {told(one)}")
    if len(some) == len(every):
        for each in reasons:
            if not any(covers(each, one) for one in left):
                print(f"    a reason for nobody: {each}")
    sys.stdout.flush()
    return counts


def told(one: Mutant) -> str:
    what = one.what.splitlines()[0]
    return f"line {one.line}, {one.change} of {what!r}: {one.text}"


def write(page: Path, found: dict[str, tuple[int, ...]]) -> None:
    """Rows of these modules in place of those that were there."""
    before, begin, rest = page.read_text().partition(BEGIN)
    table, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"no place for a table: want {BEGIN!r}, then {END!r}")
    rows = dict[str, list[int]]()
    for line in table.splitlines():
        name, *counts = line.strip("| ").split(" | ")
        if (module := name.strip("`")) in TESTS:
            rows[module] = [int(one) for one in counts]
    rows |= {module: list(counts) for module, counts in found.items()}
    lines = [(f"`{module}`", rows[module]) for module in TESTS if module in rows]
    lines.append(("all", [sum(column) for column in zip(*rows.values(), strict=True)]))
    text = "".join(f"| {name} | {' | '.join(map(str, n))} |\n" for name, n in lines)
    page.write_text(f"{before}{begin}{HEAD}|---|{'---:|' * 4}\n{text}{end}{after}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("modules", nargs="*", help="in lbclient/; all that decide")
    parser.add_argument("--most", type=int, help="mutants of a module, by chance")
    parser.add_argument("--skip", type=int, default=0, help="so many of them first")
    parser.add_argument("--seed", type=int, default=0, help="of that chance")
    parser.add_argument("--page", type=Path, help="has a table of the counts")
    asked = parser.parse_args()
    os.chdir(ROOT)
    preload()
    most = sys.maxsize if asked.most is None else asked.most
    found = {
        one: try_module(one, asked.skip, most, asked.seed)
        for one in asked.modules or TESTS
    }
    if asked.page is not None:
        write(asked.page, found)
    return 1 if any(counts[-1] for counts in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
