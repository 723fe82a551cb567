"""Which endpoints stand for a task, as servers tell a channel of its workers."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from lbclient import wire
from lbclient.client.backends.worker_endpoints import WorkerEndpoints
from lbclient.client.channel_context import channel_context
from lbclient.client.reported import Reported
from lbclient.config import ChannelConfig
from lbclient.core.backends.condition import Condition
from lbclient.core.backends.task_workers import (
    LOOK_EVERY,
    MOST_DIALS,
    NO_WORKERS,
    RETRIES,
    SILENT_AFTER,
    ToldWorkers,
)
from lbclient.core.load import Load
from lbclient.core.model import Endpoint, LoadReport, State, TaskState
from tests.waiting import eventually

SHARED = "10.0.0.1:50051"


def told(*own: int) -> ToldWorkers:
    return ToldWorkers(7, ((50051, own),))


def endpoints(
    apply: Callable[[], None], backends: dict[str, Any] | None = None
) -> WorkerEndpoints:
    clock = asyncio.get_running_loop().time
    context = channel_context("test", ChannelConfig(), clock, Random(1))
    backend_at = {} if backends is None else backends
    return WorkerEndpoints(
        context, apply, backend_at.get, lambda _, count: range(count)
    )


def backend(address: str, worker: int, state: State = State.READY) -> Any:
    return SimpleNamespace(
        endpoint=Endpoint(address),
        state=state,
        reported=SimpleNamespace(worker_id=worker),
        dial_again=lambda reason: None,
    )


async def test_ports_that_change_again_and_again_are_applied_now_and_then() -> None:
    loop = asyncio.get_running_loop()
    applied: list[float] = []
    workers = endpoints(lambda: applied.append(loop.time()))
    port = 0

    async def tell() -> None:
        nonlocal port
        port += 1
        workers.hear(SHARED, told(port))

    await eventually(lambda: len(applied) == 3, meanwhile=tell)
    workers.stop()
    assert applied[1] - applied[0] >= 0.9 * LOOK_EVERY
    assert applied[2] - applied[1] >= 0.9 * LOOK_EVERY


def reported_to(workers: WorkerEndpoints, address: str) -> Reported:
    lifecycle = SimpleNamespace(is_away=lambda: False)
    return Reported(
        "test",
        address,
        SimpleNamespace(lifecycle=lifecycle, take=None),  # type: ignore[arg-type]
        Load(),
        Condition(0.0),
        time.monotonic,
        takes_sessions=False,
        tell_workers=partial(workers.hear, address),
    )


async def test_a_worker_that_alone_is_not_reached_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    backends = {
        f"10.0.0.1:{port}": backend(f"10.0.0.1:{port}", port, state)
        for port, state in ((1, State.READY), (2, State.CONNECTING))
    }
    workers = endpoints(lambda: None, backends)
    workers.hear(SHARED, told(1, 2))
    workers.changed(backends["10.0.0.1:1"])
    await asyncio.sleep(SILENT_AFTER / 2)
    assert not caplog.text
    await eventually(lambda: "this worker gets no calls" in caplog.text)
    backends["10.0.0.1:2"].state = State.REFUSING
    workers.changed(backends["10.0.0.1:2"])
    await asyncio.sleep(2 * SILENT_AFTER)
    assert caplog.text.count("this worker gets no calls") == 1
    workers.stop()


async def test_what_another_connection_was_told_does_not_count() -> None:
    workers = endpoints(lambda: None)
    reported = reported_to(workers, SHARED)
    reported.hear_workers(told(1, 2))
    own: Any = SimpleNamespace(
        endpoint=Endpoint("10.0.0.1:1"), reported=reported_to(workers, "10.0.0.1:1")
    )
    own.reported.hear_workers(told(1, 2))
    assert not workers.is_stranger(own)
    own.reported.disconnected()
    assert workers.is_stranger(own)  # until it is told again
    own.reported.hear_workers(None, 0, True)  # a server of ours that tells no more yet
    assert not workers.is_stranger(own)
    own.reported.hear_workers(NO_WORKERS, 0, True)
    assert workers.is_stranger(own)
    # Nor does it keep the same from being told again, once it was forgotten.
    workers.keep((Endpoint("10.0.0.9:50051"),))
    workers.keep((Endpoint(SHARED),))
    reported.disconnected()
    reported.hear_workers(told(1, 2))
    assert len(workers.expand(Endpoint(SHARED))) == 3
    workers.stop()


async def test_several_tasks_at_one_address_are_one_backend() -> None:
    """Each tells workers of its own; to follow each in turn would be no end of it."""
    workers = endpoints(lambda: None)
    reported = reported_to(workers, SHARED)
    task = Endpoint(SHARED)
    reported.hear_workers(told(1, 2))
    assert len(workers.expand(task)) == 3
    for number in (11, 12, 11):
        reported.hear(None, LoadReport(0.5, 1.0, 0.0, task_id=number))
    assert reported.is_shared()
    assert workers.expand(task) == (task,)
    reported.hear_workers(told(3))
    assert workers.expand(task) == (task,)
    workers.stop()


@pytest.mark.parametrize("lands", [SHARED, f"{SHARED}#2"])
async def test_a_connection_that_is_dropped_goes_at_once_and_comes_back(
    lands: str,
) -> None:
    """Also where the first one lands at the worker of another, which then goes."""
    backends: dict[str, Any] = {}
    applied: list[int] = []

    def apply() -> None:
        applied.append(len(workers.expand(Endpoint(SHARED))))

    workers = endpoints(apply, backends)
    workers.hear(SHARED, ToldWorkers(7, (), 2))  # without own ports
    await eventually(lambda: applied == [2])
    backends |= {one: backend(one, 11) for one in (SHARED, f"{SHARED}#2")}
    for _ in range(2 * MOST_DIALS):
        assert workers.is_double(backends[lands])
    assert workers.is_double(backends[lands]) is (lands != SHARED)
    await eventually(lambda: applied == [2, 1])
    if lands != SHARED:
        assert workers.is_double(backends[lands])  # it leaves, however late
        await eventually(lambda: applied == [2, 1, 1])
    del applied[:]
    await asyncio.sleep(RETRIES.after(1))
    await eventually(lambda: applied == [2])
    workers.stop()


async def test_a_connection_that_comes_back_while_it_drains_is_looked_at() -> None:
    """Until that is applied it is not among the channel's backends."""
    second = backend(f"{SHARED}#2", 11)
    again: list[str] = []
    second.dial_again = lambda reason: again.append(reason)
    backends = {SHARED: backend(SHARED, 11)}

    def apply() -> None:
        backends[second.endpoint.address] = second

    workers = endpoints(apply, backends)
    workers.hear(SHARED, ToldWorkers(7, (), 2))
    await eventually(lambda: again)
    workers.stop()


async def test_an_answer_on_the_connection_tells_whose_it_is() -> None:
    """Perhaps before a stream does."""
    reported = reported_to(endpoints(lambda: None), SHARED)
    health = wire.Health(TaskState.SERVING, report=LoadReport(task_id=11))
    assert reported.answered(health) == (TaskState.SERVING, "")
    assert reported.worker_id == 11


async def test_two_at_one_worker_part_when_a_worker_is_replaced_at_once() -> None:
    """The connection that was to go with a worker stays if another one has come before
    that was applied. Meanwhile the first one landed at the worker of the second."""
    backends = {one: backend(one, 11) for one in (SHARED, f"{SHARED}#2")}
    again: list[str] = []
    for address, each in backends.items():
        each.dial_again = lambda reason, address=address: again.append(address)
    workers = endpoints(lambda: None, backends)
    workers.hear(SHARED, ToldWorkers(7, (), 2))
    await eventually(lambda: again)
    again.clear()
    backends[SHARED].reported.worker_id = 12
    workers.hear(SHARED, ToldWorkers(7, (), 3))
    await asyncio.sleep(0)
    assert again == []  # each has a worker of its own
    backends[SHARED].reported.worker_id = 11
    workers.hear(SHARED, ToldWorkers(7, (), 2))
    await eventually(lambda: again == [f"{SHARED}#2"])
    workers.stop()
