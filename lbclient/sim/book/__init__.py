"""The figures of the texts as experiments: one a file, computed here, drawn elsewhere.

Each has `run(seed, quick)`, and what that returns has the numbers of a figure and
`claims()`: what the text says of it, and whether that holds here.
"""

from collections.abc import Callable
from typing import Protocol

from lbclient.sim.book import (
    attempts,
    layers,
    overload,
    resized,
    spread,
    switched,
    wasted,
)
from lbclient.sim.book.claims import Claim

__all__ = ["EXPERIMENTS", "Claim", "Experiment"]


class Experiment(Protocol):
    def claims(self) -> list[Claim]: ...


EXPERIMENTS: dict[str, Callable[[int, bool], Experiment]] = {
    "wasted": wasted.run,
    "spread": spread.run,
    "switched": switched.run,
    "resized": resized.run,
    "attempts": attempts.run,
    "layers": layers.run,
    "overload": overload.run,
}
