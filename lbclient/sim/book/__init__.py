"""The figures and tables of the texts as experiments, one a file.

Each file has `SHOWS`, which names the figures and tables that it reproduces, and
`run(seed, quick)`. The result of `run` has the numbers of a figure and a method
`claims()`, which compares what the text says with what was computed here.
`lbclient.cli.lab` prints and draws the results.
"""

from collections.abc import Callable
from typing import Protocol

from lbclient.sim.book import (
    active_requests,
    attempts,
    changed,
    connections,
    layers,
    limits,
    lots,
    overload,
    probability,
    resized,
    ring,
    shuffles,
    spread,
    switched,
    utilization,
    wasted,
)
from lbclient.sim.book.claims import Claim, Finding

__all__ = ["EXPERIMENTS", "SHOWS", "Claim", "Experiment", "Finding"]


class Experiment(Protocol):
    def claims(self) -> list[Claim]: ...


_MODULES = {  # in the order of the texts: chapter 20, CACM, chapter 21
    "wasted": wasted,
    "connections": connections,
    "shuffles": shuffles,
    "spread": spread,
    "active_requests": active_requests,
    "switched": switched,
    "utilization": utilization,
    "lots": lots,
    "changed": changed,
    "ring": ring,
    "resized": resized,
    "limits": limits,
    "probability": probability,
    "attempts": attempts,
    "layers": layers,
    "overload": overload,
}

EXPERIMENTS: dict[str, Callable[[int, bool], Experiment]] = {
    name: module.run for name, module in _MODULES.items()
}

SHOWS: dict[str, tuple[str, ...]] = {
    name: module.SHOWS for name, module in _MODULES.items()
}
"""The figures and tables of the texts, by the experiment that repeats them."""
