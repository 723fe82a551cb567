"""What a call costs, in counts, on which a busy machine has little influence.

Times are `benchmarks.overhead`'s business.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import monotonic
from types import FrameType
from typing import Any

import grpc
import grpc.aio
import pytest

import lbclient
from lbclient import wire
from lbclient.config import ChannelConfig, ServerConfig

PACKAGE = str(Path(lbclient.__file__).parent)
SERVER = str(Path(PACKAGE) / "server")
LOOP_TIMER = "meters/event_loop.py"
WAKEUPS = "grpc_seam/wakeups.py"  # once for all that comes in a turn of the loop
QUIET = ChannelConfig(health_interval=60)  # no report comes while it is counted
CALLS = 10
COUNTED = 200
TRIES = 10


class Clock:
    """Stands still when it is told to: weights are computed by time, not by call."""

    still: float | None = None

    def __call__(self) -> float:
        return monotonic() if self.still is None else self.still


async def ready_stub(
    start: Any, search: Any, eventually: Any, backends: int, clock: Any = monotonic
) -> tuple[lbclient.Channel, Any]:
    tasks = [await start(lbclient.server) for _ in range(backends)]
    target = "ipv4:" + ",".join(task.address for task in tasks)
    channel = lbclient.Channel(target, None, None, None, None, QUIET, clock)
    await channel.channel_ready()
    await eventually(
        lambda: {b.state for b in channel.statistics().backends} == {"ready"}
    )
    return channel, search.SearchStub(channel)


async def test_a_unary_call_on_a_ready_backend_makes_no_task_but_grpcios(
    start: Any, search: Any, eventually: Any
) -> None:
    channel, stub = await ready_stub(start, search, eventually, backends=2)
    before = asyncio.all_tasks()
    calls = [stub.Search(search.Query(text="x"), timeout=5) for _ in range(3)]
    made = asyncio.all_tasks() - before
    await asyncio.gather(*calls)
    await channel.close()
    assert len(made) == 3


def is_within(frame: FrameType | None, files: str) -> bool:
    """Whether a function of these files runs it, or is it."""
    while frame is not None:
        if files in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


async def functions_called(method: Any, request: Any, but: str = SERVER) -> float:
    """Of the client, for a call: the pick, done callbacks, feedback and all.

    The median of many calls: what runs now and then, however long a machine takes for a
    call, is in others. What the server runs in this process is left out, with all that
    it calls: on a busy machine it samples its load within most calls.
    """
    counted = 0

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal counted
        path = frame.f_code.co_filename
        is_ours = path.startswith(PACKAGE) and not path.endswith(WAKEUPS)
        if event == "call" and is_ours and not is_within(frame, but):
            counted += 1

    await method(request, timeout=5)
    counts = []
    sys.setprofile(profile)
    try:
        for _ in range(COUNTED):
            counted = 0
            await method(request, timeout=5)
            counts.append(counted)
    finally:
        sys.setprofile(None)
    return median(counts)


async def test_a_call_runs_few_functions_however_many_backends_there_are(
    start: Any, search: Any, eventually: Any
) -> None:
    """As many with 2 backends as with 20: one for each backend that the picker looks at
    would show.
    """
    query = search.Query(text="x")
    for backends in (2, 20):
        clock = Clock()
        channel, stub = await ready_stub(start, search, eventually, backends, clock)
        clock.still = clock()
        calls = await functions_called(stub.Search, query)
        await channel.close()
        assert calls <= 40


async def test_a_call_that_streams_requests_runs_few_functions(
    start: Any, search: Any, eventually: Any
) -> None:
    """Of a call with three requests; it was 80."""
    clock, query = Clock(), search.Query(text="x")
    channel, stub = await ready_stub(start, search, eventually, 2, clock)
    clock.still = clock()

    async def index(request: Any, timeout: float) -> None:
        async def three() -> AsyncIterator[Any]:
            for _ in range(3):
                yield request

        await stub.Index(three(), timeout=timeout)

    calls = await functions_called(index, query)
    await channel.close()
    assert calls <= 71


@pytest.mark.parametrize(
    ("config", "most"),
    [
        (ServerConfig(), 13),
        (ServerConfig(request_cost=True, cpu_factor=1.0), 25),
        (ServerConfig(default_quota=1000.0, max_cpu=1.0, cpu_factor=1.0), 24),
    ],
)
async def test_an_idle_server_runs_few_functions_for_a_request(
    start: Any, search: Any, config: ServerConfig, most: float
) -> None:
    """With costs and quotas, who pays is asked and each step is timed.

    Eight of them take the request out of gRPC's core: many at once where many come, so
    that the server takes less than grpcio's own (`benchmarks.overhead`). One request in
    eight runs eight more, which ask the core for the next eight.

    The timer of the loop and its reader of wake-ups are left out: they are called in
    each turn of it, which most are the client's here. They take 0.2 to 0.5 us where
    the loop waits, and 0.8 us where something has come.

    While other processes have the machine its loop is late, and most of its requests
    are watched, by ten functions more: so it has some tries.
    """
    task = await start(lambda: lbclient.server(config=config))
    async with grpc.aio.insecure_channel(task.address) as channel:
        stub = search.SearchStub(channel)
        query = search.Query(text="x")
        for _ in range(TRIES):
            calls = await functions_called(stub.Search, query, but=LOOP_TIMER)
            if calls <= most:
                return
            await asyncio.sleep(0.5)
    pytest.fail(f"{calls} functions")


class RefusesOnce(grpc.aio.ServerInterceptor):
    """The next request, when it is told to, as a task that has too much does."""

    is_due = False

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        if not self.is_due:
            return await continuation(details)
        self.is_due = False

        async def refuse(_: Any, context: Any) -> None:
            context.set_trailing_metadata(((wire.REFUSAL_KEY, "overloaded"),))
            await context.abort(grpc.StatusCode.UNAVAILABLE, "too much to do")

        return grpc.unary_unary_rpc_method_handler(refuse)


async def way_of(method: Any, request: Any) -> list[str]:
    """The files that the functions of a call are in, in the order they are called."""
    files: list[str] = []

    def profile(frame: FrameType, event: str, _: object) -> None:
        path = frame.f_code.co_filename
        is_ours = path.startswith(PACKAGE) and not path.endswith(WAKEUPS)
        if event == "call" and is_ours:
            files.append(path.removeprefix(PACKAGE))

    sys.setprofile(profile)
    try:
        await method(request, timeout=5)
    finally:
        sys.setprofile(None)
    return files


def moves_in(way: list[str]) -> int:
    return sum(before != after for before, after in pairwise(way))


async def test_the_way_of_a_call_is_short_also_of_one_that_is_sent_again(
    start: Any, search: Any
) -> None:
    """It was 22 functions in 9 files; with a retry 38 moves between 17 files, 51 when a
    retry was decided, counted and sent to its backend in steps of their own, and 79
    when the direct call and the wrapped one each thought of the next attempt.
    """
    refusing, clock = RefusesOnce(), Clock()
    tasks = [
        await start(lambda: grpc.aio.server(interceptors=(refusing,))) for _ in range(2)
    ]
    target = "ipv4:" + ",".join(task.address for task in tasks)
    config = ChannelConfig(health_interval=60, throttle=0, subset_size=2)
    channel = lbclient.Channel(target, None, None, None, None, config, clock)
    stub, query = search.SearchStub(channel), search.Query(text="x")
    for _ in range(10 * CALLS):  # which earn it retries
        await stub.Search(query, timeout=5, wait_for_ready=True)
    clock.still = clock()
    warm = [await way_of(stub.Search, query) for _ in range(CALLS)]
    again = []
    for _ in range(CALLS):
        refusing.is_due = True
        again.append(await way_of(stub.Search, query))
    retries = channel.statistics().retries
    await channel.close()
    assert retries == CALLS
    assert min(map(len, warm)) <= 24
    assert min(len(set(way)) for way in warm) <= 9
    assert min(map(moves_in, again)) <= 38
    assert min(len(set(way)) for way in again) <= 17


async def test_hedging_costs_a_wrapper_and_a_timer_and_only_where_it_is(
    start: Any, search: Any
) -> None:
    """It was 48 functions for a method that is hedged, and 22 for the others."""
    tasks = [await start(grpc.aio.server) for _ in range(2)]
    target = "ipv4:" + ",".join(task.address for task in tasks)
    counts = []
    for idempotent in ((), ("/search.Search/Search",)):
        config = ChannelConfig(
            health_interval=60, hedging=True, hedging_delay=60, idempotent=idempotent
        )
        clock = Clock()
        channel = lbclient.Channel(target, None, None, None, None, config, clock)
        stub, query = search.SearchStub(channel), search.Query(text="x")
        await stub.Search(query, timeout=90, wait_for_ready=True)
        clock.still = clock()
        counts.append(await functions_called(stub.Search, query))
        await channel.close()
    assert counts[0] <= 24
    assert counts[1] <= 52
