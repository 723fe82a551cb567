"""Packets that are dropped, not refused: nothing says that the other side is gone.

The router between a client and eight servers loses what goes to two of them. Time is
counted in calls, of which a busy machine makes fewer a second, never more.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.faults.network import Network, network
from tests import needs

PROGRAMS = Path(__file__).parent / "partition"
INTERVAL = 1.0  # the client's health_interval
PAUSE = 0.01  # seconds at least from one call to the next
DEADLINE = 1.0  # of each call
ADDRESSES = [f"10.77.2.{n}:50051" for n in range(1, 9)]
LOST = ADDRESSES[2:4]


def run(net: Network, role: str, program: str, *words: str) -> subprocess.Popen[str]:
    command = [*net.inside(role), sys.executable, str(PROGRAMS / program), *words]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    wait_for_line(process, "ready")
    return process


def wait_for_line(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == line + "\n"


def tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")


def test_a_partition_costs_errors_for_two_health_intervals_at_most() -> None:
    target = "ipv4:" + ",".join(ADDRESSES)
    with (
        needs.namespaces(),
        network() as net,
        run(net, "s", "serve.py", *ADDRESSES) as servers,
    ):
        with run(net, "c", "call.py", target, str(INTERVAL), str(PAUSE)) as client:
            net.lose(LOST)
            tell(client, " ".join(LOST))
            wait_for_line(client, "out")
            net.lose(LOST, "del")
            output, _ = client.communicate("reachable\n")
        servers.kill()
    found: dict[str, Any] = json.loads(output)
    failed = [number for number, _, error in found["calls"] if error]
    first_lost = found["lost_at"] - round(DEADLINE / PAUSE)
    assert failed
    assert first_lost <= min(failed)
    assert max(failed) < found["out_at"]
    assert found["out_at"] - found["lost_at"] <= round(2 * INTERVAL / PAUSE)
    answered = {who for n, who, _ in found["calls"] if n >= found["healed_at"]}
    assert {*LOST} <= answered
    assert all(state.startswith("ready") for state in found["states"].values())
