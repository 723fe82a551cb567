"""What a request takes, from slices of time in which a number of them ended."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

UNIT = "served by grpcio"
OF_LOOP = 0.1  # of the process: where the loop takes less it is not what ends requests


class Used(NamedTuple):
    """Seconds of CPU."""

    loop: float
    process: float

    def since(self, before: "Used") -> "Used":
        return Used(self.loop - before.loop, self.process - before.process)


Slices = dict[str, list[Used]]  # by end


@dataclass(frozen=True)
class Cost:
    """Microseconds of CPU for a request that ends so."""

    end: str
    loop: float
    process: float
    of_grpcio: float  # the process, by what grpcio takes to serve a request
    flooded: float  # the loop, where many come at once
    full_at: float | None  # requests a second; None: it is not the loop that ends them


def for_each(used: Used, idle: Used, ended: float) -> Used:
    """For a request, less what the process takes anyway in that time.

    Where none ended, as a machine may stand still, the slice is the worst of all.

    >>> for_each(Used(0.5, 0.75), Used(0.25, 0.25), 1000)
    Used(loop=0.00025, process=0.0005)
    """
    if not ended:
        return Used(inf, inf)
    return Used(*(max(0.0, x / ended) for x in used.since(idle)))


def best(slices: Sequence[Used]) -> Used:
    """The least of each: they are never that of more work than there was."""
    found = Used(*(min(one) for one in zip(*slices, strict=True)))
    if found.loop == inf:
        raise RuntimeError("in no slice a request ended as it was to")
    return found


def costs(slices: Slices, flooded: Slices) -> list[Cost]:
    """Of each end, from slices at a fixed rate and in a flood; that of grpcio first.

    >>> calm = {UNIT: [Used(2e-4, 4e-4)], "refused": [Used(1e-4, 2e-4)]}
    >>> flooded = {UNIT: [Used(1e-4, 1e-4)], "refused": [Used(5e-5, 1e-4)]}
    >>> _, refused = costs(calm, flooded)
    >>> refused.of_grpcio, refused.full_at
    (0.5, 20000.0)
    """
    found = []
    unit = best(slices[UNIT]).process
    for end, of in slices.items():
        loop, process = best(of)
        in_flood = best(flooded[end]).loop
        is_of_loop = loop > OF_LOOP * process
        found.append(
            Cost(
                end,
                round(loop * 1e6, 1),
                round(process * 1e6, 1),
                round(process / unit, 3),
                round(in_flood * 1e6, 1),
                round(1.0 / in_flood, 1) if is_of_loop and in_flood else None,
            )
        )
    return found
