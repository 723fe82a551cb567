"""Real servers of the Search service on loopback, and what they are told to do."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import grpc
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import search_pb2 as pb
import search_pb2_grpc as pb_grpc

from lbclient.core.retries.retry import RATIO
from tests.hosts import Host, Hosted, hosting, unary_unary


class SearchTask(pb_grpc.SearchServicer):
    """Answers with its name. A query's text tells what else to do.

    `sleep 0.2` waits, `abort` refuses as an application does, `fail` raises.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.served = 0
        self.cancelled = 0

    async def _obey(self, text: str, context: Any) -> None:
        self.served += 1
        verb, _, seconds = text.partition(" ")
        try:
            if verb == "sleep":
                await asyncio.sleep(float(seconds))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if verb == "abort":
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such thing")
        if verb == "fail":
            await context.abort(grpc.StatusCode.INTERNAL, "it broke")

    async def Search(self, request: pb.Query, context: Any) -> pb.Answer:
        await self._obey(request.text, context)
        return pb.Answer(text=self.name)

    async def Pages(self, request: pb.Query, context: Any) -> AsyncIterator[pb.Answer]:
        await self._obey(request.text, context)
        count = int(request.text) if request.text.isdigit() else 3
        for page in range(count):
            yield pb.Answer(text=f"{self.name} {page}")

    async def Index(
        self, request_iterator: AsyncIterator[pb.Query], context: Any
    ) -> pb.Answer:
        count = 0
        async for query in request_iterator:
            await self._obey(query.text, context)
            count += 1
        return pb.Answer(text=str(count))

    async def Chat(
        self, request_iterator: AsyncIterator[pb.Query], context: Any
    ) -> AsyncIterator[pb.Answer]:
        async for query in request_iterator:
            await self._obey(query.text, context)
            yield pb.Answer(text=query.text)


class Task:
    """A server, its address and its servicer."""

    def __init__(self, server: Any, address: str, servicer: SearchTask) -> None:
        self.server = server
        self.address = address
        self.servicer = servicer


StartTask = Callable[..., Awaitable[Task]]


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    """Hosts as `hosting` does, until the test's end."""
    async with AsyncExitStack() as stack:

        async def host(*args: Any, **options: Any) -> Hosted:
            return await stack.enter_async_context(hosting(*args, **options))

        yield host


@pytest.fixture
def start(host: Host) -> StartTask:
    """Starts a server made by `make` that has the Search service."""

    async def start(make: Callable[[], Any] = grpc.aio.server, port: int = 0) -> Task:
        at = f"127.0.0.1:{port}"
        hosted = await host(server=make(), at=at, starts=False)
        task = Task(hosted.server, hosted.address, SearchTask(str(hosted.port)))
        pb_grpc.add_SearchServicer_to_server(task.servicer, task.server)
        await task.server.start()
        return task

    return start


async def echo(request: bytes, context: Any) -> bytes:
    return request


ECHO = unary_unary(echo)


def connect(address: str) -> grpc.aio.Channel:
    """Over a connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.insecure_channel(address, options=options)


@pytest.fixture
def search() -> Any:
    """The generated module, `search.Query`, and its stub, `search.SearchStub`."""

    class Search:
        Query = pb.Query
        Answer = pb.Answer
        SearchStub = pb_grpc.SearchStub

    return Search


async def served_by_all(stub: Any, tasks: Sequence[Task], within: float) -> None:
    """Calls until every task has served.

    `within` is what is promised. Whoever fears for it on a busy machine lets the time
    begin late, and does not ask for more of it.
    """
    loop = asyncio.get_running_loop()
    begun_at = loop.time()
    while not all(task.servicer.served for task in tasks):
        await stub.Search(pb.Query(), timeout=5)
        served = [task.servicer.served for task in tasks]
        assert loop.time() - begun_at < within, served


@pytest.fixture(name="served_by_all")
def _served_by_all() -> Callable[..., Awaitable[None]]:
    return served_by_all


async def earn(channel: grpc.aio.Channel, retries: int) -> None:
    """Makes the calls that bring so many retries. No backend has the method."""
    method: Any = channel.unary_unary("/test.Nobody/Has")
    for _ in range(round(retries / RATIO)):
        assert await method(b"").code() is grpc.StatusCode.UNIMPLEMENTED


ESTABLISHED = "01"  # include/net/tcp_states.h


def connections(*ports: int) -> set[tuple[int, int]]:
    """Pairs of a server's port, of these, and a client's: what the kernel counts."""
    found = set()
    # gRPC's sockets are IPv6 ones where there is IPv6, also those of 127.0.0.1.
    tables = [Path("/proc/net") / name for name in ("tcp", "tcp6")]
    lines = [table.read_text().splitlines()[1:] for table in tables if table.exists()]
    for line in chain.from_iterable(lines):
        _, local, remote, state = line.split()[:4]
        port = int(local.rpartition(":")[2], 16)
        if state == ESTABLISHED and port in ports:
            found.add((port, int(remote.rpartition(":")[2], 16)))
    return found


@pytest.fixture(name="connections")
def _connections() -> Callable[..., set[tuple[int, int]]]:
    return connections
