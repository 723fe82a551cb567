"""Which endpoints stand for a task, as servers tell a channel of its workers."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from random import Random
from types import SimpleNamespace

from lbclient.client.backends.worker_endpoints import WorkerEndpoints
from lbclient.client.channel_context import channel_context
from lbclient.client.reported import Reported
from lbclient.config import ChannelConfig
from lbclient.core.backends.condition import Condition
from lbclient.core.backends.task_workers import LOOK_EVERY, ToldWorkers
from lbclient.core.load import Load
from lbclient.core.model import Endpoint, LoadReport
from tests.waiting import eventually

SHARED = "10.0.0.1:50051"


def told(*own: int) -> ToldWorkers:
    return ToldWorkers(7, ((50051, own),))


def endpoints(apply: Callable[[], None]) -> WorkerEndpoints:
    context = channel_context("test", ChannelConfig(), time.monotonic, Random(1))
    return WorkerEndpoints(
        context, apply, lambda _: None, lambda _, count: range(count)
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


async def test_several_tasks_at_one_address_are_one_backend() -> None:
    """Each tells workers of its own; to follow each in turn would be no end of it."""
    workers = endpoints(lambda: None)
    reported = Reported(
        "test",
        SHARED,
        SimpleNamespace(lifecycle=None, take=None),  # type: ignore[arg-type]
        Load(),
        Condition(0.0),
        time.monotonic,
        takes_sessions=False,
        tell_workers=partial(workers.hear, SHARED),
    )
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
