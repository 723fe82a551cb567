"""A fleet is doubled behind DNS: how long until the new backends have their share.

    python -m benchmarks.scale_up            about 2 minutes
    python -m benchmarks.scale_up --quick    about half a minute

Each contender has a fleet and a client to itself, in processes, all at the same time:
four servers with one port on addresses of loopback, and open load. Then a name server
tells eight addresses instead of four, for 5 s each time. The new backends have their
share when they got nine tenths of it, half of all requests, within a second.

grpcio looks a name up again when a connection ends, and not before. The usual remedy is
that servers end connections of some age: here of 10 s, as one more contender. A fleet
in which that never came counts with all the time that was waited.

In namespaces of its own (unshare), where /etc/resolv.conf names the name server.
"""

import asyncio
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dns.flags
import dns.message
import dns.rdatatype
import dns.rrset
import grpc

import lbclient
from benchmarks.harness.echo import native
from benchmarks.harness.figures import table
from benchmarks.harness.load import steady
from benchmarks.harness.measured import Measured
from benchmarks.harness.options import conclude, exit_with, parser_of
from benchmarks.harness.processes import ROOT, Process, orders, running, say
from benchmarks.harness.servers import handlers

NAME, TTL = "fleet.test", 5
HOSTS = [f"127.0.0.{number}" for number in range(1, 9)]
FEW = len(HOSTS) // 2
FIRST_PORT = 50051  # each contender's fleet has another one
WORK = "/benchmark.ScaleUp/Work"
RATE, DEADLINE = 60.0, 5.0  # requests a second, and seconds
TAKES = 0.02  # seconds, of a request
SHARE = 0.9  # of their half, which new backends got
AGE = 10.0  # seconds of a connection, with the remedy
SETTLE, WINDOW = 5.0, 1.0  # seconds
WAIT, QUICK = 90.0, 25.0  # seconds at most

OURS, REMEDY = "lbclient", "round_robin, connections of 10 s"
KINDS = (OURS, "pick_first", "round_robin", "weighted_round_robin", REMEDY)


# --- in processes of their own ----------------------------------------------------


async def be_fleet(kind: str, port: int) -> None:
    """Says for each order how many requests each server has had."""
    counts, servers = [0] * len(HOSTS), []
    options: list[tuple[str, Any]] = []
    if kind == REMEDY:
        ages = ("grpc.max_connection_age_ms", "grpc.max_connection_age_grace_ms")
        options = [(option, round(1e3 * AGE)) for option in ages]
    for number, host in enumerate(HOSTS):

        async def work(request: bytes, context: Any, number: int = number) -> bytes:
            counts[number] += 1
            await asyncio.sleep(TAKES)
            return b""

        server = lbclient.server(options=options)
        server.add_generic_rpc_handlers(handlers({WORK: work}))
        server.add_insecure_port(f"{host}:{port}")
        await server.start()
        servers.append(server)  # or it would be collected
    say("started")
    async for _ in orders():
        say(counts)


async def be_client(kind: str, port: int) -> None:
    target = f"dns:///{NAME}:{port}"
    if kind == OURS:
        channel: grpc.aio.Channel = lbclient.insecure_channel(target)
    else:
        channel = native(target, kind.partition(",")[0])
    method: Any = channel.unary_unary(WORK)
    say("begun")
    ends: dict[str, int] = {}
    calls = asyncio.create_task(steady(RATE, SETTLE + 2 * WAIT, lambda: one()))

    async def one() -> None:
        code = "OK"
        try:
            await method(b"", timeout=DEADLINE)
        except grpc.aio.AioRpcError as error:
            code = error.code().name
        ends[code] = ends.get(code, 0) + 1

    async for _ in orders():
        say(ends)
    await calls


class NameServer(asyncio.DatagramProtocol):
    """Knows the addresses of every name that it is asked for."""

    def __init__(self) -> None:
        self.hosts: Sequence[str] = HOSTS[:FEW]

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, address: Any) -> None:
        query = dns.message.from_wire(data)
        question = query.question[0]
        answer = dns.message.make_response(query)
        answer.flags |= dns.flags.RA
        if question.rdtype == dns.rdatatype.A:
            of = dns.rrset.from_text(question.name, TTL, "IN", "A", *self.hosts)
            answer.answer.append(of)
        self._transport.sendto(answer.to_wire(), address)


# --- contenders -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Figures:
    kind: str
    took: float | None  # seconds; None: longer than was waited
    share: float  # of requests, in the last second
    failed: int


@dataclass(frozen=True, slots=True)
class Peer:
    kind: str
    fleet: Process
    client: Process

    async def share_of_new(self) -> float:
        before = await self.fleet.ask("count")
        await asyncio.sleep(WINDOW)
        counts: list[int] = [
            now - then
            for now, then in zip(await self.fleet.ask("count"), before, strict=True)
        ]
        new = sum(counts[FEW:])
        return new / max(1, sum(counts))

    async def follow(self, wait: float) -> Figures:
        began_at, took = time.monotonic(), None
        while took is None and time.monotonic() - began_at < wait:
            share = await self.share_of_new()
            if share >= SHARE * (1 - FEW / len(HOSTS)):
                took = time.monotonic() - began_at
        ends = await self.client.ask("ends")
        failed = sum(ends.values()) - ends.get("OK", 0)
        return Figures(self.kind, took, share, failed)


@asynccontextmanager
async def peer_of(kind: str, port: int) -> AsyncIterator[Peer]:
    async with running(be_fleet, kind, port) as fleet:
        await fleet.hear()
        async with running(be_client, kind, port) as client:
            await client.hear()
            yield Peer(kind, fleet, client)


async def measure(wait: float) -> list[Figures]:
    loop, names = asyncio.get_running_loop(), NameServer()
    await loop.create_datagram_endpoint(lambda: names, local_addr=("127.0.0.1", 53))
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        peers = [
            await enter(peer_of(kind, FIRST_PORT + number))
            for number, kind in enumerate(KINDS)
        ]
        await asyncio.sleep(SETTLE)
        names.hosts = HOSTS
        return await asyncio.gather(*(peer.follow(wait) for peer in peers))


def told(found: Sequence[Figures], wait: float) -> list[Measured]:
    seconds = {one.kind: one.took or wait for one in found}
    what = "seconds until new backends have their share"
    figures = [Measured(name=f"{what}: {OURS}", value=seconds[OURS], unit="s")]
    for one in found:
        if one.kind != OURS:
            ratio = seconds[OURS] / seconds[one.kind]
            name = f"{what}, {OURS} / {one.kind}"
            if one.took is None:
                name += f" (not within {wait:.0f} s)"
            figures.append(Measured(name=name, value=ratio, better="less"))
    failed = {one.kind: one.failed for one in found}
    return [*figures, Measured(name="failed calls", value=failed[OURS], better="less")]


def row(one: Figures) -> list[str]:
    took = "never" if one.took is None else f"{one.took:.0f}"
    return [one.kind, took, f"{one.share:.0%}", f"{one.failed}"]


# --- namespaces -------------------------------------------------------------------

ALONE = ("unshare", "--map-root-user", "--net", "--mount", "sh", "-ec")


def inside(words: Sequence[str]) -> int:
    """Runs itself where it is the name server; returns the exit status."""
    files = {"resolv.conf": "nameserver 127.0.0.1\n", "nsswitch.conf": "hosts: dns\n"}
    with tempfile.TemporaryDirectory() as folder:
        steps = ["ip link set lo up"]
        for name, text in files.items():
            file = Path(folder) / name
            file.write_text(text)
            steps.append(f"mount --bind {shlex.quote(str(file))} /etc/{name}")
        command = [sys.executable, "-m", "benchmarks.scale_up", "--inside", *words]
        steps.append("exec " + shlex.join(command))
        return subprocess.run(
            [*ALONE, "\n".join(steps)], cwd=ROOT, check=False
        ).returncode


def main() -> int:
    parser = parser_of("scale_up", __doc__, quick=f"waits {QUICK:.0f} s at most")
    parser.add_argument("--inside", action="store_true", help="in such namespaces")
    given = parser.parse_args()
    if not given.inside:
        return inside(sys.argv[1:])
    wait = QUICK if given.quick else WAIT
    found = asyncio.run(measure(wait))
    head = ["contender", "seconds", "share at last", "failed calls"]
    print(table([head, *map(row, found)], left=1))
    return conclude(given, found, None, measured=told(found, wait))


if __name__ == "__main__":
    exit_with(main)
