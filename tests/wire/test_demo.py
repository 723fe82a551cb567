"""The demo as a user runs it: real processes, and none of them left behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
FLEET = ROOT / "examples" / "fleet"
SMALL = "--quick --backends 2 --clients 1 --rate 100 --policies weighted_least_loaded"


def demo(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "lbclient", "demo", *arguments]


def children(parent: int) -> list[int]:
    """Processes whose parent this is, zombies excluded."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, ppid = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # it ended meanwhile
        if int(ppid) == parent and state != "Z":
            found.append(int(stat.parent.name))
    return found


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_a_small_fleet_plays_all_phases_and_tells_what_it_found(
    tmp_path: Path,
) -> None:
    file = tmp_path / "result.json"
    done = subprocess.run(
        demo(*SMALL.split(), "--json", str(file)),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout, "no terminal, no colours"

    result: dict[str, Any] = json.loads(file.read_text())
    assert result["configuration"]["backends"] == 2
    phases = {phase["name"]: phase for phase in result["phases"]}
    assert [*phases] == ["weighted_least_loaded", "restart", "kill", "freeze"]
    for phase in phases.values():
        assert phase["title"] in done.stdout
        assert phase["calls"] > 10  # of a hundred a second, where a phase may be short
        assert phase["skipped"] == 0
        assert 0 < phase["p50"] <= phase["p99"]
        assert sum(phase["failures"].values()) == phase["failed"]

    balance = phases["weighted_least_loaded"]["balance"]
    assert len(balance["utilization"]) == 2
    assert balance["max_over_mean"] >= 1.0
    assert phases["restart"]["failed"] == 0
    assert phases["kill"]["failed"] <= phases["kill"]["facts"]["in_flight"]
    assert phases["freeze"]["failed"] == 0
    words = " ".join(done.stdout.split())
    for finding in result["verdict"]:
        assert finding["text"] in words


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGINT, 130),
        (signal.SIGTERM, 143),
        (signal.SIGKILL, -signal.SIGKILL),
    ],
    ids=["SIGINT", "SIGTERM", "SIGKILL"],
)
def test_no_process_is_left_behind(number: signal.Signals, status: int) -> None:
    process = subprocess.Popen(
        demo(*SMALL.split()), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        try:
            wait_until(lambda: len(children(process.pid)) == 3)
            fleet = children(process.pid)
            process.send_signal(number)
            assert process.wait(20) == status
        finally:
            process.kill()
        wait_until(lambda: not [pid for pid in fleet if is_running(pid)])
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def conclude(*phases: str) -> subprocess.CompletedProcess[str]:
    """The demo's end after such phases, which nobody played."""
    program = f"""
from demo import conclude
from figures import Balance, Phase
from options import parse
import sys
sys.exit(conclude(parse([]), [{", ".join(phases)}]))
"""
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(FLEET)},
        timeout=60,
    )


def test_only_a_call_lost_in_the_rolling_restart_is_a_failure_of_the_run() -> None:
    lost = conclude(
        "Phase('restart', 'rolling restart', calls=5000, failed=2, "
        "failures={'UNAVAILABLE: gone': 2}, facts={'backends': 8})"
    )
    assert lost.returncode == 1
    assert "MISSED  Rolling restart of 8 backends: 5,000 calls, 2 FAILED." in (
        lost.stdout
    )
    assert "rolling restart: 2 x UNAVAILABLE: gone" in lost.stdout

    uneven = conclude(
        "Phase('round_robin', 'round robin', balance=Balance((0.9, 0.3)))",
        "Phase('weighted_round_robin', 'weighted', balance=Balance((0.9, 0.3)))",
        "Phase('kill', 'killed', failed=3, facts={'backend': 'b', 'in_flight': 2})",
    )
    assert uneven.returncode == 0
    assert "        round robin: busiest backend 1.50 x" in uneven.stdout
    assert "MISSED  weighted: busiest backend 1.50 x" in uneven.stdout
    assert "MISSED  SIGKILL: 2 in flight on b" in uneven.stdout


def test_bad_arguments_end_with_status_two() -> None:
    done = subprocess.run(
        demo("--load", "2"), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "want a number from 0.05 to 0.95, not '2'" in done.stderr
