"""How long the news of a lame duck take, in round trips of a network with a delay.

From SIGTERM, at a task in a process of its own, on the one clock that all processes of
a machine share. A round trip is what a byte takes there and back meanwhile, by a proxy
of the same kind. Times are noisy: medians decide.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from math import inf
from statistics import median
from time import monotonic
from typing import Any

import grpc
import search_pb2_grpc as pb_grpc

import lbclient
from lbclient import wire
from lbclient.config import ChannelConfig
from lbclient.core.statistics.records import BackendStatistics
from lbclient.v1 import health_pb2
from tests.ports import free_port
from tests.waiting import eventually
from tests.wire.delay import BACK, FRONT, Delay
from tests.wire.rollout.fleet import (
    LOOKS,
    Fleet,
    Load,
    Task,
    are_ready,
    ask,
)

EACH_WAY = 0.02  # seconds
TRIALS = 7
MOST = 2.0  # round trips, in the median
RATE = 200.0  # calls a second of the active client
SOME = 50  # calls, of which a backend that is not out gets a few


@asynccontextmanager
async def far_away(fleet: Fleet) -> AsyncIterator[str]:
    """The target of the fleet's tasks, each behind a proxy."""
    async with AsyncExitStack() as stack:
        proxies = [
            await stack.enter_async_context(Delay(task.port, EACH_WAY))
            for task in fleet.tasks
        ]
        yield "ipv4:" + ",".join(proxy.address for proxy in proxies)


Travel = Callable[[], Awaitable[float]]
"""There and back: how many seconds it takes now."""


@asynccontextmanager
async def by_tcp() -> AsyncIterator[Travel]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1):
            writer.write(data)
        writer.close()

    async def travel() -> float:
        sent_at = monotonic()
        writer.write(b"?")
        await reader.readexactly(1)
        return monotonic() - sent_at

    port = free_port()
    async with await asyncio.start_server(echo, BACK, port), Delay(port, EACH_WAY):
        reader, writer = await asyncio.open_connection(FRONT, port)
        yield travel
        writer.close()
        await writer.wait_closed()


class Echo(asyncio.DatagramProtocol):
    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, address: Any) -> None:
        self.transport.sendto(data, address)


@asynccontextmanager
async def by_udp() -> AsyncIterator[Travel]:
    loop = asyncio.get_running_loop()

    async def travel() -> float:
        sent_at = monotonic()
        await loop.sock_sendall(client, b"?")
        await loop.sock_recv(client, 1)
        return monotonic() - sent_at

    port = free_port()
    with socket.socket(type=socket.SOCK_DGRAM) as client:
        client.setblocking(False)
        echo, _ = await loop.create_datagram_endpoint(Echo, local_addr=(BACK, port))
        async with Delay(port, EACH_WAY):
            client.connect((FRONT, port))
            with closing(echo):
                yield travel


class Trials:
    """Times since SIGTERM, and what a round trip took meanwhile; in seconds."""

    def __init__(self, travel: Travel) -> None:
        self.news: list[float] = []
        self._round_trips: list[float] = []
        self._travel = travel

    async def terminate(self, task: Task) -> float:
        """Returns when it was told to leave."""
        told_at = monotonic()
        task.terminate()
        self._round_trips.append(await self._travel())
        return told_at

    def in_round_trips(self) -> float:
        """How long the news took, in the median."""
        assert len(self.news) == TRIALS
        assert min(self._round_trips) >= 2 * EACH_WAY  # the proxies do their work
        round_trip = median(self._round_trips)
        trips = [time / round_trip for time in sorted(self.news)]
        print(  # noqa: T201  # for those who ask, by pytest -s
            f"\nnews within {', '.join(f'{trip:.2f}' for trip in trips)} "
            f"round trips of {round_trip * 1000:.1f} ms"
        )
        return median(trips)


def seen(channel: lbclient.Channel, task: Task) -> BackendStatistics:
    """What the channel knows of the task behind its proxy."""
    address = f"{FRONT}:{task.port}"
    (found,) = [b for b in channel.statistics().backends if b.address == address]
    return found


async def heard_at(channel: lbclient.Channel, task: Task) -> float:
    """When the channel learned that the task is a lame duck."""
    await eventually(lambda: seen(channel, task).state == "lame duck", turns=LOOKS)
    return monotonic() - seen(channel, task).state_age


async def test_an_active_client_hears_of_a_lame_duck_within_two_round_trips() -> None:
    """And from then on picks it no more."""
    picked_at: dict[str | None, float] = {}  # when last, by backend

    def call(stub: Any) -> Any:
        call = ask(stub)
        picked_at[lbclient.info(call).backend] = monotonic()
        return call

    async def trial(trials: Trials, task: Task) -> None:
        address = f"{FRONT}:{task.port}"
        await eventually(lambda: address in picked_at, turns=LOOKS)
        told_at = await trials.terminate(task)
        heard = await heard_at(channel, task)
        trials.news.append(heard - told_at)
        enough = load.begun + SOME
        await eventually(lambda: load.begun >= enough, turns=LOOKS)
        assert picked_at[address] <= heard

    async with (
        Fleet(TRIALS + 1) as fleet,
        far_away(fleet) as target,
        lbclient.insecure_channel(target) as channel,
        by_tcp() as travel,
    ):
        await eventually(lambda: are_ready([channel]), turns=LOOKS)
        load, trials = Load([channel], RATE, call), Trials(travel)
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run())
            for task in fleet.tasks[:TRIALS]:
                await trial(trials, task)
            load.end()
    assert (load.failures, load.answered) == ([], load.begun)
    assert trials.in_round_trips() <= MOST


async def udp_port(task: Task) -> int:
    """Which the task advertises, once it serves."""
    async with grpc.aio.insecure_channel(task.address) as channel:
        check: Any = channel.unary_unary(wire.CHECK_METHOD)
        said = await check(b"", wait_for_ready=True, timeout=60.0)
    return int(health_pb2.HealthReport.FromString(said).udp_port)


def inactive(channel: lbclient.Channel) -> int:
    """How many backends are, and have answered by UDP since they became so."""
    return sum(
        backend.state == "inactive" and (backend.report_age or inf) < backend.state_age
        for backend in channel.statistics().backends
    )


async def test_an_inactive_client_hears_of_a_lame_duck_within_two_round_trips(
    connections: Callable[..., set[tuple[int, int]]],
) -> None:
    """And when it is woken it calls whoever is left."""
    config = ChannelConfig(idle_after=0.2)
    async with (
        Fleet(TRIALS + 1) as fleet,
        far_away(fleet) as target,
        lbclient.insecure_channel(target, config=config) as channel,
        by_udp() as travel,
    ):
        trials = Trials(travel)
        for task in fleet.tasks:
            assert await udp_port(task) == task.port
        channel.get_state(try_to_connect=True)
        await eventually(lambda: inactive(channel) == len(fleet.tasks), turns=LOOKS)
        await eventually(
            lambda: not connections(*(task.port for task in fleet.tasks)), turns=LOOKS
        )
        for task in fleet.tasks[:TRIALS]:
            told_at = await trials.terminate(task)
            trials.news.append(await heard_at(channel, task) - told_at)
            assert seen(channel, task).reason == "it says lame duck by UDP"
        answer = await ask(pb_grpc.SearchStub(channel))
        assert int(answer.text) in fleet.tasks[-1].pids
    assert trials.in_round_trips() <= MOST
