"""A server that finds out how many requests at a time are useful, on the wire."""

import asyncio
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from math import inf
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc import StatusCode

from lbclient import wire
from lbclient.config import ServerConfig
from lbclient.core.overload.concurrency import (
    ConcurrencyLimit,
    RequestInFlight,
    RequestOutcome,
)
from lbclient.server import Server
from tests.hosts import Host, Passing, unary_stream, unary_unary

ONE, MANY = "/test.Service/One", "/test.Service/Many"
ADAPTIVE = ServerConfig(adaptive_concurrency=True)
FULL = "Concurrent RPC limit exceeded!"
LONG = 10_000  # looks, as a limit takes some windows to find


@pytest.fixture
async def threads() -> AsyncIterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(10)
    yield pool
    await asyncio.to_thread(pool.shutdown)


def limit_of(server: Server) -> ConcurrencyLimit:
    adaptive = server._gate.adaptive
    assert adaptive is not None
    return adaptive.limit


def concurrency(server: Server) -> Any:
    signals = {signal.name: signal for signal in server.statistics().signals}
    return signals["concurrency"]


class Waiting:
    """Handlers that wait until they may go; `quickly` at once."""

    def __init__(self) -> None:
        self.going = asyncio.Event()

    def handlers(self) -> dict[str, Any]:
        async def respond(request: bytes, _context: Any) -> bytes:
            if request != b"quickly":
                await self.going.wait()
            return request

        async def generate(request: bytes, _context: Any) -> AsyncIterator[bytes]:
            yield request
            await self.going.wait()

        return {
            ONE: unary_unary(respond),
            MANY: unary_stream(generate),
        }


async def limited(server: Server, channel: grpc.aio.Channel, places: float) -> Any:
    """A server that has found out already; returns its method."""
    one: Any = channel.unary_unary(ONE)
    for _ in range(2):  # with interceptors a method is known from its second request on
        await one(b"quickly")
    limit = limit_of(server)
    limit._resize(places)
    limit._probe._next_at = inf
    return one


@pytest.mark.parametrize("interceptors", [(), (Passing(),)])
async def test_what_finds_no_place_is_refused_as_by_a_limit_that_was_set(
    host: Host, eventually: Any, interceptors: Any
) -> None:
    waiting = Waiting()
    server, _, channel = await host(
        waiting.handlers(), config=ADAPTIVE, interceptors=interceptors
    )
    one = await limited(server, channel, 2.0)
    await eventually(lambda: limit_of(server).active == 0)
    many: Any = channel.unary_stream(MANY)
    streams = [many(b"") for _ in range(5)]
    for stream in streams:  # which take no place
        await stream.read()
    served = [one(b"") for _ in range(3)]
    await eventually(lambda: limit_of(server).active == 3)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await one(b"")
    assert refused.value.code() is StatusCode.RESOURCE_EXHAUSTED
    assert refused.value.details() == FULL
    trailers = dict(tuple(refused.value.trailing_metadata()))
    assert trailers[wire.REFUSAL_KEY] == "overloaded"
    another = many(b"")  # and are not refused for want of one
    await another.read()
    assert concurrency(server).value == 1.0
    assert server.statistics().refused["concurrency"]["CRITICAL"] == 1
    waiting.going.set()
    assert [await call.code() for call in served] == [StatusCode.OK] * 3
    await eventually(lambda: limit_of(server).active == 0)
    assert await one(b"") == b""


async def test_the_last_places_are_for_the_more_critical(
    host: Host, eventually: Any
) -> None:
    waiting = Waiting()
    server, _, channel = await host(waiting.handlers(), config=ADAPTIVE)
    one = await limited(server, channel, 8.0)
    await eventually(lambda: limit_of(server).active == 0)
    served = [one(b"") for _ in range(10)]
    await eventually(lambda: limit_of(server).active == 10)
    sheddable = ((wire.CRITICALITY_KEY, "SHEDDABLE"),)
    assert await one(b"", metadata=sheddable).code() is StatusCode.RESOURCE_EXHAUSTED
    served.append(one(b""))
    await eventually(lambda: limit_of(server).active == 11)
    assert await one(b"").code() is StatusCode.RESOURCE_EXHAUSTED
    counts = server.statistics().refused["concurrency"]
    assert (counts["SHEDDABLE"], counts["CRITICAL"]) == (1, 1)
    waiting.going.set()
    assert [await call.code() for call in served] == [StatusCode.OK] * 11


async def test_a_request_whose_client_leaves_gives_its_place_back(
    host: Host, eventually: Any
) -> None:
    waiting = Waiting()
    server, _, channel = await host(waiting.handlers(), config=ADAPTIVE)
    one = await limited(server, channel, 2.0)
    await eventually(lambda: limit_of(server).active == 0)
    calls = [one(b"") for _ in range(3)]
    await eventually(lambda: limit_of(server).active == 3)
    for call in calls:
        call.cancel()
    await eventually(lambda: limit_of(server).active == 0)


SERVED_IN = 0.05  # seconds, at least


def served_slowly(request: bytes) -> Any:
    """Handlers of one method: a coroutine, and one in a thread. "no" fails at once."""

    async def respond(request: bytes, context: Any) -> bytes:
        if request == b"no":
            await context.abort(StatusCode.NOT_FOUND, "no")
        if request == b"raise":
            raise ValueError(request)
        await asyncio.sleep(SERVED_IN)
        return request

    def work(request: bytes, context: Any) -> bytes:
        if request == b"no":
            context.abort(StatusCode.NOT_FOUND, "no")
        if request == b"raise":
            raise ValueError(request)
        time.sleep(SERVED_IN)
        return request

    return respond if request == b"async" else work


@pytest.mark.parametrize("kind", [b"async", b"thread"])
@pytest.mark.parametrize("bad", [b"no", b"raise"])
async def test_what_fails_at_once_is_no_latency(
    host: Host, threads: ThreadPoolExecutor, eventually: Any, kind: bytes, bad: bytes
) -> None:
    handler = unary_unary(served_slowly(kind))
    server, _, channel = await host(
        {ONE: handler}, config=ADAPTIVE, migration_thread_pool=threads
    )
    one: Any = channel.unary_unary(ONE)
    for request in 3 * [b"", bad, bad]:
        await one(request).code()
    (method,) = limit_of(server)._methods
    await eventually(lambda: limit_of(server).active == 0)
    assert method.baseline >= SERVED_IN


@pytest.mark.parametrize("customer", [None, lambda _context: "greedy"])
async def test_what_a_quota_refuses_is_no_latency(
    host: Host, eventually: Any, customer: Any
) -> None:
    """It is refused after it has taken its place."""

    async def spin(request: bytes, _context: Any) -> bytes:
        began_at = time.thread_time()
        while time.thread_time() < began_at + SERVED_IN:
            pass
        return request

    handler = unary_unary(spin)
    config = ServerConfig(
        adaptive_concurrency=True, customer=customer, default_quota=0.01
    )
    server, _, channel = await host({ONE: handler}, config=config)
    one: Any = channel.unary_unary(ONE)

    async def refused() -> int:
        await one(b"").code()
        return sum(server.statistics().refused["quota"].values())

    while await refused() < 9:
        pass
    (method,) = limit_of(server)._methods
    await eventually(lambda: limit_of(server).active == 0)
    assert method.baseline >= SERVED_IN


@pytest.mark.parametrize("kind", [b"async", b"thread"])
async def test_what_is_given_up_is_known_for_that(
    host: Host,
    threads: ThreadPoolExecutor,
    eventually: Any,
    monkeypatch: pytest.MonkeyPatch,
    kind: bytes,
) -> None:
    handler = unary_unary(served_slowly(kind))
    server, _, channel = await host(
        {ONE: handler}, config=ADAPTIVE, migration_thread_pool=threads
    )
    one: Any = channel.unary_unary(ONE)
    limit = limit_of(server)
    outcomes: list[RequestOutcome] = []
    end = limit.end

    def noting(request: RequestInFlight, now: float) -> None:
        end(request, now)
        outcomes.append(request.outcome)

    monkeypatch.setattr(limit, "end", noting)
    await one(b"")  # takes no place, as nothing is known of the method
    await eventually(lambda: len(outcomes) == 1)
    call = one(b"")
    await eventually(lambda: limit.active == 1)
    call.cancel()
    await eventually(lambda: len(outcomes) == 2)
    await one(b"")
    await eventually(lambda: len(outcomes) == 3)
    served = RequestOutcome.SERVED
    assert outcomes == [served, RequestOutcome.GIVEN_UP, served]


async def keep_asking(method: Any) -> None:
    while True:
        try:
            await method(b"")
        except grpc.aio.AioRpcError:
            await asyncio.sleep(0.1)  # or this process has no time for the others


async def test_the_size_of_a_pool_is_found_and_followed(
    host: Host, eventually: Any
) -> None:
    """64 stock clients that ask again and again; the pool grows."""
    places = asyncio.Semaphore(4)

    async def work(request: bytes, _context: Any) -> bytes:
        async with places:
            await asyncio.sleep(0.04)
        return request

    handler = unary_unary(work)
    server, _, channel = await host({ONE: handler}, config=ADAPTIVE)
    one: Any = channel.unary_unary(ONE)
    limit = limit_of(server)

    for _ in range(20):  # one by one, which shows what a free place is like
        await one(b"")
    assert concurrency(server).value == 0.0
    clients = [asyncio.create_task(keep_asking(one)) for _ in range(64)]
    await eventually(lambda: limit.limit <= 8, turns=LONG)
    assert server.statistics().refused["concurrency"]["CRITICAL"] > 0
    for _ in range(8):
        places.release()
    await eventually(lambda: limit.limit >= 12, turns=LONG)
    for client in clients:
        client.cancel()
    await asyncio.wait(clients)


async def test_by_default_what_is_in_time_is_not_refused(
    host: Host,
    threads: ThreadPoolExecutor,
    eventually: Any,
) -> None:
    """150 clients, of whom each waits for 15 turns in a pool of threads."""

    def work(request: bytes, _context: Any) -> bytes:
        time.sleep(0.05)
        return request

    handler = unary_unary(work)
    server, _, channel = await host({ONE: handler}, migration_thread_pool=threads)
    one: Any = channel.unary_unary(ONE)

    async def client() -> None:
        for _ in range(3):
            await one(b"", timeout=30.0)

    await asyncio.gather(*(client() for _ in range(150)))
    # A handler's thread counts it, perhaps after its client has the answer.
    await eventually(lambda: server.statistics().requests == {"OK": 450})
    assert not any(sum(by.values()) for by in server.statistics().refused.values())
