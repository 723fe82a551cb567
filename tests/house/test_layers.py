"""The purity line: what decides knows no clock, no loop, no wire and no chance.

So it can be tested by calling it, and the simulator runs production code.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PURE = ("core", "pickers", "sim", "subsets")

# What tells the time, waits, or reaches outside the process.
FORBIDDEN = {
    "asyncio",
    "datetime",
    "google",
    "grpc",
    "importlib",
    "io",
    "logging",
    "os",
    "pathlib",
    "prometheus_client",
    "socket",
    "subprocess",
    "threading",
    "time",
}
FORBIDDEN_CALLS = {"open", "print", "input", "eval", "exec", "__import__"}


def pure_files() -> list[str]:
    package = ROOT / "lbclient"
    found = [path for folder in PURE for path in (package / folder).rglob("*.py")]
    return sorted(path.relative_to(package).as_posix() for path in found)


def imports(source: str) -> Iterator[str]:
    """Every name that is imported, in functions and type-checking blocks too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = "." * node.level + (node.module or "")
            yield from (f"{package}.{alias.name}" for alias in node.names)


def calls(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


def crosses(name: str) -> bool:
    """Whether importing this steps over the line."""
    first, *rest = name.split(".")
    if first == "random":
        return name != "random.Random"
    if first == "lbclient":
        return not rest or rest[0] not in PURE
    return first in FORBIDDEN or not first


def test_one_file_reads_what_settings_are_set_to() -> None:
    files = [*(ROOT / "lbclient" / "config").glob("*.py")]
    reads = {"os", "os.environ", "tomllib"}
    found = [file.name for file in files if reads & {*imports(file.read_text())}]
    assert found == ["sources.py"]


@pytest.mark.parametrize("folder", PURE)
def test_each_folder_is_there(folder: str) -> None:
    assert any(file.startswith(f"{folder}/") for file in pure_files())


@pytest.mark.parametrize("file", pure_files())
def test_what_decides_is_pure(file: str) -> None:
    source = (ROOT / "lbclient" / file).read_text()
    assert [name for name in imports(source) if crosses(name)] == []
    assert FORBIDDEN_CALLS.isdisjoint(calls(source))


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio",
        "import os",
        "import time as clock",
        "from time import monotonic",
        "from grpc.aio import Channel",
        "import lbclient",
        "import lbclient.client.channel",
        "from lbclient import client",
        "from lbclient.client.channel import Channel",
        "from lbclient import Channel",
        "from . import channel",
        "from random import choice",
        "import random",
        "def later():\n    import logging",
    ],
)
def test_a_step_over_the_line_is_seen(source: str) -> None:
    assert any(map(crosses, imports(source)))


@pytest.mark.parametrize(
    "source",
    [
        "from math import exp",
        "from random import Random",
        "from lbclient.core import pool",
        "from lbclient.core.pool import Pool",
        "from lbclient.pickers import PICKERS",
    ],
)
def test_what_is_pure_is_welcome(source: str) -> None:
    assert not any(map(crosses, imports(source)))
