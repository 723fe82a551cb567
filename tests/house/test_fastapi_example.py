"""examples/fastapi as its readers have it: a project with settings of its own."""

import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

Run = Callable[..., str]


@pytest.fixture
def example(root: Path) -> Path:
    return root / "examples" / "fastapi"


def test_every_type_is_right_for_mypy(module: Run, example: Path) -> None:
    module("mypy", "--strict", ".", cwd=example)


def test_every_type_is_right_for_pyright(module: Run, example: Path) -> None:
    module("pyright", "--pythonpath", sys.executable, cwd=example)


def needed(project: Path, *extras: str) -> dict[str, Requirement]:
    """What a project requires, by name."""
    said = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    lists = [said["dependencies"], *(said["optional-dependencies"][e] for e in extras)]
    found = [Requirement(each) for one in lists for each in one]
    return {each.name: each for each in found}


def test_the_tests_have_what_it_requires(root: Path, example: Path) -> None:
    """By the same bound, or pinned beyond it."""
    ours = needed(root, "dev", "otel")
    for name, wanted in needed(example, "dev").items():
        if name != "lbclient":
            pins = [it for it in ours[name].specifier if it.operator == "=="]
            assert (
                wanted.specifier.contains(pins[0].version)
                if pins
                else wanted.specifier == ours[name].specifier
            ), name
