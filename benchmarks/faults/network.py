"""Network namespaces of our own, in which routes are lost, and callers inside of them.

client -- router -- servers. What goes to a lost address is dropped without a word, as
where a machine or a link is gone: nobody refuses, nobody resets.
"""

import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

from benchmarks.faults.caller import call
from benchmarks.faults.fleet import Ended, Tally, Task
from benchmarks.harness.processes import ROOT, Process, command_of, program

PORT = 50051


class NoNetworkError(Exception):
    """This user or this machine cannot make network namespaces."""


class Network:
    """client -- router -- servers, in namespaces that nobody else has."""

    def __init__(self) -> None:
        self.names = {role: f"lb{role}{os.getpid()}" for role in "crs"}

    def ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    def inside(self, role: str) -> Sequence[str]:
        return ["ip", "netns", "exec", self.names[role]]

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
        subprocess.run([*self.inside("r"), *forward], check=True, capture_output=True)

    def down(self) -> None:
        for name in self.names.values():
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def lose(self, addresses: Iterable[str], change: str = "add") -> None:
        """`add`: what goes there is dropped without a word; `del`: no more."""
        for address in addresses:
            host = address.partition(":")[0]
            self.ip("-n", self.names["r"], "route", change, "blackhole", f"{host}/32")


@contextmanager
def network() -> Iterator[Network]:
    """Raises NoNetworkError where there can be none."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise NoNetworkError("network namespaces need root and iproute2")
    made = Network()
    try:
        try:
            made.up()
        except (OSError, subprocess.CalledProcessError) as error:
            raise NoNetworkError(f"no network namespaces here: {error}") from error
        yield made
    finally:
        made.down()


@asynccontextmanager
async def far_fleet(
    net: Network, count: int, kind: str, **behaviour: Any
) -> AsyncIterator[list[Task]]:
    """Tasks beyond the router, each with an address of its own; at most eight."""
    hosts = [f"10.77.2.{n}" for n in range(1, count + 1)]
    tasks = [Task(kind, PORT, host=host, inside=net.inside("s")) for host in hosts]
    async with AsyncExitStack() as stack:
        for task in tasks:
            await task.start(**behaviour)
            stack.push_async_callback(task.close)
        yield tasks


class Caller:
    """A client on its side of the router; see `benchmarks.faults.caller`."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def states(self) -> str:
        return str(await self._process.ask("states"))

    async def tally(self) -> Tally:
        """The calls that have ended so far."""
        return Tally(Ended(*call) for call in await self._process.ask("tally"))


@asynccontextmanager
async def caller(net: Network, **told: Any) -> AsyncIterator[Caller]:
    """One that has begun to call."""
    command = [*net.inside("c"), *command_of(call, told)]
    async with program(*command, cwd=ROOT) as process:
        await process.hear()
        yield Caller(process)
