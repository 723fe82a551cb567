"""Tells a person what happened in a world, in order, and what was broken."""

import re
from collections.abc import Iterator

from tests.worlds.either import AnyWorld, broken, places

WIDTH = 160
OF_PROBES = re.compile(r"call 1\d\d\d\b")  # from FIRST_PROBE on


def story(world: AnyWorld, everything: bool = False) -> Iterator[str]:
    """Lines: the plan, what happened, what was broken. The calls after all was healed
    are left out, unless somebody wants everything."""
    yield f"Seed {world.plan.seed}: {world.plan}."
    for at, what in world.trace or ():
        if everything or not OF_PROBES.search(what):
            yield f"{at:10.4f}  {what}"[:WIDTH]
    pages, found = dict(places()), broken(world)
    for name, words in found:
        yield f"BROKEN: {name} (docs/{pages.get(name, 'reliability.md')})"
        yield f"        {words}"
    if not found:
        yield "All promises were kept."
