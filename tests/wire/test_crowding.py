"""Clients whose subsets chance made uneven, on servers that tell how many they have."""

from collections import Counter
from contextlib import AsyncExitStack
from itertools import count, islice
from typing import Any

import pytest

import lbclient
from lbclient.config import ChannelConfig
from lbclient.core.backends import crowding
from lbclient.core.backoff import Backoff
from lbclient.core.model import Endpoint
from lbclient.subsets import Rendezvous

CLIENTS, BACKENDS, SIZE = 12, 6, 2


def ids_that_choose(address: str, endpoints: tuple[Endpoint, ...]) -> Any:
    """Of clients in whose subset it is."""
    for number in count():
        chosen = Rendezvous(f"client-{number}")(endpoints)[:SIZE]
        if address in {endpoint.address for endpoint in chosen}:
            yield f"client-{number}"


def clients_of(channels: list[lbclient.Channel]) -> Counter[str]:
    backends = (b for channel in channels for b in channel.statistics().backends)
    return Counter(backend.address for backend in backends)


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowding, "LOOKS", Backoff(0.3, 60.0, 0.25))


async def test_clients_leave_whom_too_many_have_chosen(
    start: Any, eventually: Any
) -> None:
    tasks = [await start(lbclient.server) for _ in range(BACKENDS)]
    endpoints = tuple(Endpoint(task.address) for task in tasks)
    target = "ipv4:" + ",".join(task.address for task in tasks)
    async with AsyncExitStack() as stack:
        channels = []
        ids = islice(ids_that_choose(tasks[0].address, endpoints), CLIENTS)
        for client_id in ids:
            config = ChannelConfig(
                subset_size=SIZE, client_id=client_id, health_interval=0.2
            )
            channel = lbclient.insecure_channel(target, config=config)
            channels.append(await stack.enter_async_context(channel))
            await channel.channel_ready()
            # Now: the first may leave before the last is there.
            assert clients_of([channel])[tasks[0].address] == 1
        await eventually(lambda: max(clients_of(channels).values()) <= 0.75 * CLIENTS)
