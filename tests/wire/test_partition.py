"""Packets that are dropped, not refused: nothing says that the other side is gone.

Three network namespaces of the test's own, a client's, a router's and one of eight
servers; the router loses what goes to two of them.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import needs

PROGRAMS = Path(__file__).parent / "partition"
INTERVAL = 1.0  # the client's health_interval
ADDRESSES = [f"10.77.2.{n}:50051" for n in range(1, 9)]
LOST = ADDRESSES[2:4]


class Network:
    """client -- router -- servers, in namespaces that nobody else has."""

    def __init__(self) -> None:
        self.names = {role: f"lb{role}{os.getpid()}" for role in "crs"}

    def ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    def inside(self, role: str, *words: str) -> list[str]:
        return ["ip", "netns", "exec", self.names[role], *words]

    def up(self) -> None:
        c, r, s = self.names.values()
        for name in (c, r, s):
            self.ip("netns", "add", name)
            self.ip("-n", name, "link", "set", "lo", "up")
        for role, net in (("c", 1), ("s", 2)):
            end = self.names[role]
            self.ip("-n", end, "link", "add", "veth0", "type", "veth", "peer", "name",
                    f"veth{net}", "netns", r)  # fmt: skip
            for n in range(1, 9) if role == "s" else [1]:
                self.ip("-n", end, "addr", "add", f"10.77.{net}.{n}/24", "dev", "veth0")
            self.ip("-n", r, "addr", "add", f"10.77.{net}.254/24", "dev", f"veth{net}")
            self.ip("-n", end, "link", "set", "veth0", "up")
            self.ip("-n", r, "link", "set", f"veth{net}", "up")
            self.ip("-n", end, "route", "add", "default", "via", f"10.77.{net}.254")
        forward = ("sysctl", "-qw", "net.ipv4.ip_forward=1")
        subprocess.run(self.inside("r", *forward), check=True, capture_output=True)

    def down(self) -> None:
        for name in self.names.values():
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def lose(self, addresses: list[str], change: str) -> None:
        """`add`: what goes there is dropped without a word; `del`: no more."""
        for address in addresses:
            host = address.partition(":")[0]
            self.ip("-n", self.names["r"], "route", change, "blackhole", f"{host}/32")

    def run(self, role: str, program: str, *words: str) -> subprocess.Popen[str]:
        command = self.inside(role, sys.executable, str(PROGRAMS / program), *words)
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process


@pytest.fixture
def network() -> Iterator[Network]:
    needs.program("ip")
    if os.geteuid() != 0:
        needs.skip("network namespaces need root")
    network = Network()
    try:
        try:
            network.up()
        except (OSError, subprocess.CalledProcessError) as error:
            needs.skip(f"no network namespaces here: {error}")
        yield network
    finally:
        network.down()


def test_a_partition_costs_errors_for_two_health_intervals_at_most(
    network: Network,
) -> None:
    with network.run("s", "serve.py", *ADDRESSES) as servers:
        target = "ipv4:" + ",".join(ADDRESSES)
        with network.run("c", "call.py", target, str(INTERVAL)) as client:
            time.sleep(1.0)
            network.lose(LOST, "add")
            lost_at = time.monotonic()
            time.sleep(4 * INTERVAL)
            network.lose(LOST, "del")
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
