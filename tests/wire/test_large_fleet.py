"""`make fleet` in its quick form: real processes, judged by counts and not by times."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.wire.test_demo import FLEET

PROGRAM = FLEET / "large.py"


@pytest.mark.slow
def test_a_fleet_larger_than_a_subset_shows_its_four_parts(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--quick", "--json", str(file)],
        capture_output=True,
        text=True,
        timeout=140,
    )
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(file.read_text())
    plan = found["plan"]
    assert plan["subset_size"] < plan["backends"]

    clients, size = plan["clients"], plan["subset_size"]
    assert found["connections"] == [clients * size // plan["backends"]] * 20
    for resize in found["resizes"]:
        assert resize["opened"] == resize["computed"] <= resize["needed"], resize
        assert sum(resize["counts"]) == clients * size

    assert found["quotas"]["reports"]["RESOURCE_EXHAUSTED"] > 0
    assert "RESOURCE_EXHAUSTED" not in found["quotas"]["web"]

    alone, behind, without = found["batch"].values()
    assert alone["connections"] == 0
    assert behind["connections"] == plan["backends"], "those of one proxy"
    assert without["connections"] == plan["stock"] * plan["backends"]
    for case in (behind, without):
        assert case["web"]["OK"] > 0
        assert case["job"]["OK"] > 0

    said = " ".join(done.stdout.split())
    assert len(found["verdict"]) == 5
    for finding in found["verdict"]:
        assert finding["text"] in said
    assert done.returncode == int(not all(one["kept"] for one in found["verdict"]))


def test_bad_arguments_are_status_2() -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--fast"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "unrecognized arguments: --fast" in done.stderr
