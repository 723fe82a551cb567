"""The reasons why mutants may survive are of mutants that there are."""

import tomllib
from pathlib import Path

from tests.mutation.making import mutants
from tests.mutation.modules import TESTS
from tests.mutation.reasons import REASONS, covers
from tests.mutation.running import PACKAGE

ROOT = Path(__file__).parents[2]


def test_each_reason_is_of_mutants_that_there_are() -> None:
    for module, reasons in tomllib.loads(REASONS.read_text()).items():
        made = mutants((PACKAGE / module).read_text())
        for each in reasons:
            assert each["reason"]
            of_it = [one for one in made if covers(each, one)]
            assert set(each["lines"]) == {one.text for one in of_it}, each
            changes = {one.change for one in of_it}
            assert set(each.get("changes", changes)) == changes, each


def test_the_tests_of_modules_are_there() -> None:
    for module, names in TESTS.items():
        assert (PACKAGE / module).is_file(), module
        for name in names.split():
            assert (ROOT / "tests" / f"{name}.py").is_file(), name
