"""Which endpoints stand for a task, as servers tell a channel of its workers."""

import asyncio
import time
from collections.abc import Callable
from random import Random

from lbclient.client.channel_context import channel_context
from lbclient.client.worker_endpoints import WorkerEndpoints
from lbclient.config import ChannelConfig
from lbclient.core.model import State
from lbclient.core.task_workers import LOOK_EVERY, ToldWorkers
from tests.waiting import eventually

SHARED = "10.0.0.1:50051"


def told(*own: int) -> ToldWorkers:
    return ToldWorkers(7, ((50051, own),))


def endpoints(apply: Callable[[], None]) -> WorkerEndpoints:
    context = channel_context("test", ChannelConfig(), time.monotonic, Random(1))
    return WorkerEndpoints(
        context, apply, lambda _: State.READY, lambda _, count: range(count)
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
