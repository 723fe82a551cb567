"""How long the news of a lame duck take, in round trips of a network with a delay.

From SIGTERM, at a task in a process of its own, on the one clock that all processes of
a machine share. A round trip is what a byte takes there and back by the same kind of
proxy, measured in the same run. Times are noisy: medians decide.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from random import SystemRandom
from statistics import median
from time import monotonic
from typing import Any

import grpc

import lbclient
from lbclient import wire
from lbclient.health.udp import Prober
from lbclient.health.watch import Tell
from lbclient.model import LoadReport, TaskState
from lbclient.v1 import health_pb2
from tests.wire.delay import BACK, FRONT, Delay
from tests.wire.rollout.fleet import (
    PATIENCE,
    Fleet,
    Load,
    Task,
    are_ready,
    ask,
    comes_true,
    free_ports,
)

EACH_WAY = 0.02  # seconds
TRIALS = 9
MOST = 2.0  # round trips, in the median
RATE = 500.0  # calls a second of the active client


@asynccontextmanager
async def far_away(fleet: Fleet) -> AsyncIterator[str]:
    """The target of the fleet's tasks, each behind a proxy."""
    async with AsyncExitStack() as stack:
        proxies = [
            await stack.enter_async_context(Delay(task.port, EACH_WAY))
            for task in fleet.tasks
        ]
        yield "ipv4:" + ",".join(proxy.address for proxy in proxies)


async def round_trip_by_tcp() -> float:
    """Seconds, the median of some."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1):
            writer.write(data)
        writer.close()

    (port,) = free_ports(1)
    async with await asyncio.start_server(echo, BACK, port), Delay(port, EACH_WAY):
        reader, writer = await asyncio.open_connection(FRONT, port)
        trips = []
        for _ in range(TRIALS):
            sent_at = monotonic()
            writer.write(b"?")
            await reader.readexactly(1)
            trips.append(monotonic() - sent_at)
        writer.close()
        await writer.wait_closed()
    return middle(trips)


async def round_trip_by_udp() -> float:
    """Seconds, the median of some."""
    loop = asyncio.get_running_loop()

    class Echo(asyncio.DatagramProtocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport

        def datagram_received(self, data: bytes, address: Any) -> None:
            self.transport.sendto(data, address)

    (port,) = free_ports(1)
    echo, _ = await loop.create_datagram_endpoint(Echo, local_addr=(BACK, port))
    with socket.socket(type=socket.SOCK_DGRAM) as client:
        client.setblocking(False)
        async with Delay(port, EACH_WAY):
            client.connect((FRONT, port))
            trips = []
            for _ in range(TRIALS):
                sent_at = monotonic()
                await loop.sock_sendall(client, b"?")
                await loop.sock_recv(client, 1)
                trips.append(monotonic() - sent_at)
    echo.close()
    return middle(trips)


def middle(round_trips: list[float]) -> float:
    assert min(round_trips) >= 2 * EACH_WAY
    return median(round_trips)


def show(what: str, times: list[float], round_trip: float) -> None:
    trips = ", ".join(f"{time / round_trip:.2f}" for time in sorted(times))
    print(  # noqa: T201  # for those who ask, by pytest -s
        f"\n{what}: {trips} round trips of {round_trip * 1000:.1f} ms"
    )


def lame_for(channel: lbclient.Channel, address: str) -> float | None:
    """Seconds; None where the channel does not see a lame duck there."""
    for backend in channel.statistics().backends:
        if backend.address == address and backend.state == "lame duck":
            return backend.state_age
    return None


async def test_an_active_client_hears_of_a_lame_duck_within_two_round_trips() -> None:
    """And from then on picks it no more."""
    round_trip = await round_trip_by_tcp()
    picked_at: dict[str | None, float] = {}  # when last, by backend
    last_picks, news = [], []

    def call(stub: Any) -> Any:
        call = ask(stub)
        picked_at[lbclient.info(call).backend] = monotonic()
        return call

    async def hundred_calls(load: Load) -> None:
        enough = load.begun + 100
        await comes_true(lambda: load.begun >= enough)

    async def trial(channel: lbclient.Channel, load: Load, task: Task) -> None:
        address = f"{FRONT}:{task.port}"
        await comes_true(lambda: address in picked_at)
        told_at = monotonic()
        task.terminate()
        await comes_true(lambda: lame_for(channel, address) is not None)
        news.append(monotonic() - told_at - (lame_for(channel, address) or 0.0))
        await hundred_calls(load)
        last_picks.append(picked_at[address] - told_at)

    async with (
        Fleet(TRIALS + 1) as fleet,
        far_away(fleet) as target,
        lbclient.insecure_channel(target) as channel,
    ):
        await comes_true(lambda: are_ready([channel]))
        load = Load([channel], RATE, call)
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run())
            for task in fleet.tasks[:TRIALS]:
                await trial(channel, load, task)
            load.end()
    show("news", news, round_trip)
    show("last picks", last_picks, round_trip)
    assert load.failures == []
    assert all(last <= heard for last, heard in zip(last_picks, news, strict=True))
    assert median(news) <= MOST * round_trip


async def udp_port(task: Task) -> int:
    """Which the task advertises, once it serves."""
    async with grpc.aio.insecure_channel(task.address) as channel:
        check: Any = channel.unary_unary(wire.CHECK_METHOD)
        said = await check(b"", wait_for_ready=True, timeout=PATIENCE)
    return int(health_pb2.HealthReport.FromString(said).udp_port)


async def test_an_inactive_client_hears_of_a_lame_duck_within_two_round_trips() -> None:
    round_trip = await round_trip_by_udp()
    heard_at: dict[tuple[int, TaskState | None], float] = {}

    async def hears(port: int, state: TaskState) -> float:
        await comes_true(lambda: (port, state) in heard_at)
        return heard_at[port, state]

    def tell_of(port: int) -> Tell:
        def tell(
            state: TaskState | None, report: LoadReport | None, reason: str = ""
        ) -> None:
            heard_at.setdefault((port, state), monotonic())

        return tell

    news = []
    async with Fleet(TRIALS) as fleet, far_away(fleet):
        with closing(Prober(SystemRandom())) as prober:
            for task in fleet.tasks:
                assert await udp_port(task) == task.port
                prober.watch(FRONT, task.port, tell_of(task.port))
            for task in fleet.tasks:
                await hears(task.port, TaskState.SERVING)
                told_at = monotonic()
                task.terminate()
                news.append(await hears(task.port, TaskState.LAME_DUCK) - told_at)
    show("news by UDP", news, round_trip)
    assert median(news) <= MOST * round_trip
