"""Runs worlds: `python -m tests.worlds --seed 7 --trace`, or `--minutes 30`.

Of clients, with `--workers` of clients and tasks of several workers, or with
`--servers` of servers.

With one seed it tells the story; `--trace` of everything. With minutes, or a number of
worlds, it runs one seed after the other, shrinks what breaks a promise, and tells that.
"""

import argparse
import gc
import sys
import time
from collections import Counter
from collections.abc import Callable

from tests.worlds.arrivals import arrivals_of
from tests.worlds.either import AnyPlan, broken, run
from tests.worlds.plan import plan_of, workers_of
from tests.worlds.shrinking import Shrinking
from tests.worlds.story import story


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("tests.worlds", description=__doc__)
    parser.add_argument("--seed", type=int, help="one world, or the first of many")
    parser.add_argument("--servers", action="store_true", help="worlds of servers")
    parser.add_argument("--workers", action="store_true", help="tasks with workers")
    parser.add_argument("--trace", action="store_true", help="tell everything")
    parser.add_argument("--shrink", action="store_true", help="make it smaller first")
    parser.add_argument("--minutes", type=float, help="run worlds for so long")
    parser.add_argument("--worlds", type=int, help="run so many")
    return parser.parse_args()


def tell(plan: AnyPlan, shrinks: bool, everything: bool) -> bool:
    """Tells one world's story; whether all promises were kept."""
    if shrinks and (found := broken(run(plan))):
        plan = Shrinking(plan, found[0][0]).run()
    world = run(plan, traces=True)
    print("\n".join(story(world, everything)))
    return not broken(world)


def run_many(
    make: Callable[[int], AnyPlan], first: int, minutes: float, most: int
) -> bool:
    began_at = time.monotonic()
    hours, worlds, failed = 0.0, 0, Counter[str]()
    gc.freeze()
    while worlds < most and time.monotonic() - began_at < minutes * 60:
        seed = first + worlds
        world = run(make(seed))
        worlds += 1
        hours += world.clock.now / 3600
        names = dict(broken(world))
        failed.update(names.keys())
        for name, words in names.items():
            print(f"seed {seed}: {name}: {words[:300]}", flush=True)
    spent = (time.monotonic() - began_at) / 60
    print(
        f"{worlds} worlds, {hours:.1f} simulated hours in {spent:.2f} min:"
        f" {hours / spent:.1f} hours a minute, {worlds / spent:.0f} worlds a minute"
    )
    for name, count in failed.most_common():
        print(f"{count} worlds broke: {name}")
    return not failed


def main() -> int:
    asked = arguments()
    first = asked.seed or 0
    make: Callable[[int], AnyPlan] = arrivals_of if asked.servers else plan_of
    if asked.workers:
        make = workers_of
    if asked.minutes is None and asked.worlds is None:
        return 0 if tell(make(first), asked.shrink, asked.trace) else 1
    minutes = asked.minutes if asked.minutes is not None else 1e6
    most = asked.worlds if asked.worlds is not None else sys.maxsize
    return 0 if run_many(make, first, minutes, most) else 1


if __name__ == "__main__":
    sys.exit(main())
