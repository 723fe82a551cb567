"""Nothing is left of calls, however they end: no place, no task, no memory, no socket.

Each arity makes thousands of calls while the backends are restarted in turn. What is
made once and kept is there after the first of them, so what the rest leaves is what
calls leave, and they are so many that a short string of each would show. The
servers share the process, so what calls leave in a server shows as well.
"""

import asyncio
import gc
import logging
import os
import sys
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import cycle
from random import Random
from typing import Any

import grpc
import pytest
import search_pb2 as pb
import search_pb2_grpc as pb_grpc

import lbclient
from lbclient.config import ServerConfig
from tests.waiting import let_pass
from tests.wire.conftest import SearchTask

FIRST = 2000  # calls
STRETCH = 400  # calls; few, for to trace memory makes them three times as slow
# The first ones are grown by servers made anew, of which there are 3, and by the last
# reports of each backend, of which so many are kept.
STRETCHES = 20
AT_ONCE = 32
BACKENDS = 3
CALLS_PER_RESTART = 200
CACHED = type(lru_cache(len))
SHORT_STRING = sys.getsizeof("a string")  # bytes

Eventually = Callable[..., Awaitable[None]]


class Fleet:
    """Servers of ours on ports that stay the same when they are restarted."""

    def __init__(self) -> None:
        self._servers: dict[int, lbclient.Server] = {}
        self._endings = cycle([_at_once, lbclient.Server.drain])
        self.restarts = 0

    async def start(self, port: int = 0) -> None:
        server = lbclient.server(config=ServerConfig(lame_duck_quiet=0.05))
        pb_grpc.add_SearchServicer_to_server(SearchTask("a task"), server)
        port = server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        self._servers[port] = server

    async def restart_one(self) -> None:
        """The one that has served longest, every other time in order."""
        port, server = next(iter(self._servers.items()))
        self._servers[port] = self._servers.pop(port)  # last in turn
        await next(self._endings)(server)
        await self.start(port)
        self.restarts += 1

    def target(self) -> str:
        return "ipv4:" + ",".join(f"127.0.0.1:{port}" for port in self._servers)

    def statistics(self) -> list[lbclient.ServerStatistics]:
        return [server.statistics() for server in self._servers.values()]

    def active(self) -> int:
        return sum(said.active for said in self.statistics())

    async def stop(self) -> None:
        for server in self._servers.values():
            await server.stop(None)


async def _at_once(server: lbclient.Server) -> None:
    await server.stop(None)


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    fleet = Fleet()
    for _ in range(BACKENDS):
        await fleet.start()
    yield fleet
    await fleet.stop()


class Caller:
    """Makes one call at a time, and ends it in one of the ways that there are."""

    def __init__(self, stub: Any, method: str, seed: int) -> None:
        self._method = getattr(stub, method)
        self._sends_many = method in ("Index", "Chat")
        self._gets_many = method in ("Pages", "Chat")
        self._writes = False  # this call's requests, instead of having them fetched
        self._rng = Random(f"{method}/{seed}")
        self.ends: Counter[str] = Counter()

    async def call(self) -> None:
        end = self._rng.choice(
            [self.whole, self.given_up, self.cancelled, self.dropped, self.late]
            + [self.half_read] * self._gets_many
        )
        self.ends[end.__name__] += 1
        # A deadline that passes while requests are fetched cancels, in grpc.aio.
        with suppress(grpc.aio.AioRpcError, TimeoutError, asyncio.CancelledError):
            await end()

    async def whole(self) -> None:
        await self._finish(self._begin())

    async def given_up(self) -> None:
        async with asyncio.timeout(self._moment()):
            await self._finish(self._begin())

    async def cancelled(self) -> None:
        call = self._begin()
        await asyncio.sleep(self._moment())
        call.cancel()

    async def dropped(self) -> None:
        call = self._begin()
        await asyncio.sleep(self._moment())
        del call

    async def late(self) -> None:
        await self._finish(self._begin(timeout=self._moment()))

    async def half_read(self) -> None:
        call = self._begin()
        await self._write(call)
        async for _ in call:
            break

    def _moment(self) -> float:
        """Before the call is sent, or somewhere about its answer."""
        return self._rng.choice([0.0, self._rng.uniform(0.0, 0.01)])

    def _query(self) -> pb.Query:
        return pb.Query(text=self._rng.choice(["", "9", "sleep 0.002", "abort"]))

    def _begin(self, timeout: float = 10.0) -> Any:
        if not self._sends_many:
            return self._method(self._query(), timeout=timeout)
        self._writes = self._sends_many and self._rng.random() < 0.5
        return self._method(None if self._writes else self._queries(), timeout=timeout)

    async def _queries(self) -> AsyncIterator[pb.Query]:
        for _ in range(2):
            yield self._query()

    async def _write(self, call: Any) -> None:
        if self._writes:
            with suppress(Exception):  # it is over: reading tells why
                await call.write(self._query())
                await call.done_writing()

    async def _finish(self, call: Any) -> None:
        await self._write(call)
        if self._gets_many:
            async for _ in call:
                pass
        else:
            await call


async def make_calls(callers: list[Caller], fleet: Fleet, calls: int) -> None:
    left = iter(range(calls))

    async def work(caller: Caller) -> None:
        for n in left:
            if n % CALLS_PER_RESTART == AT_ONCE:
                await fleet.restart_one()
            await caller.call()

    await asyncio.gather(*map(work, callers))


class Surroundings:
    """What calls could leave something in."""

    def __init__(
        self, channel: lbclient.Channel, fleet: Fleet, eventually: Eventually
    ) -> None:
        self._channel = channel
        self._fleet = fleet
        self._eventually = eventually
        self.tasks = self.files = sys.maxsize  # before

    def is_quiet(self) -> bool:
        said = self._channel.statistics()
        return (
            {backend.state for backend in said.backends} == {"ready"}
            and not any(backend.in_flight for backend in said.backends)
            and not (said.in_flight or said.waiting or said.draining)
            and not self._fleet.active()
            and len(asyncio.all_tasks()) <= self.tasks
            and open_files() <= self.files
        )

    def seen(self) -> list[object]:
        open_now = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
        files = [os.readlink(path) for path in open_now if os.path.exists(path)]
        said = self._channel.statistics(), self._fleet.statistics()
        return [*said, files, *asyncio.all_tasks()]

    async def settle(self) -> None:
        """Returns when there is nothing more than before; fails if that never is."""
        forget()
        for _ in range(3):  # a call that is collected ends a little later
            gc.collect()
            await self._eventually(self.is_quiet, self.seen)
            await let_pass(0.05)

    async def remember(self) -> None:
        await self.settle()
        self.tasks, self.files = len(asyncio.all_tasks()), open_files()


def forget() -> None:
    """Empties our caches, which are bounded and may be anything between."""
    for thing in gc.get_objects():
        if isinstance(thing, CACHED) and thing.__module__.startswith("lbclient."):
            thing.cache_clear()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def traced_memory() -> Iterator[Callable[[], int]]:
    """Bytes in use, of those asked for since the first look."""

    def traced_memory() -> int:
        if not tracemalloc.is_tracing():
            tracemalloc.start()
        return tracemalloc.get_traced_memory()[0]

    yield traced_memory
    tracemalloc.stop()


@pytest.mark.parametrize("method", ["Search", "Pages", "Index", "Chat"])
async def test_calls_leave_nothing_however_they_end(
    method: str,
    fleet: Fleet,
    search: Any,
    eventually: Eventually,
    traced_memory: Callable[[], int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    # grpcio logs refusals of calls that have ended: pytest keeps these, and all frames.
    caplog.set_level(logging.CRITICAL + 1)
    async with lbclient.insecure_channel(fleet.target()) as channel:
        stub = search.SearchStub(channel)
        callers = [Caller(stub, method, seed) for seed in range(AT_ONCE)]
        surroundings = Surroundings(channel, fleet, eventually)
        await channel.channel_ready()
        await surroundings.remember()

        await make_calls(callers, fleet, FIRST)
        await surroundings.settle()
        made = FIRST
        grown: list[tuple[int, int]] = []  # objects and bytes
        objects, memory = len(gc.get_objects()), traced_memory()
        # What is made again, and larger, grows at some time; what leaks does so always.
        while not any(map(is_steady, grown)) and len(grown) < STRETCHES:
            await make_calls(callers, fleet, STRETCH)
            await surroundings.settle()
            before, objects = objects, len(gc.get_objects())
            memory_before, memory = memory, traced_memory()
            grown.append((objects - before, memory - memory_before))
            made += STRETCH

        calls = channel.statistics().calls
    assert any(map(is_steady, grown)), grown
    assert sum(calls.values()) == made
    assert calls.keys() >= {"OK", "CANCELLED", "DEADLINE_EXCEEDED", "NOT_FOUND"}
    assert sum(sum(caller.ends.values()) for caller in callers) == made
    assert fleet.restarts >= made // CALLS_PER_RESTART


def is_steady(grown: tuple[int, int]) -> bool:
    """Fewer objects than one in ten calls, less memory than a short string of each."""
    objects, memory = grown
    return objects < STRETCH / 10 and memory < STRETCH * SHORT_STRING / 2
