"""What `make matrix` tests is what pyproject.toml claims."""

import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.matrix import COMBINATIONS, TESTS

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


def test_each_minor_version_of_grpcio_between_them_is_a_combination() -> None:
    """One is missing here when a newer one comes out: add it to COMBINATIONS."""
    first, newest = (int(it.split(".")[1]) for it in (FLOOR.grpcio, version("grpcio")))
    wanted = {f"1.{minor}.*" for minor in range(first, newest)}
    assert wanted <= {one.grpcio for one in COMBINATIONS}


def test_each_python_that_is_named_is_a_combination(project: Any) -> None:
    words = "Programming Language :: Python :: "
    named = {it.removeprefix(words) for it in project["classifiers"] if words in it}
    assert named <= {one.python for one in COMBINATIONS}


def test_every_essential_test_exists(root: Path) -> None:
    assert [path for path in TESTS if not (root / path).exists()] == []
