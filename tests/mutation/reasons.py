"""Why some mutants may survive: `reasons.toml`, by module.

A reason covers the mutants of the lines that it names, as they are in the source but
for the spaces before them: with `changes`, only these changes, and with `what` only
those of that part of the line.
"""

import tomllib
from pathlib import Path
from typing import Any

from tests.mutation.making import Mutant

REASONS = Path(__file__).with_name("reasons.toml")
Reason = dict[str, Any]


def reasons_of(module: str) -> list[Reason]:
    found: list[Reason] = tomllib.loads(REASONS.read_text()).get(module, [])
    return found


def covers(reason: Reason, mutant: Mutant) -> bool:
    return (
        mutant.text in reason["lines"]
        and mutant.change in reason.get("changes", [mutant.change])
        and mutant.what == reason.get("what", mutant.what)
    )
