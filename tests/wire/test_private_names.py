"""Whatever private name grpcio loses: calls, health and admission are there."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.private_names import names_in

ROOT = Path(__file__).parents[2]
SEAM = ROOT / "lbclient" / "grpc_seam"
NAMES = sorted({n for f in SEAM.rglob("*.py") for n in names_in(f.read_text())})


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "tests/wire/without_name.py", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_is_said_where_all_names_are_there() -> None:
    assert run() == ""


@pytest.mark.parametrize("name", NAMES)
def test_without_a_name_all_works_and_one_line_says_what_it_costs(name: str) -> None:
    [said] = run(name).splitlines()
    assert f" has no {name}_gone (" in said
    cost = said.partition("a private name that lbclient uses: ")[2]
    assert cost
