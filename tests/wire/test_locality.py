"""Two zones of real servers: calls stay, spill when it is full here, and return."""

import json
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import lbclient
from lbclient import ChannelConfig, ServerConfig

LOCAL = ChannelConfig(locality=True, zone="a", slow_start=0.0, idle_after=0.0)


class Zones:
    """Two servers in zone a, two in b; they report what `used` says."""

    def __init__(self, start: Callable[..., Awaitable[Any]], path: Path) -> None:
        self.start = start
        self.path = path
        self.used = {"a": 0.3, "b": 0.3}
        self.zone_of: dict[str, str] = {}
        self.tasks: list[Any] = []

    async def begin(self, **priorities: int) -> str:
        for zone in "aabb":
            config = ServerConfig(
                utilization=partial(self.used.__getitem__, zone),
                utilization_replaces=True,
                smoothing=0.1,
            )
            task = await self.start(partial(lbclient.server, config=config))
            self.tasks.append(task)
            self.zone_of[task.address] = zone
        groups = [
            {
                "targets": [address],
                "labels": {"zone": zone, "priority": priorities.get(zone, 0)},
            }
            for address, zone in self.zone_of.items()
        ]
        self.path.write_text(json.dumps(groups))
        return f"file://{self.path}"


async def test_calls_stay_in_their_zone_spill_over_and_come_back(
    start: Callable[..., Awaitable[Any]],
    search: Any,
    eventually: Callable[..., Awaitable[None]],
    tmp_path: Path,
) -> None:
    zones = Zones(start, tmp_path / "backends.json")
    target = await zones.begin()
    config = replace(LOCAL, spill_above={"a": 0.9, "elsewhere": 0.5})
    async with lbclient.insecure_channel(target, config=config) as channel:
        stub = search.SearchStub(channel)

        async def went(calls: int = 50) -> Counter[str]:
            zone_of: Counter[str] = Counter()
            for _ in range(calls):
                call = stub.Search(search.Query(text="sleep 0.005"), timeout=5)
                await call
                zone_of[zones.zone_of[str(lbclient.info(call).backend)]] += 1
            return zone_of

        await channel.channel_ready()
        await eventually(
            lambda: [b.state for b in channel.statistics().backends] == ["ready"] * 4
        )
        assert await went() == {"a": 50}
        assert "3 of 4 in zone 'a'" in channel.statistics().subset
        zones.used["a"] = 0.8  # above the default limit, and below that of its zone
        assert await went(100) == {"a": 100}
        zones.used["a"] = 1.5
        shares = [(await went())["b"]]
        while shares[-1] < 10 and len(shares) < 60:
            shares.append((await went())["b"])
        assert shares[-1] >= 10
        # Bit by bit: never nearly all at once, however long a slow machine took.
        assert max(after - before for before, after in pairwise(shares)) <= 25
        weights = {b.zone: b.weight for b in channel.statistics().backends}
        assert weights["b"] > 0.0
        home, other = channel.statistics().zones
        assert (home.zone, home.ready, other.zone, other.ready) == ("a", 2, "b", 2)
        assert home.utilization == pytest.approx(1.5, abs=0.1)
        assert (home.limit, other.limit) == (0.9, 0.7)
        assert home.share + other.share == pytest.approx(1.0)
        assert channel.statistics().spilled == sum(shares)
        zones.used["a"] = 0.1
        for _ in range(60):
            if (await went())["b"] == 0:
                break
        assert await went() == {"a": 50}


async def test_the_next_priority_is_for_when_the_first_is_full_or_gone(
    start: Callable[..., Awaitable[Any]],
    search: Any,
    eventually: Callable[..., Awaitable[None]],
    tmp_path: Path,
) -> None:
    """Without any setting: the file has priorities, and the client no zone."""
    zones = Zones(start, tmp_path / "backends.json")
    target = await zones.begin(b=1)
    config = ChannelConfig(slow_start=0.0, idle_after=0.0)
    async with lbclient.insecure_channel(target, config=config) as channel:
        stub = search.SearchStub(channel)

        async def went(calls: int = 50) -> Counter[int]:
            priorities: Counter[int] = Counter()
            for _ in range(calls):
                call = stub.Search(search.Query(text="sleep 0.005"), timeout=5)
                await call
                info = lbclient.info(call)
                assert not info.left_zone
                assert info.zone == ("b" if info.priority else "a")
                priorities[info.priority] += 1
            return priorities

        await channel.channel_ready()
        await eventually(
            lambda: [b.state for b in channel.statistics().backends] == ["ready"] * 4
        )
        assert await went() == {0: 50}
        seen = channel.statistics()
        assert (seen.picker, seen.spilled) == ("WeightedLeastLoaded", 0)
        assert "3 of 4 of priority 0" in seen.subset
        zones.used["a"] = 1.5
        for _ in range(60):
            if (await went())[1]:
                break
        assert (await went())[1] > 0
        assert 0 < channel.statistics().zones[0].share < 1
        for task in zones.tasks[:2]:
            await task.server.stop(None)
        await eventually(lambda: channel.statistics().zones[0].ready == 0)
        assert await went() == {1: 50}


async def test_calls_leave_at_once_when_a_backend_of_the_zone_is_lost(
    start: Callable[..., Awaitable[Any]],
    search: Any,
    eventually: Callable[..., Awaitable[None]],
    tmp_path: Path,
) -> None:
    """One would have 1.2 of what it can do: 0.7 / 1.2 of the calls stay."""
    zones = Zones(start, tmp_path / "backends.json")
    zones.used["a"] = 0.6
    target = await zones.begin()
    async with lbclient.insecure_channel(target, config=LOCAL) as channel:
        stub = search.SearchStub(channel)

        def told() -> list[float]:
            backends = channel.statistics().backends
            return sorted(round(b.utilization or 0.0, 2) for b in backends)

        await channel.channel_ready()
        await eventually(lambda: told() == [0.3, 0.3, 0.6, 0.6])
        await stub.Search(search.Query(), timeout=5)
        await zones.tasks[0].server.stop(None)
        await eventually(
            lambda: [b.state for b in channel.statistics().backends].count("ready") == 3
        )
        went: Counter[str] = Counter()
        for _ in range(50):
            call = stub.Search(search.Query(), timeout=5)
            await call
            went[zones.zone_of[str(lbclient.info(call).backend)]] += 1
        assert 10 <= went["b"] <= 35


async def test_a_zone_that_is_gone_is_no_reason_to_fail(
    start: Callable[..., Awaitable[Any]], search: Any, tmp_path: Path
) -> None:
    zones = Zones(start, tmp_path / "backends.json")
    target = await zones.begin()
    config = ChannelConfig(locality=True, zone="c")
    async with lbclient.insecure_channel(target, config=config) as channel:
        stub = search.SearchStub(channel)
        for _ in range(10):
            await stub.Search(search.Query(), timeout=5)
        assert "none in zone 'c'" in channel.statistics().subset


def test_locality_wants_to_know_where_the_client_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LBCLIENT_ZONE", raising=False)
    with pytest.raises(lbclient.ConfigError, match="LBCLIENT_ZONE"):
        lbclient.insecure_channel(
            "dns:///search:1", config=ChannelConfig(locality=True)
        )
