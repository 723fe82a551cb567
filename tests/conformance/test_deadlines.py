"""Deadlines, and what calls do while nobody is there to answer them."""

import socket
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.conformance.both import (
    Side,
    answered,
    attempted,
    each_kind,
    each_sender,
    each_stream,
    end_of,
    on_both,
    once,
    outcome,
    remaining,
)
from tests.conformance.script import path
from tests.hosts import hosting
from tests.waiting import eventually

NOBODY = "127.0.0.1:1"  # refuses connections

TIMEOUTS = [0.05, 0, -1, 1e-9]


def start(channel: grpc.aio.Channel, kind: str, **options: Any) -> Any:
    method: Any = getattr(channel, kind)(path(kind))
    return method(b"a", **options) if kind.startswith("unary") else method(**options)


async def failed(call: Any, kind: str) -> Any:
    """How a call fails, without the words: which ones is chance in grpc's core, and
    ours say what the wait was for."""
    (*before, error), end = await answered(call, kind), await end_of(call)
    assert isinstance(error, grpc.aio.AioRpcError), error
    assert error.details()
    assert end.pop("details")
    del end["repr"], end["initial"]
    return before, error.code(), end


@on_both
@each_kind
async def test_a_deadline_passes_while_the_server_works(side: Side, kind: str) -> Any:
    seen = []
    for timeout in TIMEOUTS:
        call = await side.begin(kind, sending="write", do="hang", timeout=timeout)
        left = call.time_remaining() <= max(0, timeout)
        seen.append((left, await failed(call, kind)))
    return seen


@on_both
@each_kind
@once
@pytest.mark.parametrize(
    ("wait_for_ready", "timeout"),
    [(None, None), (False, None), (None, 9), (False, 9), (True, 0.05)],
)
async def test_nobody_is_there(
    side: Side, kind: str, wait_for_ready: bool | None, timeout: float | None
) -> Any:
    call = start(
        side.insecure(NOBODY), kind, timeout=timeout, wait_for_ready=wait_for_ready
    )
    return await failed(call, kind)


@on_both
@each_kind
@once
@pytest.mark.parametrize("wait_for_ready", [None, False, True])
async def test_a_deadline_passes_before_there_is_a_connection(
    side: Side, kind: str, wait_for_ready: bool | None
) -> Any:
    """Connections are accepted, and nobody speaks HTTP/2 behind them."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        channel = side.insecure(f"127.0.0.1:{silent.getsockname()[1]}")
        calls = [
            start(channel, kind, timeout=timeout, wait_for_ready=wait_for_ready)
            for timeout in TIMEOUTS
        ]
        seen = [await failed(call, kind) for call in calls]
        await channel.close()
        return seen


@on_both
@each_kind
@once
async def test_a_call_that_waits_for_ready_is_served_once_there_is_a_server(
    side: Side, kind: str, free_port: Any
) -> Any:
    port = free_port()
    options = (("grpc.initial_reconnect_backoff_ms", 100),)
    channel = side.insecure(f"127.0.0.1:{port}", options=options)
    call = await side.begin(kind, on=channel, wait_for_ready=True, timeout=10)
    failure = grpc.ChannelConnectivity.TRANSIENT_FAILURE
    await eventually(lambda: channel.get_state() is failure)
    before = (call.done(), call.cancelled())
    server, methods = grpc.aio.server(), side.script.methods()
    async with hosting(methods, server=server, at=f"127.0.0.1:{port}"):
        seen = before, await answered(call, kind), await end_of(call)
        await channel.close()
    return seen


@on_both
@once
@each_stream
async def test_a_deadline_passes_in_the_midst_of_a_stream(side: Side, kind: str) -> Any:
    # Long enough for a first response from a slow machine.
    call = await side.begin(kind, then="hang", timeout=0.3)
    return await failed(call, kind)


@on_both
@once
@each_sender
async def test_a_deadline_passes_while_nothing_is_written(side: Side, kind: str) -> Any:
    call = await side.begin(kind, sending="write", timeout=0.1)
    seen = await answered(call, kind)
    late = [await outcome(call.write(b"a")), await outcome(call.done_writing())]
    return seen[-1].code(), late, call.done()


@on_both
@each_kind
async def test_wait_for_ready_changes_nothing_when_somebody_is_there(
    side: Side, kind: str
) -> Any:
    seen = []
    for wait_for_ready in (None, False, True):
        call = await side.begin(kind, wait_for_ready=wait_for_ready, timeout=10)
        seen.append(await answered(call, kind))
    return seen


@on_both
@once
@each_kind
async def test_time_runs_out_and_never_below_zero(side: Side, kind: str) -> Any:
    call = await side.begin(kind, do="nap", timeout=5)
    first = call.time_remaining()
    await answered(call, kind)
    second = call.time_remaining()
    short = await side.begin(kind, sending="write", do="hang", timeout=0.05)
    await answered(short, kind)
    return 4 < second < first <= 5, remaining(short)


@on_both
@each_kind
async def test_a_timeout_that_is_none(side: Side, kind: str) -> Any:
    channel = await side.channel()
    seen: list[Any] = []
    for timeout in ("1", (), float("nan"), float("inf"), 1e12, 10**400):
        call = attempted(start, channel, kind, timeout=timeout)
        if isinstance(call, Exception):
            seen.append(type(call).__name__)
            continue
        left = remaining(call)
        call.cancel()
        seen.append((left, type((await answered(call, kind))[-1]).__name__))
    return seen
