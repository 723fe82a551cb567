"""The table of differences is about cases that exist, and the docs say the same."""

import re
from pathlib import Path

from tests.conformance.differences import BEFORE_1_84, DIFFERENCES

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "differences.md"


def sentence(case: str) -> str:
    """A case's name as the docs write it."""
    words = case.removeprefix("test_").replace("_", " ")
    return words[0].upper() + words[1:]


def test_every_difference_is_one_of_a_case() -> None:
    files = "".join(file.read_text() for file in HERE.glob("test_*.py"))
    cases = re.findall(r"^@on_both\n(?:@.*\n)*async def (\w+)", files, re.MULTILINE)
    assert set(DIFFERENCES) | set(BEFORE_1_84) <= set(cases)


def test_every_difference_is_a_real_one() -> None:
    assert not [name for name, it in DIFFERENCES.items() if it.theirs == it.ours]


def test_the_docs_tell_every_difference_and_why() -> None:
    rows = re.findall(r"^\| (\w[^|]*) \| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE)
    told = {case: why for case, why in rows if case != "Case"}
    assert told == {sentence(name): it.why for name, it in DIFFERENCES.items()}
