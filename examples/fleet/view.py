"""What is seen while the demo runs: a live picture, or plain lines.

Live needs a terminal and rich; NO_COLOR and TERM=dumb ask for plain lines too.
"""

import importlib.util
import os
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

BAR = 20  # characters for 100 %; a row then fits into 80 columns


@dataclass(frozen=True, slots=True)
class Row:
    """One backend, as its clients see it on average."""

    name: str
    speed: float
    utilization: float
    state: str
    rate: float
    weight: float
    in_flight: int
    note: str


@dataclass(frozen=True, slots=True)
class Scene:
    title: str
    seconds_left: float
    rows: tuple[Row, ...]


class View(AbstractContextManager["View"], Protocol):
    def say(self, line: str) -> None:
        """Prints a line that stays."""

    def show(self, scene: Scene) -> None:
        """Replaces the picture."""


class Plain:
    def __enter__(self) -> "Plain":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def say(self, line: str) -> None:
        print(line, flush=True)

    def show(self, scene: Scene) -> None:
        """Lines cannot be taken back."""


class Live:
    """A picture that rich redraws in place, below the lines that were said."""

    def __init__(self) -> None:
        from rich.live import Live as RichLive

        self._live = RichLive(auto_refresh=False, transient=True)

    def __enter__(self) -> "Live":
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def say(self, line: str) -> None:
        self._live.console.print(line, markup=False, highlight=False)

    def show(self, scene: Scene) -> None:
        self._live.update(picture(scene), refresh=True)


def choose_view(environ: Mapping[str, str] = os.environ) -> View:
    can_be_live = (
        sys.stdout.isatty()
        and not environ.get("NO_COLOR")
        and environ.get("TERM", "dumb") != "dumb"
        and importlib.util.find_spec("rich") is not None
    )
    return Live() if can_be_live else Plain()


def picture(scene: Scene) -> Any:
    """The scene as something that rich can draw."""
    from rich.table import Table

    table = Table(
        title=f"{scene.title}, {scene.seconds_left:.0f} s left",
        title_justify="left",
        title_style="bold",
        box=None,
        padding=(0, 1, 0, 0),
    )
    table.add_column("backend", no_wrap=True, min_width=10)
    table.add_column("speed", justify="right", width=5)
    table.add_column("utilization (| mean)", width=BAR)
    table.add_column("", justify="right", width=5)
    table.add_column("calls/s", justify="right", width=7)
    table.add_column("weight", justify="right", width=6)
    table.add_column("active", justify="right", width=6)
    table.add_column("state", no_wrap=True)
    mean = sum(row.utilization for row in scene.rows) / len(scene.rows)
    for row in scene.rows:
        table.add_row(
            row.name,
            f"{row.speed:g}",
            bar(row.utilization, mean),
            f"{row.utilization:4.0%}",
            f"{row.rate:.0f}",
            f"{row.weight:.2f}",
            str(row.in_flight),
            f"[bold]{row.note}[/bold] {row.state}" if row.note else row.state,
        )
    return table


def bar(utilization: float, mean: float) -> str:
    """A bar with a mark at the mean, in rich's markup."""
    cells = ["█" if cell < round(utilization * BAR) else " " for cell in range(BAR)]
    cells[min(BAR - 1, round(mean * BAR))] = "|"
    color = "red" if utilization > 0.9 else "yellow" if utilization > 0.7 else "green"
    return f"[{color}]{''.join(cells)}[/{color}]"
