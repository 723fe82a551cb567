"""How closely a backend is watched, and what five missed deadlines in a row mean."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest

import lbclient
from lbclient import wire
from lbclient.client.health.check import check
from lbclient.client.health.health_backoff import HealthBackoff
from lbclient.client.health.statuses import Unanswered
from lbclient.config import ChannelConfig
from lbclient.core.backends.call_answers import MISSES
from lbclient.core.backends.demand import CREDIT, STEP
from lbclient.core.model import TaskState
from lbclient.v1 import health_pb2, load_pb2
from tests.hosts import add_methods, hosting, unary_stream, unary_unary

SERVER = Path(__file__).parents[2] / "examples" / "hello_server.py"


def target(*addresses: str) -> str:
    return "ipv4:" + ",".join(addresses)


def states(channel: lbclient.Channel) -> dict[str, str]:
    return {b.address: b.state for b in channel.statistics().backends}


class Watched:
    """A server that tells what it is asked for."""

    def __init__(self) -> None:
        self.intervals: list[float] = []
        self.reports = 0

    async def _watch(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        interval = health_pb2.HealthRequest.FromString(request).report_interval
        self.intervals.append(interval)
        load = load_pb2.LoadReport(application_utilization=0.5)
        report = health_pb2.HealthReport(state=load_pb2.SERVING, load=load)
        while True:
            self.reports += 1
            yield report.SerializeToString()
            await asyncio.sleep(interval)

    def make(self) -> Any:
        methods = {wire.WATCH_METHOD: unary_stream(self._watch)}
        return add_methods(grpc.aio.server(), methods)


async def test_who_is_seldom_called_is_seldom_asked_and_often_when_calls_come(
    start: Any, search: Any, eventually: Any
) -> None:
    watched = Watched()
    task = await start(watched.make)
    fastest = 0.1
    config = ChannelConfig(health_interval=2 * fastest)
    async with lbclient.insecure_channel(task.address, config=config) as channel:
        stub = search.SearchStub(channel)
        await channel.channel_ready()
        await eventually(lambda: len(watched.intervals) == 3)
        expected = [fastest, STEP * fastest, STEP**2 * fastest]
        assert watched.intervals == pytest.approx(expected)
        assert watched.reports <= CREDIT * 1.5
        assert set(states(channel).values()) == {"ready"}, "and nobody calls it silent"
        await eventually(
            lambda: watched.intervals[-1] <= 1.1 * fastest,
            meanwhile=lambda: stub.Search(search.Query(), timeout=5),
        )


async def test_a_call_that_waits_for_its_answer_has_the_backend_asked_often(
    start: Any, search: Any, eventually: Any
) -> None:
    watched = Watched()
    task = await start(watched.make)
    config = ChannelConfig(health_interval=0.2)
    async with lbclient.insecure_channel(task.address, config=config) as channel:
        await channel.channel_ready()
        await eventually(lambda: len(watched.intervals) == 3)
        text = search.Query(text="sleep 60")
        call = search.SearchStub(channel).Search(text)
        await eventually(lambda: watched.intervals[-1] == watched.intervals[0])
        call.cancel()


@pytest.fixture
def changes(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, "lbclient.balancer")

    def changes() -> list[str]:
        lines = [record.getMessage() for record in caplog.records]
        return [line.partition(" is ")[2] for line in lines if " (was " in line]

    return changes


async def miss_deadlines(stub: Any, search: Any) -> None:
    """One on each of two backends, which are picked in turn."""
    for _ in range(2):
        call = stub.Search(search.Query(text="sleep 60"), timeout=0.05)
        with pytest.raises(grpc.aio.AioRpcError):
            await call


async def test_deadlines_missed_in_a_row_have_a_backend_asked_and_it_answers(
    start: Any, search: Any, eventually: Any, changes: Callable[[], list[str]]
) -> None:
    tasks = [await start(lbclient.server) for _ in range(2)]
    config = ChannelConfig(picker="round_robin")
    addresses = [task.address for task in tasks]
    async with lbclient.insecure_channel(target(*addresses), config=config) as channel:
        stub = search.SearchStub(channel)
        await channel.channel_ready()
        await eventually(lambda: set(states(channel).values()) == {"ready"})
        for _ in range(MISSES):
            await miss_deadlines(stub, search)
        doubted = f"connecting (was ready): {MISSES} deadlines missed in a row"
        believed = "ready (was connecting): asked, it says serving"
        await eventually(lambda: believed in changes())
        assert changes().index(doubted) < changes().index(believed)


@asynccontextmanager
async def process(port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        str(SERVER),
        str(port),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield child
    finally:
        child.send_signal(signal.SIGCONT)
        child.kill()
        await child.wait()


async def test_missed_deadlines_find_a_frozen_backend_before_its_silence_does(
    start: Any, search: Any, eventually: Any, free_port: Callable[[], int]
) -> None:
    """Which here takes ten minutes."""
    port, other = free_port(), await start(lbclient.server)
    config = ChannelConfig(health_interval=600, picker="round_robin")
    address = f"127.0.0.1:{port}"
    async with (
        process(port) as frozen,
        lbclient.insecure_channel(
            target(address, other.address), config=config
        ) as channel,
    ):
        stub = search.SearchStub(channel)
        await channel.channel_ready()
        await eventually(lambda: set(states(channel).values()) == {"ready"})
        os.kill(frozen.pid, signal.SIGSTOP)
        for _ in range(10 * MISSES):  # the other one is perhaps doubted first
            if states(channel)[address] == "connecting":
                break
            await miss_deadlines(stub, search)
        assert states(channel)[address] == "connecting"
        for _ in range(10):
            await stub.Search(search.Query(), timeout=5)
        os.kill(frozen.pid, signal.SIGCONT)
        await eventually(lambda: states(channel)[address] == "ready")


async def test_a_check_that_ends_unseen_is_made_again() -> None:
    """A task with more than its core has room for looked dead to whoever asked once."""
    asked, most = 0, 3

    async def check_health(request: bytes, context: Any) -> bytes:
        nonlocal asked
        asked += 1
        if asked % most:
            await context.abort(grpc.StatusCode.CANCELLED, "CANCELLED")
        return health_pb2.HealthReport(state=load_pb2.SERVING).SerializeToString()

    async def none(request: bytes, context: Any) -> bytes:
        nonlocal asked
        asked += 1
        await context.abort(grpc.StatusCode.CANCELLED, "CANCELLED")
        raise AssertionError("abort raises")

    for handler, is_answered in ((check_health, True), (none, False)):
        asked, methods = 0, {wire.CHECK_METHOD: unary_unary(handler)}
        backoff = HealthBackoff(Random(7))
        async with hosting(methods, server=grpc.aio.server()) as (_, _, channel):
            said = await check(channel, 2.0, TaskState.SERVING, backoff)
        assert isinstance(said, Unanswered) is not is_answered
        assert asked == most if is_answered else asked >= most
