"""The reasons why mutants may survive are of lines that are there."""

import ast
import tomllib
from pathlib import Path

from tests.mutation import PACKAGE, REASONS, TESTS, mutants

ROOT = Path(__file__).parents[2]


def test_each_reason_is_of_a_mutant_that_there_is() -> None:
    for module, reasons in tomllib.loads(REASONS.read_text()).items():
        source = (PACKAGE / module).read_text()
        lines = source.splitlines()
        made = {
            (change, lines[line - 1].strip()) for _, change, line in mutants(source)
        }
        known = {ast.unparse(node) for node in ast.walk(ast.parse(source))}
        for each in reasons:
            assert each["what"] in known, each
            for change in each["changes"]:
                assert (change, each["line"]) in made, each


def test_the_tests_of_modules_are_there() -> None:
    for module, names in TESTS.items():
        assert (PACKAGE / module).is_file(), module
        for name in names.split():
            assert (ROOT / "tests" / f"{name}.py").is_file(), name
