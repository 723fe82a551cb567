"""What a benchmark tells `python -m benchmarks`: one `Measured` for each figure.

A ratio (`unit` is `RATIO`) is compared with the last recorded run's, other units depend
on the machine and are shown only. The name is what a figure is found by from run to
run, so it has no numbers that a run may change.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Literal

RATIO = "x"
UNSPREAD = 0.25  # of the value: the noise of a figure that was measured once


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One figure; one row on docs/benchmarks.md.

    `spread` are the first and the third quartile; equal ones mean that the figure is
    the same in every run, as the simulator's are. `goal` is the most if `better` is
    "less", and the least if it is "more".
    """

    name: str
    value: float
    spread: tuple[float, float] | None = None
    unit: str = RATIO
    better: Literal["less", "more", ""] = ""
    goal: float | None = None

    @property
    def noise(self) -> tuple[float, float]:
        """Between which values a figure is no other one."""
        if self.spread is not None:
            return self.spread
        apart = UNSPREAD * abs(self.value)
        return self.value - apart, self.value + apart

    @property
    def misses(self) -> bool:
        """Whether it is beyond its goal."""
        return self.goal is not None and self._is_worse(self.value, self.goal)

    @property
    def loses(self) -> bool:
        """Whether a ratio of ours to theirs is worse than 1 by more than its noise."""
        best = min(self.noise) if self.better == "less" else max(self.noise)
        return self.unit == RATIO and self._is_worse(best, 1.0)

    def moved_from(self, before: "Measured") -> bool:
        """Whether a ratio differs from `before` by more than the noise of both."""
        if not self.unit == before.unit == RATIO:
            return False
        return not _is_in(self.value, before.noise) and not _is_in(
            before.value, self.noise
        )

    def is_worse_than(self, before: "Measured") -> bool:
        return self._is_worse(self.value, before.value)

    def _is_worse(self, value: float, than: float) -> bool:
        if self.better == "less":
            return value > than
        return self.better == "more" and value < than


def _is_in(value: float, noise: tuple[float, float]) -> bool:
    slack = 1e-3 * abs(value)
    return min(noise) - slack <= value <= max(noise) + slack


def spread_of(values: Sequence[float]) -> tuple[float, float]:
    """The quartiles; of fewer than four values the smallest and the largest."""
    if len(values) < 4:
        return min(values), max(values)
    first, _, third = quantiles(values, n=4)
    return first, third


def measured(
    name: str,
    values: Iterable[float],
    unit: str = RATIO,
    better: Literal["less", "more", ""] = "",
    goal: float | None = None,
) -> Measured:
    """The median of what was measured several times, and its quartiles."""
    several = [*values]
    return Measured(
        name=name,
        value=median(several),
        spread=spread_of(several) if len(several) > 1 else None,
        unit=unit,
        better=better,
        goal=goal,
    )
