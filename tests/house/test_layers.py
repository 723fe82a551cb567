"""The floors of the house: who may import whom.

Arrows run down only, between folders and between files. The lowest floors are pure:
what decides knows no clock, no loop, no wire and no chance, so it can be tested by
calling it, and the simulator runs production code.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.conftest import Run
from tests.house.graph import circles, import_graph, imports

ROOT = Path(__file__).parents[2]

PURE = ("core", "pickers", "sim", "subsets")

# From the lowest. A folder imports those of lower floors only, none of its own floor.
# A file in the root is a room of its own; `lbclient` is the front door.
FLOORS = (
    ("core", "log", "originals", "v1"),
    ("background", "grpc_seam", "load", "pickers", "protocols", "subsets"),
    ("sim", "wire"),
    ("config",),
    ("resolvers",),
    ("client", "server"),
    ("lbclient", "metrics", "proxy", "testing"),
    ("admin", "pytest_plugin"),
    ("cli",),
    ("__main__",),
)

# What only plans and explains: imported by nobody who does not run it.
LAB = ("lbclient.cli.lab", "lbclient.sim")

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


def test_what_measures_a_server_asks_nobody_over_the_network() -> None:
    """SRE book, ch. 21: the signals of overload are local."""
    network = {"grpc", "http", "redis", "socket", "ssl", "urllib"}
    above = {"lbclient.client", "lbclient.resolvers", "lbclient.server.quotas"}
    files = [*(ROOT / "lbclient" / "server" / "meters").glob("*.py")]
    assert len(files) > 5
    for file in files:
        names = [*imports(file.read_text())]
        assert network.isdisjoint(name.split(".")[0] for name in names), file.name
        assert not [name for name in names if name.startswith(tuple(above))], file.name


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
        "from lbclient.core.backends.pool import Pool",
        "from lbclient.pickers import PICKERS",
    ],
)
def test_what_is_pure_is_welcome(source: str) -> None:
    assert not any(map(crosses, imports(source)))


def room_of(module: str) -> str:
    """
    >>> room_of("lbclient.core.backends.pool"), room_of("lbclient")
    ('core', 'lbclient')
    """
    return module.split(".")[1] if "." in module else module


def test_no_files_import_each_other() -> None:
    """Also not for types alone: who reads one file would have to read them all."""
    assert circles(import_graph()) == []


def test_a_circle_is_seen() -> None:
    graph = {"a": frozenset({"b"}), "b": frozenset({"c"}), "c": frozenset({"b", "d"})}
    assert circles(graph | {"d": frozenset()}) == [["b", "c"]]


def test_each_room_has_a_floor() -> None:
    floors = [room for floor in FLOORS for room in floor]
    assert sorted(floors) == sorted({room_of(name) for name in import_graph()})


def test_arrows_between_folders_run_down() -> None:
    floor_of = {room: n for n, floor in enumerate(FLOORS) for room in floor}
    wrong = [
        f"{name} imports {other}"
        for name, imported in import_graph().items()
        for other in imported
        if room_of(other) != room_of(name)
        and floor_of[room_of(other)] >= floor_of[room_of(name)]
    ]
    assert wrong == []


def is_in_lab(module: str) -> bool:
    return module.startswith(tuple(f"{room}." for room in LAB)) or module in LAB


def test_only_the_lab_imports_what_plans_and_explains() -> None:
    wrong = [
        f"{name} imports {other}"
        for name, imported in import_graph().items()
        for other in imported
        if is_in_lab(other) and not is_in_lab(name)
    ]
    assert wrong == []


def test_who_runs_a_fleet_loads_nothing_of_the_lab(run: Run) -> None:
    """Nor what draws; `cli` finds its commands by name, which no import shows."""
    outside = [
        name
        for name in import_graph()
        if not is_in_lab(name) and name != "lbclient.__main__"
    ]
    program = (
        "import sys, lbclient.cli\n"
        f"for name in {outside!r}: __import__(name)\n"
        "for name in lbclient.cli.OPERATE: lbclient.cli.module_of(name)\n"
        "print(*sys.modules)"
    )
    loaded = run(sys.executable, "-c", program).split()
    assert "lbclient.cli.operate.inspect" in loaded
    assert [name for name in loaded if is_in_lab(name)] == []
    assert "matplotlib" not in loaded
