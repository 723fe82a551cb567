"""What differs on purpose: case by case, what is seen on either side, and why.

`docs/differences.md` says the same in words; a test keeps the two in step.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Difference:
    """`theirs` and `ours` are all that the case sees, in the states named."""

    why: str
    theirs: Any
    ours: Any
    states: tuple[str, ...] = ("fresh", "ready")


DIFFERENCES: dict[str, Difference] = {}
