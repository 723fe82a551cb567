"""No test is skipped in CI for want of what CI installs."""

import re
from pathlib import Path

import pytest

from tests import needs

SKIPS = re.compile(r"pytest\.(skip|importorskip)|mark\.(skip|xfail)|skipTest")
ALLOWED = {Path("tests/needs.py"), Path("tests/house/test_needs.py")}


def test_no_test_is_skipped_by_other_means(root: Path) -> None:
    files = {file.relative_to(root) for file in root.glob("tests/**/*.py")}
    found = [f for f in sorted(files) if SKIPS.search((root / f).read_text())]
    assert set(found) <= ALLOWED


def test_ci_demands_and_installs_all_programs(root: Path) -> None:
    script = (root / ".ci" / "run").read_text()
    assert f"\nexport {needs.DEMANDED}=1\n" in script
    words = set(re.findall(r"[\w.-]+", script))
    # Of every Debian, however small.
    assert set(needs.PACKAGES.values()) - words == {"apt", "util-linux"}


@pytest.mark.parametrize("name", ["program", "module"])
def test_what_is_missing_skips_a_test_and_fails_it_where_it_is_demanded(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = "no_such_thing_anywhere"
    monkeypatch.setitem(needs.PACKAGES, absent, absent)
    monkeypatch.delenv(needs.DEMANDED, raising=False)
    with pytest.raises(pytest.skip.Exception, match=f"no {absent}: "):
        getattr(needs, name)(absent)
    monkeypatch.setenv(needs.DEMANDED, "1")
    with pytest.raises(pytest.fail.Exception, match=f"no {absent}: "):
        getattr(needs, name)(absent)


def test_what_the_machine_cannot_do_is_skipped_everywhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(needs.DEMANDED, "1")
    with pytest.raises(pytest.skip.Exception):
        needs.skip("no namespaces here")
