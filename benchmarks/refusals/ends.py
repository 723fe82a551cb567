"""A server for each way in which a request can end, in a process of its own."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import grpc

import lbclient
from benchmarks.harness import servers
from benchmarks.harness.linux import schedstat
from benchmarks.harness.processes import running
from benchmarks.refusals.costs import UNIT, Used
from lbclient.server.overload.shedding import Shedding

PATH = "/benchmark.Refusals/Work"
# Seconds. Longer than the deadline of any request that is measured.
SLOW, ENDLESS = 1.5, 1e6
STALL = 0.5  # seconds for which a handler keeps the loop from its work


async def echo(request: bytes, context: Any) -> bytes:
    return request


async def slow(request: bytes, context: Any) -> bytes:
    await asyncio.sleep(SLOW)
    return request


async def endless(request: bytes, context: Any) -> bytes:
    await context.send_initial_metadata(())  # so that its client knows that it is there
    await asyncio.sleep(ENDLESS)
    return request


async def stalling(request: bytes, context: Any) -> bytes:
    time.sleep(STALL)  # noqa: ASYNC251 - nobody else is to have the loop
    return request


def refusing_all() -> Any:
    config = lbclient.ServerConfig(signals={"full": lambda: 1e6})
    return lbclient.server(config=config)


def refusing_all_unanswered() -> Any:
    shedding: Any = Shedding
    shedding.is_flood = lambda *_: True
    return refusing_all()


def with_little_room() -> Any:
    words = ("max_pending_requests", "max_pending_requests_hard_limit")
    options = [(f"grpc.server.{word}", 1) for word in words]
    server: Any = lbclient.server(options=options)
    server._gate.intake.ask_for_few()  # else it takes what the core has no room for
    return server


class Kind(NamedTuple):
    make: Callable[[], Any]
    behavior: Callable[[bytes, Any], Any]
    ends: tuple[str, ...]  # by refusal or status: what is counted
    # A request that comes before all others: none, one that is waited for, or one that
    # stays.
    first: str = ""


KINDS = {
    UNIT: Kind(grpc.aio.server, echo, ("OK",)),
    "served": Kind(lbclient.server, echo, ("OK",)),
    "refused by a signal": Kind(
        refusing_all, echo, ("overloaded", "overloaded-dont-retry")
    ),
    "refused without an answer": Kind(refusing_all_unanswered, echo, ("CANCELLED",)),
    "refused by a limit": Kind(
        lambda: lbclient.server(maximum_concurrent_rpcs=1),
        *(endless, ("overloaded",), "stays"),
    ),
    "refused by grpcio's limit": Kind(
        lambda: grpc.aio.server(maximum_concurrent_rpcs=1),
        *(endless, ("RESOURCE_EXHAUSTED",), "stays"),
    ),
    "too late": Kind(
        lbclient.server, slow, ("overloaded", "overloaded-dont-retry"), "is waited for"
    ),
    "ended in gRPC's core": Kind(with_little_room, stalling, ("CANCELLED",)),
}


async def serve(name: str) -> None:
    kind = KINDS[name]
    await servers.serve(kind.make(), {PATH: kind.behavior})


class Server(NamedTuple):
    pid: int
    port: int

    def used(self) -> Used:
        """By its loop's thread, which is the process's first, and by all."""
        ran = {thread: ran for thread, (ran, _) in schedstat(self.pid).items()}
        return Used(ran[self.pid], sum(ran.values()))


@asynccontextmanager
async def spawned(name: str) -> AsyncIterator[Server]:
    async with running(serve, name) as process:
        port = await process.hear()
        async with before_all(port, KINDS[name].first):
            yield Server(process.pid, port)


@asynccontextmanager
async def before_all(port: int, first: str) -> AsyncIterator[None]:
    if not first:
        yield
        return
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        # A call that may have many answers hears of the first metadata at once.
        method: grpc.aio.UnaryStreamMultiCallable[bytes, bytes]
        method = channel.unary_stream(PATH)
        call = method(b"")
        await (call.initial_metadata() if first == "stays" else call.read())
        yield
