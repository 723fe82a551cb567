"""A fleet is restarted under load, again and again, and no call is lost by that.

Processes, sockets and signals are real; what decides is counts of calls. Figures of
each run: pytest -s.
"""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import grpc
import pytest
import search_pb2 as pb

import lbclient
from lbclient.config import ChannelConfig
from lbclient.grpc_seam import is_ready
from tests.certificates import certify
from tests.waiting import eventually
from tests.wire.conftest import earn
from tests.wire.rollout.fleet import (
    DEADLINE,
    LOOKS,
    Fleet,
    Load,
    Task,
    are_ready,
)
from tests.wire.rollout.task import PAGES

BACKENDS = 8
CLIENTS = 3
RATE = 500.0  # calls a second, of all clients together
AT_STAKE = 10  # calls of a client, in flight where a kill takes place: more than ever

# At 500 a second 500 streams of 1 s would be open, with four messages each. A tenth
# is what two cores carry besides, while processes start.
STREAM_RATE = 50.0
STREAM_TIME = 1.0


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority's, and a server's, which is for this address."""
    return certify(tmp_path_factory.mktemp("certificates"), "IP:127.0.0.1")


def stream(stub: Any) -> Any:
    return stub.Pages(pb.Query(text=str(STREAM_TIME)), timeout=DEADLINE)


async def whole_stream(call: Any, served: set[int]) -> None:
    pages = 0
    async for page in call:
        served.add(int(page.text))
        pages += 1
    assert pages == PAGES


Connect = Callable[[str], lbclient.Channel]


@asynccontextmanager
async def connected(
    fleet: Fleet, connect: Connect = lbclient.insecure_channel
) -> AsyncIterator[list[lbclient.Channel]]:
    """Clients of their own, each connected to every task."""
    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(connect(fleet.target()))
            for _ in range(CLIENTS)
        ]
        await eventually(lambda: are_ready(channels), turns=LOOKS)
        yield channels


def show(figures: str) -> None:
    print(f"\n{figures}")  # noqa: T201  # for those who ask, by pytest -s


async def restart_all(
    fleet: Fleet,
    channels: Sequence[lbclient.Channel],
    load: Load,
    leave: Callable[[Task], Awaitable[None]],
    at_once: int = 2,
    rounds: int = 1,
) -> None:
    """Some at a time, when those before them serve again; the calls go on."""
    began_at = monotonic()
    async with asyncio.TaskGroup() as group:
        group.create_task(load.run())
        for first in [*range(0, BACKENDS, at_once)] * rounds:
            batch = fleet.tasks[first : first + at_once]
            await eventually(lambda: fleet.pids() <= load.served, turns=LOOKS)
            await asyncio.gather(*map(leave, batch))
            for task in batch:
                task.start()
            await eventually(lambda: are_ready(channels), turns=LOOKS)
        await eventually(lambda: fleet.pids() <= load.served, turns=LOOKS)
        load.end()
    restarts = len(fleet.pids()) - BACKENDS
    assert restarts == rounds * BACKENDS
    lasted = monotonic() - began_at
    show(
        f"{load.begun} calls in {lasted:.1f} s, {len(load.failures)} failed, "
        f"{restarts} restarts"
    )


async def in_order(task: Task) -> None:
    task.terminate()
    assert await task.ended() == 0


@pytest.mark.parametrize("kind", ["ours", "standard"])
async def test_a_rolling_restart_costs_no_call(kind: str) -> None:
    """A quarter of the fleet at a time, also where all know grpc.health.v1 only."""
    async with Fleet(BACKENDS, kind) as fleet, connected(fleet) as channels:
        load = Load(channels, RATE)
        await restart_all(fleet, channels, load, in_order)
    assert (load.failures, load.answered) == ([], load.begun)


async def test_a_rolling_restart_costs_no_call_by_tls(certificates: Path) -> None:
    authority = (certificates / "ca.pem").read_bytes()

    def connect(target: str) -> lbclient.Channel:
        credentials = grpc.ssl_channel_credentials(authority)
        return lbclient.secure_channel(target, credentials)

    async with (
        Fleet(BACKENDS, "tls", str(certificates)) as fleet,
        connected(fleet, connect) as channels,
    ):
        load = Load(channels, RATE)
        await restart_all(fleet, channels, load, in_order)
    assert (load.failures, load.answered) == ([], load.begun)


async def test_a_rolling_restart_cuts_no_stream_short() -> None:
    """Half of the fleet at a time, as each leaves only when its streams have ended."""
    async with Fleet(BACKENDS) as fleet, connected(fleet) as channels:
        load = Load(channels, STREAM_RATE, stream, whole_stream)
        await restart_all(fleet, channels, load, in_order, at_once=BACKENDS // 2)
    assert (load.failures, load.answered) == ([], load.begun)


def in_flight(channels: Sequence[lbclient.Channel], address: str) -> int:
    """On one backend, as its clients count."""
    backends = [backend for c in channels for backend in c.statistics().backends]
    return sum(backend.in_flight for backend in backends if backend.address == address)


def stand_still_until_known(channels: Sequence[lbclient.Channel], address: str) -> None:
    """Until gRPC's own threads have noticed that the connections are gone."""
    for channel in channels:
        backend = channel.balancer().pool.nodes[address]
        while is_ready(backend.channel):
            sleep(0.001)


async def test_a_killed_backend_costs_at_most_the_calls_in_flight_on_it() -> None:
    """Of each kill: no more calls fail on that backend until its next one than its
    clients had in flight there. They stand still from the count until they can know:
    what is sent to a dead process before that is lost too, but is not in flight."""
    most: Counter[str] = Counter()  # failures by backend so far, if that is kept
    killed_under = 0
    async with Fleet(BACKENDS) as fleet, connected(fleet) as channels:
        load = Load(channels, RATE)

        def failed_on(task: Task) -> int:
            return [failure.backend for failure in load.failures].count(task.address)

        async def by_force(task: Task) -> None:
            nonlocal killed_under
            assert failed_on(task) <= most[task.address]
            at_stake = in_flight(channels, task.address)
            most[task.address] = failed_on(task) + at_stake
            killed_under += at_stake
            task.kill()
            stand_still_until_known(channels, task.address)
            assert await task.ended() == -signal.SIGKILL

        await restart_all(fleet, channels, load, by_force, rounds=2)
    for task in fleet.tasks:
        assert failed_on(task) <= most[task.address]
    show(f"{killed_under} in flight on backends when they were killed")
    assert sum(map(failed_on, fleet.tasks)) == load.begun - load.answered
    assert killed_under


async def test_a_killed_backend_costs_no_call_of_an_idempotent_method() -> None:
    in_flight_on_killed = 0

    def connect(target: str) -> lbclient.Channel:
        config = ChannelConfig(idempotent=("/search.Search/Search",))
        return lbclient.insecure_channel(target, config=config)

    async with Fleet(BACKENDS) as fleet, connected(fleet, connect) as channels:
        for channel in channels:  # else the first kill may find a budget of nothing
            await earn(channel, AT_STAKE)
        load = Load(channels, RATE)

        async def by_force(task: Task) -> None:
            nonlocal in_flight_on_killed
            in_flight_on_killed += in_flight(channels, task.address)
            task.kill()
            assert await task.ended() == -signal.SIGKILL

        await restart_all(fleet, channels, load, by_force, rounds=2)
    show(f"{in_flight_on_killed} in flight on backends when they were killed")
    assert in_flight_on_killed
    assert (load.failures, load.answered) == ([], load.begun)
