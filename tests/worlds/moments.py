"""Every moment of a call: what breaks, ends it or gives it up comes at each, in turn.

Seeds draw moments by chance. Here a call goes its way once, and the instants at which
anything was done are noted: a message has come, a task went on. Then it is made again
for each of them, with a GOAWAY, a crash, a cancellation or its deadline just then.

    python -m tests.worlds.moments                  all of them
    python -m tests.worlds.moments Get Chat         of calls to these methods
"""

import argparse
import gc
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tests.worlds.invariants import broken
from tests.worlds.plan import KINDS, MAY_REPEAT, CallPlan, Fault, Plan, ServerPlan
from tests.worlds.world import World

FAULTS = ("goaway", "goaway abrupt", "crash", "cut", "drain", "client blocks")
LASTS = {"crash": 0.2, "cut": 0.5, "drain": 0.2, "client blocks": 2.0}
ENDS = ("task", "call", "deadline")
FIRST, SECOND = 0.5, 1.5  # seconds: the first call finds no connection, the second one
AFTER = 1e-7  # seconds: just behind what is done at an instant


def plan_of(method: str, is_first: bool) -> Plan:
    """A call that reads and writes three messages, with nothing in its way."""
    servers = tuple(ServerPlan(f"10.0.0.{n}:50051", "lbclient") for n in (1, 2))
    before = CallPlan(1, FIRST, method, 20.0, 0.0)
    call = CallPlan(
        2, FIRST if is_first else SECOND, method, 20.0, 0.01, parts=3, drips=0.01
    )
    calls = (call,) if is_first else (before, call)
    settings = (("idempotent", MAY_REPEAT), ("picker", "round_robin"))
    return Plan(5, 3.0, 0.002, settings, servers, (), calls, probes=False)


def instants(plan: Plan) -> list[float]:
    """Those from the beginning of the plan's last call to its end."""
    world = World(plan)
    world.clock.instants = []
    world.run()
    assert not broken(world)
    seen = world.caller.seen[-1]
    assert seen.done_at is not None
    return [
        at for at in world.clock.instants if seen.began_at <= at <= seen.done_at + 0.01
    ]


def variants(plan: Plan, at: float) -> Iterator[tuple[str, Plan]]:
    *others, call = plan.calls
    for kind in FAULTS:
        server = -1 if kind == "client blocks" else 0
        fault = Fault(at, kind, server, LASTS.get(kind, 0.1))
        both = replace(fault, server=1)
        faults = (fault,) if server < 0 else (fault, both)
        yield kind, replace(plan, faults=faults)
    left = at - call.at
    for how in ENDS:
        ended = replace(call, timeout=left)
        if how != "deadline":
            ended = replace(call, stops=(left, how))
        yield how, replace(plan, calls=(*others, ended))


def breaches(every: int = 1, methods: Sequence[str] = ()) -> Iterator[str | None]:
    """One for each world, of each `every`th instant: None, or what it broke.
    `methods`: of calls to these alone."""
    for method in methods or KINDS:
        for is_first in (True, False):
            plan = plan_of(method, is_first)
            for instant in instants(plan)[::every]:
                for at in (instant, instant + AFTER):
                    for what, varied in variants(plan, at):
                        world = World(varied)
                        world.run()
                        found = broken(world)
                        state = "first" if is_first else "ready"
                        words = f"{method} ({state}), {what} at {at!r}: {found[:2]}"
                        yield words if found else None


def main() -> int:
    known = {path.rpartition("/")[2]: path for path in KINDS}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("methods", nargs="*", help=f"of {', '.join(known)}; all")
    asked = parser.parse_args()
    methods = [known[name] for name in asked.methods]
    count = failed = 0
    gc.freeze()
    for words in breaches(methods=methods):
        count += 1
        if words is not None:
            failed += 1
            print(words, flush=True)
    print(f"{count} worlds, {failed} broke a promise")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
