"""What `make matrix` tests is what pyproject.toml claims."""

import itertools
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.matrix import COMBINATIONS, IN_CI, LEFT_OUT, SOME_GRPCIO

FLOOR = COMBINATIONS[0]


@pytest.fixture
def project(root: Path) -> Any:
    return tomllib.loads((root / "pyproject.toml").read_text())["project"]


def lower_bound(project: Any, name: str) -> str:
    [found] = [it for it in project["dependencies"] if it.startswith(f"{name}>=")]
    bound: str = found.removeprefix(f"{name}>=").partition(",")[0]
    return bound


def test_the_floor_is_the_lower_bound_of_each(project: Any) -> None:
    assert FLOOR.name == "floor"
    assert FLOOR.grpcio == f"{lower_bound(project, 'grpcio')}.0"
    assert FLOOR.protobuf == lower_bound(project, "protobuf")
    assert f">={FLOOR.python}" == project["requires-python"]


def test_few_minor_versions_of_grpcio_are_left_out_in_a_row() -> None:
    """Some are when newer ones come out: add one of them to SOME_GRPCIO."""
    tested = [FLOOR.grpcio, *SOME_GRPCIO, version("grpcio")]
    minors = [int(one.split(".")[1]) for one in tested]
    assert all(0 < b - a <= 4 for a, b in itertools.pairwise(minors)), minors


def test_each_python_that_is_named_is_a_combination(project: Any) -> None:
    words = "Programming Language :: Python :: "
    named = {it.removeprefix(words) for it in project["classifiers"] if words in it}
    assert named <= {one.python for one in COMBINATIONS}


def test_what_is_named_exists(root: Path) -> None:
    paths = [f"tests/wire/test_{name}.py" for name in (*LEFT_OUT, *IN_CI)]
    assert [path for path in paths if not (root / path).exists()] == []
