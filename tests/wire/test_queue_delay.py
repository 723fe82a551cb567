"""What waits in gRPC's core counts, also where handlers give the loop back soon."""

import asyncio
import time
from typing import Any

import grpc
import grpc.aio

import lbclient
from benchmarks import frames
from lbclient import wire
from lbclient.core.admission import QUEUE_NAME
from lbclient.server import Server
from lbclient.server.overload.run_queue import CLEAR

STEP = (
    0.0002  # seconds of the processor, and so many of them: one in a turn of the loop
)
STEPS = 10
MUCH = 4.0  # times what it can do
SECONDS = 4.0


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def in_steps(request: bytes, _context: Any) -> bytes:
    """As in a proxy: the run queue, which looks at the first step, sees no load."""
    for _ in range(STEPS):
        burn(STEP)
        await asyncio.sleep(0)
    return request


async def at_once(request: bytes, _context: Any) -> bytes:
    return request


async def started(respond: Any) -> tuple[Server, int]:
    server = lbclient.server()
    handler: Any = grpc.unary_unary_rpc_method_handler(respond)
    service = grpc.method_handlers_generic_handler("a.B", {"C": handler})
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port


async def test_of_a_queue_in_the_core_the_most_critical_are_served() -> None:
    server, port = await started(in_steps)
    found = await frames.flood(port, "/a.B/C", MUCH / (STEP * STEPS), SECONDS)
    critical, sheddable = (found["served"][name] for name in frames.CRITICALITIES)
    signals = {one.name: one for one in server.statistics().signals}
    await server.stop(None)
    assert critical["goodput"] > 2 * sheddable["goodput"]
    assert sheddable["ends"]["overloaded"] > 0
    assert signals[QUEUE_NAME].target > 0.0


async def test_a_crowd_that_has_time_is_not_refused() -> None:
    """More at once than are asked for, but soon served."""
    server, port = await started(at_once)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        method: Any = channel.unary_unary("/a.B/C")

        async def ask() -> None:
            for _ in range(50):
                await method(b"", timeout=60.0)

        await asyncio.gather(*(ask() for _ in range(60)))
    refused = server.statistics().refused
    await server.stop(None)
    assert sum(sum(counts.values()) for counts in refused.values()) == 0


async def test_the_time_that_requests_have_counts_from_when_they_came() -> None:
    """Else what has waited for long would make the wait that is enough shorter still.

    What the core is said to keep it for comes on top of what is left in Python.
    """
    server, port = await started(at_once)
    core = server._gate.core
    core.delay.sample = lambda *_, **__: None  # type: ignore[method-assign]
    core.delay.seconds = waited = 2.0  # as far as the server knows
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        method: Any = channel.unary_unary("/a.B/C")
        await method(b"", timeout=4.0)
    await server.stop(None)
    assert 4.0 < core.deadlines.typical <= 4.1 + waited


async def test_who_lost_most_of_its_time_in_the_core_is_not_begun(
    eventually: Any,
) -> None:
    began = 0

    async def respond(request: bytes, _context: Any) -> bytes:
        nonlocal began
        began += 1
        return request

    server, port = await started(respond)
    delay = server._gate.core.delay
    delay.sample = lambda *_, **__: None  # type: ignore[method-assign]
    delay.seconds = 10.0  # as far as the server knows
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        method: Any = channel.unary_unary("/a.B/C")
        assert await method(b"", timeout=60.0) == b""
        await asyncio.sleep(2 * CLEAR)  # or it need not ask
        call = method(b"", timeout=9.0)
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        said = dict(await call.trailing_metadata())
    assert said[wire.REFUSAL_KEY] == "overloaded"
    assert wire.PUSHBACK_KEY not in said
    assert server.statistics().refused["too-late"]["CRITICAL"] == 1
    assert began == 1
    await server.stop(None)


async def test_who_is_too_late_at_one_backend_is_served_by_another() -> None:
    """Its deadline is still to come: a refusal, and no failure of that backend."""
    late, first = await started(at_once)
    quick, second = await started(at_once)
    delay = late._gate.core.delay
    delay.sample = lambda *_, **__: None  # type: ignore[method-assign]
    delay.seconds = 10.0  # as far as the server knows
    target = f"ipv4:127.0.0.1:{first},127.0.0.1:{second}"
    async with lbclient.insecure_channel(target) as channel:
        method = channel.unary_unary("/a.B/C")
        for _ in range(200):
            assert await method(b"", timeout=9.0) == b""
            if late.statistics().refused["too-late"]["CRITICAL"]:
                break
            await asyncio.sleep(2 * CLEAR)  # or it need not ask
        said = channel.statistics()
    assert late.statistics().refused["too-late"]["CRITICAL"] == 1
    assert (said.attempts["rejected"], said.attempts["failed"]) == (1, 0)
    assert not any(backend.ejected for backend in said.backends)
    await late.stop(None)
    await quick.stop(None)
