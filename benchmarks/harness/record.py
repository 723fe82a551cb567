"""What a run of several benchmarks found, as it is kept in JSON."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from benchmarks.harness.measured import Measured

DIGITS = 4  # that are kept of a figure


class End(StrEnum):
    """How the run of one benchmark ended."""

    HELD = "all that is promised holds"
    MISSED = "a goal is missed"
    FAILED = "FAILED"  # it told nothing
    ENDED = "ENDED: it took too long"
    LEFT_OUT = "not run"

    @property
    def is_whole(self) -> bool:
        """Whether it need not be run again."""
        return self in (End.HELD, End.MISSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One benchmark, run once. `load` is the machine's load average before it, and
    `missed` are targets that are not the goal of one figure, in its own words."""

    command: str
    end: End
    seconds: float
    machine: dict[str, Any] = field(default_factory=dict)
    load: float = 0.0
    missed: list[str] = field(default_factory=list)
    said: str = ""  # why it was not run, or the last it said before it failed
    measured: list[Measured] = field(default_factory=list)


Record = Mapping[str, Run]
"""Of each benchmark, by its name, the last run."""


def from_json(fields: Mapping[str, Any]) -> Run:
    told = [measured_from(of) for of in fields["measured"]]
    return Run(**{**fields, "end": End(fields["end"]), "measured": told})


def measured_from(fields: Mapping[str, Any]) -> Measured:
    spread = fields.get("spread")
    return Measured(**{**fields, "spread": tuple(spread) if spread else None})


def load(file: Path) -> dict[str, Run]:
    """Nothing if there is no such file."""
    if not file.exists():
        return {}
    found = json.loads(file.read_text(encoding="utf-8"))
    return {name: from_json(fields) for name, fields in found.items()}


def save(file: Path, record: Record) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    runs = (f"{json.dumps(name)}: {_text(run)}" for name, run in record.items())
    file.write_text("{\n" + ",\n".join(runs) + "\n}\n", encoding="utf-8")


def _text(run: Run) -> str:
    """One line for each figure, so that a diff shows what changed."""
    fields = asdict(run)
    lines = ",\n  ".join(map(_line, fields.pop("measured")))
    head = json.dumps(_short(fields), indent=1).removesuffix("\n}")
    return f'{head},\n "measured": [\n  {lines}\n ]\n}}'


def _line(fields: Mapping[str, Any]) -> str:
    told = {name: of for name, of in fields.items() if of not in (None, "")}
    return json.dumps(_short(told))


def _short(value: Any) -> Any:
    """The value, with the digits of its numbers that count."""
    if isinstance(value, dict):
        return {name: _short(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [_short(one) for one in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


@dataclass(frozen=True, slots=True)
class Moved:
    """A ratio that is another one than in the last recorded run."""

    benchmark: str
    before: Measured
    now: Measured

    @property
    def is_worse(self) -> bool:
        return self.now.is_worse_than(self.before)

    @property
    def what(self) -> tuple[str, str, bool]:
        """The figure, and which way it moved."""
        return self.benchmark, self.now.name, self.is_worse

    def __str__(self) -> str:
        worse = "WORSE" if self.is_worse else "moved"
        return (
            f"{worse}: {self.benchmark}: {self.now.name}: "
            f"{_with_noise(self.before)} before, {_with_noise(self.now)} now"
        )


def _with_noise(one: Measured) -> str:
    first, third = one.noise
    return f"{one.value:.3g} ({first:.3g} to {third:.3g})"


def moved(before: Record, now: Record) -> list[Moved]:
    """What moved, of the same commands: another form of a benchmark has own figures."""
    return [
        Moved(name, was, one)
        for name, run in now.items()
        if name in before and before[name].command == run.command
        for was in before[name].measured
        for one in run.measured
        if one.name == was.name and one.moved_from(was)
    ]


def moved_again(first: Iterable[Moved], again: Iterable[Moved]) -> list[Moved]:
    """Those of `again` that moved as they did in the run before it."""
    known = {one.what for one in first}
    return [one for one in again if one.what in known]
