"""Laws try other examples in each run, which can be had again; in CI the same ones."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., str]
ONE = "tests/laws/test_text.py"
PROFILES = """
import tests.conftest
from hypothesis import settings

for name in ("quick", "default", "long"):
    profile = settings.get_profile(name)
    print(name, profile.max_examples, profile.derandomize)
print(settings.get_current_profile_name())
"""


def seed(module: Run, *arguments: str) -> int:
    header = module("pytest", "--collect-only", ONE, *arguments)
    (found,) = re.findall(r"^laws: --hypothesis-seed=(\d+)$", header, re.MULTILINE)
    return int(found)


def test_each_run_names_a_seed_of_its_own(module: Run) -> None:
    assert seed(module) != seed(module)


def test_a_run_takes_a_seed_back(module: Run) -> None:
    assert seed(module, "--hypothesis-seed=7") == 7


def test_in_ci_every_run_has_the_same_seed(root: Path) -> None:
    """With another in each, a change failed by an example that it had not touched."""
    script = (root / ".ci" / "run").read_text()
    assert re.search(r"^seed=\d+$", script, re.MULTILINE)
    assert re.findall(r"--hypothesis-seed=(\S+?)\"", script) == ["$seed"]


@pytest.mark.parametrize("ci", ["true", ""])
def test_the_long_form_has_a_thousand_examples(run: Run, ci: str) -> None:
    """Where CI is set hypothesis would repeat the same examples in every run."""
    said = run(sys.executable, "-c", PROFILES, env={"CI": ci})
    assert said == "quick 5 False\ndefault 50 False\nlong 1000 False\ndefault\n"
