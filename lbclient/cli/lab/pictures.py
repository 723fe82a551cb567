"""Writes matplotlib's figures to files.

matplotlib is an extra: it is imported when something is drawn, and without pyplot,
which would look for a screen.
"""

from collections.abc import Callable
from importlib.util import find_spec
from io import BytesIO
from pathlib import PurePath
from typing import TYPE_CHECKING

from lbclient.cli import files
from lbclient.core.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
DOTS = 100  # an inch
COLORS = 64  # in a .png: a third of the size that all would make

BLUE, RED, YELLOW = "#3d6fb4", "#d1495b", "#f2c14e"
GREEN, GREY = "#6a994e", "#d9d9d9"


def check(file: str) -> None:
    """Raises ConfigError for a file that no figure can become, or nothing can draw."""
    if PurePath(file).suffix not in SUFFIXES:
        raise ConfigError("plot", file, f"a name that ends in {', '.join(SUFFIXES)}")
    require("plot", file)
    files.check("plot", file)


def require(field: str, file: str) -> None:
    """Raises ConfigError where matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        want = "matplotlib, which is not installed: pip install 'lbclient[plot]'"
        raise ConfigError(field, file, want)


def write(file: str, draw: "Callable[[], Figure]") -> None:
    """Writes the file. Raises ConfigError if it cannot be drawn or written."""
    check(file)
    try:
        drawn = draw()
        if PurePath(file).suffix == ".png":
            _write_small(drawn, file)
        else:
            drawn.savefig(file)
    except OSError as error:
        raise files.unwritable("plot", file, error) from None


def blank(width: float, height: float) -> "Figure":
    """An empty figure, in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _write_small(figure: "Figure", file: str) -> None:
    from PIL import Image  # which matplotlib needs itself

    drawn = BytesIO()
    figure.savefig(drawn, dpi=DOTS)
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(COLORS).save(file, optimize=True)
