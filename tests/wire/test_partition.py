"""Packets that are dropped, not refused: nothing says that the other side is gone.

The router between a client and eight servers loses what goes to two of them.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.faults.network import Network, network
from tests import needs

PROGRAMS = Path(__file__).parent / "partition"
INTERVAL = 1.0  # the client's health_interval
ADDRESSES = [f"10.77.2.{n}:50051" for n in range(1, 9)]
LOST = ADDRESSES[2:4]


def run(net: Network, role: str, program: str, *words: str) -> subprocess.Popen[str]:
    command = [*net.inside(role), sys.executable, str(PROGRAMS / program), *words]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_partition_costs_errors_for_two_health_intervals_at_most() -> None:
    target = "ipv4:" + ",".join(ADDRESSES)
    with (
        needs.namespaces(),
        network() as net,
        run(net, "s", "serve.py", *ADDRESSES) as servers,
    ):
        with run(net, "c", "call.py", target, str(INTERVAL)) as client:
            time.sleep(1.0)
            net.lose(LOST)
            lost_at = time.monotonic()
            time.sleep(4 * INTERVAL)
            net.lose(LOST, "del")
            healed_at = time.monotonic()
            output, _ = client.communicate(" ".join(LOST) + "\n")
        servers.kill()
    found: dict[str, Any] = json.loads(output)
    errors = [(at, error) for at, _, error in found["calls"] if error]
    assert errors
    assert all(lost_at - 1.0 <= at <= lost_at + 2 * INTERVAL for at, _ in errors)
    for address in LOST:
        assert any(at > healed_at for at, who, _ in found["calls"] if who == address)
    assert all(state.startswith("ready") for state in found["states"].values())
