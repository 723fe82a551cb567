"""Long streams on a fleet that grows, on real processes.

    python -m benchmarks.streams            about two minutes
    python -m benchmarks.streams --quick    about one, with a third of the streams

1,000 streams of 4 client processes are spread over 8 backends, each a process. Then 4
more backends start at addresses that all clients know. A backend numbers the messages
of each stream, and a stream that is opened again goes on after a given number, so a
client sees whether one is lost or comes twice.

    max/mean    streams of the fullest backend over the mean
    within      seconds until max/mean is 1.1
    moved       streams that were opened again
    ratio       moved over the least that makes the fleet even: the streams of new ones
    lost        numbers that were missing, or came twice

lbclient, with streams that its clients can resume, beside grpc.aio's round_robin, one
after the other; the latter is watched for 20 s, as its streams do not move. The targets
are 1.1 within 60 s, a ratio of at most 1.05, and nothing lost. Exit status 1 if one is
missed.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any, NamedTuple

import grpc

import lbclient
from benchmarks.harness.figures import table
from benchmarks.harness.measured import Measured
from benchmarks.harness.options import conclude, exit_with, parser_of
from benchmarks.harness.processes import Process, orders, running, say
from benchmarks.harness.servers import listen, target_of
from tests.ports import free_ports

FOLLOW = "/benchmark.Streams/Follow"
BEFORE, JOIN, CLIENTS = 8, 4, 4
STREAMS, QUICK = 1000, 320
PACE = 1.0  # seconds between two messages of a stream
SPREAD, WITHIN, RATIO = 1.1, 60.0, 1.05  # targets
SHORT = 20.0  # seconds; streams of round_robin do not move at all
AFTERWARDS = 10.0  # seconds, in which nothing more is to move
OURS, THEIRS = "lbclient", "grpc.aio round_robin"


# --- in processes of their own ----------------------------------------------------


async def be_backend(port: int) -> None:
    """Says for each order how many streams it has."""
    open_now = 0

    async def follow(request: bytes, _: Any) -> AsyncIterator[bytes]:
        nonlocal open_now
        number = int(request)
        open_now += 1
        try:
            while True:
                number += 1
                yield b"%d" % number
                await asyncio.sleep(PACE)
        finally:
            open_now -= 1

    server = lbclient.server()
    handler: Any = grpc.unary_stream_rpc_method_handler(follow)
    await listen(server, {FOLLOW: handler}, port)
    say("started")
    async for _ in orders():
        say(open_now)


class Reader:
    """Reads one stream for good, and checks its numbers."""

    def __init__(self, opened: Callable[[], Any]) -> None:
        self._opened = opened
        self.messages: Any = None
        self.read = self.lost = 0
        self.has_begun = asyncio.Event()

    async def run(self) -> None:
        while not self.has_begun.is_set():
            with suppress(grpc.RpcError):
                await self._follow()
            await asyncio.sleep(PACE)  # refused, as so many are opened at once

    async def _follow(self) -> None:
        self.messages = self._opened()
        async for message in self.messages:
            number = int(message)
            self.lost += abs(number - self.read - 1)
            self.read = number
            self.has_begun.set()


async def be_client(kind: str, target: str, streams: int) -> None:
    """Says when all streams are read; for each order how many were opened again, were
    lost, and have ended."""
    if kind == OURS:
        channel: Any = lbclient.insecure_channel(target)
    else:
        options = [
            ("grpc.service_config", '{"loadBalancingConfig":[{"round_robin":{}}]}'),
            ("grpc.max_reconnect_backoff_ms", 1000),  # not two minutes
        ]
        channel = grpc.aio.insecure_channel(target, options)
    method: Any = channel.unary_stream(FOLLOW)
    await channel.channel_ready()
    await asyncio.sleep(2.0)  # for the other connections

    def opened() -> Any:
        if kind == OURS:
            return lbclient.resumed(lambda last: method(last or b"0"))
        return method(b"0")

    readers = [Reader(opened) for _ in range(streams)]
    tasks = [asyncio.create_task(reader.run()) for reader in readers]
    await asyncio.gather(*(reader.has_begun.wait() for reader in readers))
    say("all are read")
    async for _ in orders():
        moved = sum(getattr(reader.messages, "moved", 0) for reader in readers)
        lost = sum(reader.lost for reader in readers)
        say([moved, lost, sum(task.done() for task in tasks)])


# --- contenders -------------------------------------------------------------------


class Found(NamedTuple):
    kind: str
    before: list[int]
    after: list[int]
    within: float | None  # seconds; None: not in the time that was waited
    moved: int
    lost: int
    ended: int

    @property
    def spread(self) -> float:
        return spread(self.after)

    @property
    def ratio(self) -> float:
        least = sum(self.before) * JOIN / (BEFORE + JOIN)
        return self.moved / least


def spread(counts: list[int]) -> float:
    return max(counts) * len(counts) / max(1, sum(counts))


async def counts_of(backends: list[Process]) -> list[int]:
    return [await backend.ask("count") for backend in backends]


async def measure(kind: str, streams: int) -> Found:
    ports = free_ports(BEFORE + JOIN)
    target = target_of(ports)
    async with AsyncExitStack() as stack:
        backends: list[Process] = []

        async def begin(some: list[int]) -> None:
            started = [
                await stack.enter_async_context(running(be_backend, port))
                for port in some
            ]
            for backend in started:
                await backend.hear()
            backends.extend(started)

        await begin(ports[:BEFORE])
        clients = [
            await stack.enter_async_context(
                running(be_client, kind, target, streams // CLIENTS)
            )
            for _ in range(CLIENTS)
        ]
        for client in clients:
            await client.hear()
        await asyncio.sleep(5.0)  # new streams may move, too, and must not count
        moved_before = sum([(await client.ask("told"))[0] for client in clients])
        before = await counts_of(backends)
        await begin(ports[BEFORE:])
        began_at, within = time.monotonic(), None
        wait = WITHIN if kind == OURS else SHORT
        while time.monotonic() - began_at < wait:
            await asyncio.sleep(1.0)
            if spread(await counts_of(backends)) <= SPREAD:
                within = time.monotonic() - began_at
                break
        await asyncio.sleep(AFTERWARDS)
        after = await counts_of(backends)
        told = [await client.ask("told") for client in clients]
        moved, lost, ended = map(sum, zip(*told, strict=True))
        return Found(kind, before, after, within, moved - moved_before, lost, ended)


def row(one: Found) -> list[str]:
    within = "never" if one.within is None else f"{one.within:.0f} s"
    return [
        one.kind,
        f"{spread(one.before):.2f}",
        f"{one.spread:.2f}",
        within,
        f"{one.moved}",
        f"{one.ratio:.2f}",
        f"{one.lost}",
        f"{one.ended}",
    ]


def main() -> int:
    parser = parser_of("streams", __doc__, quick=f"{QUICK} streams")
    given = parser.parse_args()
    streams = QUICK if given.quick else STREAMS
    found = [asyncio.run(measure(kind, streams)) for kind in (OURS, THEIRS)]
    head = ["contender", "before", "after", "within", "moved", "ratio", "lost", "ended"]
    print(table([head, *map(row, found)], left=1))
    ours = found[0]
    for one in found:
        counts = dict(sorted(Counter(one.after).items()))
        print(f"{one.kind}, backends by their number of streams: {counts}")
    missed = []
    if ours.within is None:
        missed.append(f"max/mean {SPREAD} within {WITHIN:.0f} s")
    if ours.ratio > RATIO:
        missed.append(f"moved at most {RATIO} times the least")
    if ours.lost or ours.ended:
        missed.append("nothing is lost")
    measured = [
        Measured(name="max/mean of streams after growth", value=ours.spread),
        Measured(name="streams moved over the least", value=ours.ratio),
    ]
    return conclude(given, found, missed, measured=measured)


if __name__ == "__main__":
    exit_with(main)
