"""Runs the demo, whose programs are an example and not a part of the library."""

import importlib
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[2]


def find_fleet() -> Path:
    """The folder of the demo's programs: in a wheel `_fleet`, else in the checkout."""
    for folder in (PACKAGE / "_fleet", PACKAGE.parent / "examples" / "fleet"):
        if (folder / "demo.py").is_file():
            return folder
    raise FileNotFoundError(f"the demo's programs are neither in {PACKAGE} nor beside")


def main(argv: list[str]) -> int:
    status: int = _import("demo").main(argv)
    return status


def make_parser() -> ArgumentParser:
    parser: ArgumentParser = _import("options").make_parser()
    return parser


def _import(name: str) -> Any:
    # They are programs, not a package: they find each other as scripts do.
    sys.path.insert(0, str(find_fleet()))
    return importlib.import_module(name)
