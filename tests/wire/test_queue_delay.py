"""What waits in gRPC's core counts, also where handlers give the loop back soon."""

import asyncio
import time
from typing import Any

import grpc
import grpc.aio

import lbclient
from benchmarks import frames
from lbclient import wire
from lbclient.core.overload.admission import QUEUE_NAME
from lbclient.server.overload.run_queue import TUNING as RUN_QUEUE
from tests.hosts import PATH, Host, unary_unary
from tests.waiting import let_pass

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


async def test_of_a_queue_in_the_core_the_most_critical_are_served(host: Host) -> None:
    hosted = await host(unary_unary(in_steps))
    server = hosted.server
    found = await frames.flood(hosted.port, PATH, MUCH / (STEP * STEPS), SECONDS)
    critical, sheddable = (found["served"][name] for name in frames.CRITICALITIES)
    signals = {one.name: one for one in server.statistics().signals}
    assert critical["goodput"] > 2 * sheddable["goodput"]
    ends = sheddable["ends"]  # in a flood some are dropped without an answer
    assert ends.get("overloaded", 0) + ends.get("CANCELLED", 0) > 0
    assert signals[QUEUE_NAME].target > 0.0


async def test_a_crowd_that_has_time_is_not_refused(host: Host) -> None:
    """More at once than are asked for, but soon served."""
    server, _, channel = await host(unary_unary(at_once))
    method: Any = channel.unary_unary(PATH)

    async def ask() -> None:
        for _ in range(50):
            await method(b"", timeout=60.0)

    await asyncio.gather(*(ask() for _ in range(60)))
    refused = server.statistics().refused
    assert sum(sum(counts.values()) for counts in refused.values()) == 0


async def test_the_time_that_requests_have_counts_from_when_they_came(
    host: Host,
) -> None:
    """Else what has waited for long would make the wait that is enough shorter still.

    What the core is said to keep it for comes on top of what is left in Python.
    """
    server, _, channel = await host(unary_unary(at_once))
    core = server._gate.core
    core.delay.sample = lambda *_, **__: None
    core.delay.seconds = waited = 2.0  # as far as the server knows
    method: Any = channel.unary_unary(PATH)
    await method(b"", timeout=4.0)
    assert 4.0 < core.deadlines.typical <= 4.1 + waited


async def test_who_lost_most_of_its_time_in_the_core_is_not_begun(
    host: Host,
) -> None:
    began = 0

    async def respond(request: bytes, _context: Any) -> bytes:
        nonlocal began
        began += 1
        return request

    server, _, channel = await host(unary_unary(respond))
    delay = server._gate.core.delay
    delay.sample = lambda *_, **__: None
    delay.seconds = 10.0  # as far as the server knows
    method: Any = channel.unary_unary(PATH)
    assert await method(b"", timeout=60.0) == b""
    await let_pass(2 * RUN_QUEUE.clear)  # or it need not ask
    call = method(b"", timeout=9.0)
    assert await call.code() is grpc.StatusCode.UNAVAILABLE
    said = dict(tuple(await call.trailing_metadata()))
    assert said[wire.REFUSAL_KEY] == "overloaded"
    assert wire.PUSHBACK_KEY not in said
    assert server.statistics().refused["too-late"]["CRITICAL"] == 1
    assert sum(server._gate._refusals.for_load()) == 1
    assert began == 1


async def test_who_is_too_late_at_one_backend_is_served_by_another(
    host: Host,
) -> None:
    """Its deadline is still to come: a refusal, and no failure of that backend."""
    late, first, _ = await host(unary_unary(at_once))
    _, second, _ = await host(unary_unary(at_once))
    delay = late._gate.core.delay
    delay.sample = lambda *_, **__: None
    delay.seconds = 10.0  # as far as the server knows
    target = f"ipv4:{first},{second}"
    async with lbclient.insecure_channel(target) as channel:
        method = channel.unary_unary(PATH)
        for _ in range(200):
            assert await method(b"", timeout=9.0) == b""
            if late.statistics().refused["too-late"]["CRITICAL"]:
                break
            await let_pass(2 * RUN_QUEUE.clear)  # or it need not ask
        said = channel.statistics()
    assert late.statistics().refused["too-late"]["CRITICAL"] == 1
    assert (said.attempts["rejected"], said.attempts["failed"]) == (1, 0)
    assert not any(backend.ejected for backend in said.backends)
