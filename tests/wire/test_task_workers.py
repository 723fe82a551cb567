"""A channel and a task of several workers: each is a backend, and none loses a call."""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import pytest

import lbclient
from lbclient.config import ChannelConfig
from lbclient.core.model import State
from lbclient.core.statistics.records import WorkerStatistics
from tests.waiting import eventually
from tests.wire.workers_program import BURN, QUOTA, SLOW, WHO, make_server
from tests.wire.workers_task import Task, is_alive, mapped, serving

CALLS_AT_ONCE = 8


class Load:
    """Calls without a pause on one channel, until it is told to stop."""

    def __init__(self, channel: Any, method: str = WHO) -> None:
        self._call = channel.unary_unary(method)
        self.answers: Counter[int] = Counter()  # by process
        self.errors: list[grpc.aio.AioRpcError] = []
        self._is_over = False

    async def run(self, request: bytes = b"") -> None:
        await asyncio.gather(*(self._repeat(request) for _ in range(CALLS_AT_ONCE)))

    async def _repeat(self, request: bytes) -> None:
        while not self._is_over:
            try:
                self.answers[int(await self._call(request, timeout=20))] += 1
            except grpc.aio.AioRpcError as error:
                self.errors.append(error)
            await asyncio.sleep(0.005)

    def stop(self) -> None:
        self._is_over = True


@asynccontextmanager
async def loaded(
    channel: Any, method: str = WHO, request: bytes = b""
) -> AsyncIterator[Load]:
    load = Load(channel, method)
    running = asyncio.create_task(load.run(request))
    try:
        yield load
    finally:
        load.stop()
        await running


def addresses(channel: Any) -> set[str]:
    nodes = channel.balancer().pool.nodes.values()
    return {n.endpoint.address for n in nodes if n.state is State.READY}


async def until_connected_to(channel: Any, ports: list[int]) -> None:
    wanted = {f"127.0.0.1:{port}" for port in ports}
    await eventually(lambda: addresses(channel) == wanted, channel.statistics)


@asynccontextmanager
async def connected(
    function: str = "make_server", method: str = WHO, **settings: Any
) -> AsyncIterator[tuple[Task, Any]]:
    """A task, and a channel that knows each of its workers."""
    config = ChannelConfig(**settings)
    async with serving(function, "--port=0", "--host=127.0.0.1") as task:
        address = await task.address()
        async with lbclient.insecure_channel(address, config=config) as channel:
            await channel.unary_unary(method)(b"", timeout=20)
            await until_connected_to(channel, task.own_ports())
            yield task, channel


async def test_one_channel_calls_every_worker_by_its_own_port() -> None:
    async with connected() as (task, channel):
        async with loaded(channel) as load:
            await eventually(lambda: load.answers.total() > 200)
        assert {*load.answers} == {*task.pids()}
        assert load.errors == []
        few, many = sorted(load.answers.values())
        assert few > many / 4


async def test_a_killed_worker_costs_its_calls_in_flight_and_comes_back() -> None:
    async with connected(max_attempts=1) as (task, channel):
        async with loaded(channel, SLOW, b"0.05") as load:
            await eventually(lambda: len(load.answers) == 2)
            killed, _ = task.pids()
            os.kill(killed, signal.SIGKILL)
            await eventually(lambda: len(task.pids()) == 3)
            await until_connected_to(channel, task.own_ports()[1:])
            back = task.pids()[2]
            await eventually(lambda: load.answers[back] > 20)
        assert len(load.errors) <= CALLS_AT_ONCE


async def test_a_reload_under_load_loses_no_call() -> None:
    async with connected(max_attempts=1) as (task, channel):
        async with loaded(channel, SLOW, b"0.02") as load:
            await eventually(lambda: len(load.answers) == 2)
            task.send(signal.SIGHUP)
            await eventually(lambda: task.found("reloaded 2 workers"))
            new = task.pids()[2:]
            await eventually(lambda: all(load.answers[pid] > 20 for pid in new))
        assert load.errors == []
        await until_connected_to(channel, task.own_ports()[2:])


async def test_workers_of_a_synchronous_server_are_reloaded_without_a_lost_call() -> (
    None
):
    async with connected("make_sync_server", max_attempts=1) as (task, channel):
        async with loaded(channel, SLOW, b"0.02") as load:
            await eventually(lambda: len(load.answers) == 2)
            task.send(signal.SIGHUP)
            await eventually(lambda: task.found("reloaded 2 workers"))
            new = task.pids()[2:]
            await eventually(lambda: all(load.answers[pid] > 20 for pid in new))
        assert load.errors == []
        task.send(signal.SIGTERM)
        assert await task.ended() == 0
        assert not any(map(is_alive, task.pids()))


async def test_workers_of_a_server_of_grpcio_alone_share_the_port() -> None:
    options = ("make_plain_sync_server", "--port=0", "--host=127.0.0.1")
    async with serving(*options) as task:
        address = await task.address()
        async with grpc.aio.insecure_channel(address) as channel:
            call: Any = channel.unary_unary(WHO)
            assert int(await call(b"", timeout=20)) in task.pids()
        task.send(signal.SIGTERM)
        assert await task.ended() == 0


async def test_sigterm_under_load_loses_no_call() -> None:
    """With another task to go to, as in a rollout."""
    async with (
        serving("make_server", "--port=0", "--host=127.0.0.1") as leaving,
        serving("make_server", "--port=0", "--host=127.0.0.1") as staying,
    ):
        target = f"ipv4:{await leaving.address()},{await staying.address()}"
        config = ChannelConfig(max_attempts=1)
        async with lbclient.insecure_channel(target, config=config) as channel:
            await channel.unary_unary(WHO)(b"", timeout=20)
            ports = leaving.own_ports() + staying.own_ports()
            await until_connected_to(channel, ports)
            async with loaded(channel, SLOW, b"0.02") as load:
                await eventually(lambda: len(load.answers) == 4)
                leaving.send(signal.SIGTERM)
                assert await leaving.ended() == 0
                before = load.answers.total()
                await eventually(lambda: load.answers.total() > before + 100)
            assert load.errors == []
            assert not any(map(is_alive, leaving.pids()))


async def test_a_task_that_starts_anew_is_found_by_its_shared_port() -> None:
    """Its supervisor, too: no worker is left to tell of the new ones."""
    async with serving("make_server", "--port=0", "--host=127.0.0.1") as task:
        address = await task.address()
        port = address.rpartition(":")[2]
        async with lbclient.insecure_channel(address) as channel:
            await channel.unary_unary(WHO)(b"", timeout=20)
            await until_connected_to(channel, task.own_ports())
            task.send(signal.SIGTERM)
            await task.ended()
            async with serving(
                "make_server", f"--port={port}", "--host=127.0.0.1"
            ) as other:
                await other.address()
                call = channel.unary_unary(WHO)
                assert int(await call(b"", timeout=20, wait_for_ready=True))
                await until_connected_to(channel, other.own_ports())


async def test_a_task_without_workers_in_place_of_one_with_them_is_one_backend() -> (
    None
):
    """As after a rollback: its own ports are gone, and it tells of none."""
    async with serving("make_server", "--port=0", "--host=127.0.0.1") as task:
        address = await task.address()
        async with lbclient.insecure_channel(address) as channel:
            await channel.unary_unary(WHO)(b"", timeout=20)
            await until_connected_to(channel, task.own_ports())
            task.send(signal.SIGTERM)
            await task.ended()
            server = make_server()
            server.add_insecure_port(address)
            await server.start()
            try:
                call = channel.unary_unary(WHO)
                assert int(await call(b"", timeout=20, wait_for_ready=True))
                await eventually(lambda: addresses(channel) == {address})
                workers = channel.statistics
                await eventually(lambda: workers().workers == WorkerStatistics())
                assert channel.balancer().connections.workers.given_up == 0
            finally:
                await server.stop(None)


async def test_a_quota_holds_for_all_workers_together() -> None:
    """Without Redis: each worker gives its share, as the supervisor tells."""
    told: dict[int, tuple[int, float]] = {}
    async with connected("with_quota", QUOTA, customer="shop") as (_, channel):

        async def ask() -> None:
            call = channel.unary_unary(QUOTA)
            pid, tasks, share = json.loads(await call(b"", timeout=20))
            told[pid] = tasks, share
            with suppress(grpc.aio.AioRpcError):  # beyond the quota
                await channel.unary_unary(BURN)(b"0.01", timeout=20)

        await eventually(
            lambda: (
                len(told) == 2
                and all(tasks == 2 for tasks, _ in told.values())
                and 0.8 < sum(share for _, share in told.values()) < 1.2
            ),
            lambda: told,
            meanwhile=ask,
        )


async def at_once(channel: Any, calls: int) -> Counter[int]:
    """How many of so many calls at a time each worker serves."""

    async def one() -> int | None:
        with suppress(grpc.aio.AioRpcError):  # RESOURCE_EXHAUSTED
            return int(await channel.unary_unary(SLOW)(b"0.3", timeout=20))
        return None

    served = await asyncio.gather(*(one() for _ in range(calls)))
    return Counter(pid for pid in served if pid is not None)


async def test_a_limit_of_requests_at_a_time_holds_for_all_workers_together() -> None:
    async with connected("with_limit", max_attempts=1) as (_, channel):
        # Each has its half.
        served = await at_once(channel, 24)
        assert sorted(served.values()) == [4, 4]
        # Where one has all requests it is given more places.
        address = channel.statistics().target
        async with grpc.aio.insecure_channel(address) as stock:

            async def ask() -> None:
                served.clear()
                served.update(await at_once(stock, 24))

            await eventually(lambda: [*served.values()] == [7], meanwhile=ask)


async def test_where_own_ports_are_not_reached_connections_share_the_port(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        serving("make_server", "--port=0", "--host=127.0.0.1") as task,
        mapped(await task.address()) as address,
        lbclient.insecure_channel(address) as channel,
    ):
        async with loaded(channel) as load:
            workers = channel.balancer().connections.workers
            await eventually(lambda: workers.given_up == 1)
            both = {address, f"{address}#2"}
            await eventually(lambda: addresses(channel) == both)
            told = channel.statistics().workers
            assert (told.by_shared_port, told.shared_connections) == (1, 2)
            before = load.answers.copy()
            await eventually(lambda: len(load.answers - before) == 2)
            # Both are found again after one of them was killed.
            killed = task.pids()[0]
            os.kill(killed, signal.SIGKILL)
            await eventually(lambda: len(task.pids()) == 3)
            back = task.pids()[2]
            await eventually(lambda: load.answers[back] > 20)
            assert addresses(channel) == both
        assert len(load.errors) <= CALLS_AT_ONCE
    words = "own ports of workers cannot be reached"
    assert [r.levelname for r in caplog.records if words in r.message] == ["WARNING"]


async def test_workers_without_own_ports_share_the_port_by_a_connection_each() -> None:
    options = ("make_server", "--port=0", "--host=127.0.0.1")
    async with serving(*options, LBCLIENT_WORKER_PORTS="off") as task:
        address = await task.address()
        async with lbclient.insecure_channel(address) as channel:
            async with loaded(channel) as load:
                both = {address, f"{address}#2"}
                await eventually(lambda: addresses(channel) == both)
                await eventually(lambda: {*load.answers} == {*task.pids()})
            assert load.errors == []


async def test_a_stock_client_sees_the_shared_port() -> None:
    async with connected() as (_, ours):
        address = ours.statistics().target
        async with (
            grpc.aio.insecure_channel(address) as channel,
            loaded(channel) as load,
        ):
            await eventually(lambda: load.answers.total() > 50)
        assert load.errors == []
        assert len(load.answers) == 1
