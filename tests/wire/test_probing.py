"""Pickers that ask: who is asked over the wire, what comes of it, and what does not."""

from collections.abc import Sequence
from random import Random
from typing import Any

import grpc
import pytest

import lbclient
from lbclient.client.backends.backend import Backend
from lbclient.config import ChannelConfig
from lbclient.core.model import LoadReport
from lbclient.pickers import Prequal
from lbclient.pickers.random import Random as ByLot


class Asks:
    """Has everybody asked after each pick, and keeps what they say."""

    def __init__(self, rng: Random) -> None:
        self._picker = ByLot(rng)
        self.probes: list[Backend] = []
        self.said: list[LoadReport | None] = []

    def pick(self, ready: Sequence[Backend], now: float) -> Backend:
        self.probes += ready
        return self._picker.pick(ready, now)

    def weights(self, ready: Sequence[Backend], now: float) -> Sequence[float]:
        return self._picker.weights(ready, now)

    def probed(self, node: Backend, report: LoadReport | None, now: float) -> None:
        self.said.append(report)


class Fails(Asks):
    def probed(self, node: Backend, report: LoadReport | None, now: float) -> None:
        raise ValueError("no such thing")


async def calling(
    start: Any, search: Any, eventually: Any, picker: Any, make: Any = lbclient.server
) -> tuple[lbclient.Channel, Any, list[Any]]:
    tasks = [await start(make) for _ in range(3)]
    target = "ipv4:" + ",".join(task.address for task in tasks)
    config = ChannelConfig(picker=picker)
    channel = lbclient.insecure_channel(target, config=config)
    await channel.channel_ready()
    nodes = channel.balancer().pool.nodes
    await eventually(lambda: all(node.load.ready_at for node in nodes.values()))
    return channel, search.SearchStub(channel), tasks


async def test_who_is_asked_says_how_long_requests_take(
    start: Any, search: Any, eventually: Any
) -> None:
    channel, stub, _ = await calling(start, search, eventually, Asks)
    async with channel:
        picker: Any = channel.balancer().pickers.current
        for _ in range(20):
            await stub.Search(search.Query(text="sleep 0.002"))
        await eventually(lambda: len(picker.said) == 60)
        assert None not in picker.said
        assert picker.said[-1].active in (0, 1)  # the call itself, if it is slower
        assert max(report.latency for report in picker.said[-3:]) >= 0.002
        assert channel.balancer().pickers.probing.sent == 60


async def test_prequal_goes_by_what_it_was_told(
    start: Any, search: Any, eventually: Any
) -> None:
    """The busy one has the most requests: it is hot, and left to a pick by lot."""
    channel, stub, tasks = await calling(start, search, eventually, "prequal")
    busy = tasks[0]
    async with channel, grpc.aio.insecure_channel(busy.address) as direct:
        text = search.Query(text="sleep 60")
        others = [search.SearchStub(direct).Search(text) for _ in range(20)]
        await eventually(lambda: busy.servicer.served == 20)
        for _ in range(60):
            await stub.Search(search.Query())
        assert busy.servicer.served - 20 < 15
        assert isinstance(channel.balancer().pickers.current, Prequal)
        for call in others:
            call.cancel()


async def test_who_has_no_answer_is_not_asked(
    start: Any, search: Any, eventually: Any
) -> None:
    channel, stub, _ = await calling(start, search, eventually, Asks, grpc.aio.server)
    async with channel:
        for _ in range(10):
            await stub.Search(search.Query())
        assert channel.balancer().pickers.probing.sent == 0


async def test_short_requests_are_worth_no_probe(
    start: Any, search: Any, eventually: Any
) -> None:
    channel, stub, _ = await calling(start, search, eventually, "weighted_least_loaded")
    async with channel:
        for _ in range(50):
            await stub.Search(search.Query())
        assert channel.balancer().pickers.probing.sent == 0


async def test_a_picker_that_fails_at_an_answer_harms_no_call(
    start: Any, search: Any, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    channel, stub, _ = await calling(start, search, eventually, Fails)
    async with channel:
        for _ in range(5):
            await stub.Search(search.Query())
        await eventually(lambda: "probing continues" in caplog.text)


async def test_probes_are_over_when_the_channel_is(
    start: Any, search: Any, eventually: Any
) -> None:
    channel, stub, _ = await calling(start, search, eventually, Asks)
    await stub.Search(search.Query())
    probing = channel.balancer().pickers.probing
    await channel.close()
    await eventually(lambda: "0 not answered" in repr(probing))
