"""What a docstring shows is what happens."""

import doctest
import importlib
import pkgutil

import pytest

import lbclient

MODULES = [
    module.name
    for module in pkgutil.walk_packages(lbclient.__path__, "lbclient.")
    if not module.name.endswith("__main__")
]
BENCHMARKS = ["faults.goaway", "overload.allowed", "refusals.costs"]
MODULES += [f"benchmarks.{name}" for name in BENCHMARKS]


@pytest.mark.parametrize("name", ["lbclient", *MODULES])
def test_the_docstrings_are_true(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
