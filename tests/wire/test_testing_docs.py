"""docs/testing.md: what it shows is in examples/, and passes under both plugins."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

RUNNERS = {
    "pytest-asyncio": (
        *("-o", "asyncio_mode=auto"),
        *("-o", "asyncio_default_fixture_loop_scope=function"),
    ),
    "anyio": ("-p", "no:asyncio", "-o", "anyio_mode=auto"),
}
QUIET = (
    *("-q", "-p", "no:cacheprovider", "-W", "error"),
    # A connection that is accepted in the turn in which its server is killed.
    *("-W", "ignore::pytest.PytestUnraisableExceptionWarning"),
)


def run(*arguments: str, cwd: Path = EXAMPLES) -> str:
    done = subprocess.run(
        (sys.executable, *arguments), cwd=cwd, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_each_example_is_one_that_runs() -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    program = (EXAMPLES / "test_finder.py").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert [block for block in blocks if block not in program] == []
    assert len(blocks) >= 6


@pytest.mark.parametrize("runner", RUNNERS)
def test_they_pass(runner: str, tmp_path: Path) -> None:
    needs.module("anyio" if runner == "anyio" else "pytest_asyncio")
    settings = tmp_path / "pytest.ini"  # so that ours do not count
    settings.write_text("[pytest]\n")
    options = (
        *QUIET,
        *RUNNERS[runner],
        "-c",
        str(settings),
        "--rootdir",
        str(EXAMPLES),
    )
    assert "10 passed" in run("-m", "pytest", *options, "test_finder.py")


def test_the_plugin_imports_nothing_for_others(tmp_path: Path) -> None:
    (tmp_path / "test_of_others.py").write_text(
        "import sys\n"
        "def test_nothing_is_loaded(pytestconfig):\n"
        "    assert pytestconfig.pluginmanager.has_plugin('lbclient')\n"
        "    names = ('grpc', 'lbclient.testing', 'lbclient.client', 'asyncio')\n"
        "    assert [name for name in names if name in sys.modules] == []\n"
    )
    alone = ("-p", "no:asyncio", "-p", "no:anyio", "-p", "no:hypothesispytest")
    assert "1 passed" in run("-m", "pytest", *QUIET, *alone, cwd=tmp_path)
