"""How benchmarks tell what they found: tables, pictures and JSON."""

import json
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from math import sqrt
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import google.protobuf
import grpc

from benchmarks.harness import linux

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, RED = "#3d6fb4", "#d1495b"
DOTS = 100  # an inch
COLORS = 64  # in a .png, which makes it a third as large


def machine() -> dict[str, Any]:
    """What figures depend on besides the code."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": linux.processor(),
        "GB": round(linux.memory() / 2**30),
        "python": platform.python_version(),
        "grpcio": grpc.__version__,
        "protobuf": google.protobuf.__version__,
        "load average": os.getloadavg()[0],
    }


def say_machine() -> dict[str, Any]:
    of = machine()
    print(", ".join(f"{key} {value}" for key, value in of.items()), flush=True)
    return of


def quantile(values: Iterable[float], share: float) -> float | None:
    """None: there are no values."""
    ordered = sorted(values)
    return ordered[int(share * len(ordered))] if ordered else None


class Quantile(NamedTuple):
    """Of values measured once. Between `least` and `most` it might as well be.

    These are two standard deviations of its rank away, so a tail of few values is wide:
    of a thousand the 99.9th percentile is the largest, or as well the third largest.
    """

    value: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float], share: float) -> "Quantile":
        ordered = sorted(values)
        if not ordered:
            return cls(0.0, 0.0, 0.0)
        rank, last = share * len(ordered), len(ordered) - 1
        apart = 2.0 * sqrt(rank * (1.0 - share))
        places = rank, rank - apart, rank + apart
        return cls(*(ordered[min(max(0, int(place)), last)] for place in places))

    def over(self, other: "Quantile") -> tuple[float, tuple[float, float]]:
        """The ratio, and between what it might as well be."""
        between = self.least / other.most, self.most / other.least
        return self.value / other.value, between


def table(rows: Iterable[Sequence[object]], left: int = 1) -> str:
    """Aligned columns; the first `left` of them are aligned to the left."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in texts
    )


def write_json(file: str, found: Any) -> None:
    text = json.dumps(found, indent=1, default=asdict)
    Path(file).write_text(text + "\n", encoding="utf-8")


def blank(width: float, height: float) -> "Figure":
    """An empty figure, in inches. Without pyplot, which would look for a screen."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def write_plot(file: str, figure: "Figure") -> None:
    figure.savefig(file, dpi=DOTS)
    if PurePath(file).suffix == ".png":
        from PIL import Image  # which matplotlib needs itself

        with Image.open(file) as image:
            image.convert("RGB").quantize(COLORS).save(file, optimize=True)
