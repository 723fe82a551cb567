"""Channels that have settings of their own, by the target or by the name."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

import lbclient
from lbclient import admin
from lbclient.admin.snapshot import MOST_TABLES, snapshot, unused_tables
from lbclient.cli import main
from lbclient.core.model import Endpoint, Endpoints
from lbclient.metrics import export

Start = Callable[..., Awaitable[Any]]


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a text into the file that channels read."""

    def write(text: str) -> Path:
        path = tmp_path / "lb.toml"
        path.write_text(text)
        monkeypatch.setenv("LBCLIENT_CONFIG", str(path))
        return path

    return write


async def test_a_channel_takes_the_table_of_its_target(
    start: Start, settings: Callable[[str], Path]
) -> None:
    tasks = [await start(lbclient.server) for _ in range(3)]
    target = "ipv4:" + ",".join(task.address for task in tasks)
    other = f"{target},127.0.0.1:1"
    settings(f"[channel]\nsubset_size = 2\n[channel.'{target}']\nsubset_size = 1\n")
    async with (
        lbclient.insecure_channel(target) as one,
        lbclient.insecure_channel(other) as two,
        lbclient.insecure_channel(target, config=lbclient.ChannelConfig()) as three,
    ):
        for channel, size in ((one, 1), (two, 2), (three, 3)):
            await channel.channel_ready()
            assert channel.statistics().subset_size == size


async def test_a_named_channel_takes_the_table_of_its_name_before_its_target_s(
    start: Start, settings: Callable[[str], Path]
) -> None:
    tasks = [await start(lbclient.server) for _ in range(3)]
    target = "ipv4:" + ",".join(task.address for task in tasks)

    class Known:
        async def watch(self) -> AsyncIterator[Endpoints]:
            yield tuple(Endpoint(task.address) for task in tasks)
            await asyncio.Event().wait()

    settings(
        f"[channel]\nsubset_size = 3\n[channel.'{target}']\nsubset_size = 2\n"
        "[channel.batch]\nsubset_size = 1\n"
    )
    async with (
        lbclient.insecure_channel(target, name="batch") as one,
        lbclient.insecure_channel(target, name="search") as two,
        lbclient.insecure_channel(Known(), name="search") as three,
        lbclient.insecure_channel(Known(), name="batch") as of_resolver,
    ):
        sizes = ((one, 1), (two, 2), (three, 3), (of_resolver, 1))
        for channel, size in sizes:
            await channel.channel_ready()
            assert channel.statistics().subset_size == size


async def test_a_name_is_the_label_everywhere(
    start: Start,
    search: Any,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG, "lbclient")
    task, registry = await start(lbclient.server), CollectorRegistry()
    target = f"ipv4:{task.address}"
    async with (
        admin.page(port=0) as url,
        lbclient.insecure_channel(target, name="search") as channel,
    ):
        export(channel, registry, backends=1)
        before = channel.statistics()
        await search.SearchStub(channel).Search(search.Query(), timeout=10)
        for seen in (before, channel.statistics()):
            assert (seen.name, seen.label, seen.target) == ("search", "search", target)
        assert repr(channel).startswith(f"<lbclient channel 'search' to {target}, ")
        samples = [s for family in registry.collect() for s in family.samples]
        labels = {s.labels["target"] for s in samples if "target" in s.labels}
        assert labels == {"search"}
        (shown,) = [one for one in snapshot()["channels"] if one["target"] == target]
        assert shown["name"] == "search"
        words = ["inspect", "--interval", "0.5", url.removeprefix("http://")]
        assert await asyncio.to_thread(main, words) == 0
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert lines[lines.index(["channel", "search"]) + 1] == ["target", target]
    told = [one.getMessage() for one in caplog.records if one.name != "lbclient.admin"]
    assert any(line.startswith("search: 1 endpoints") for line in told)
    assert not [line for line in told if line.startswith(target)]
    of_channel = [vars(r) for r in caplog.records if r.name == "lbclient.balancer"]
    assert {one["lbclient_channel"] for one in of_channel} == {"search"}
    changes = [one for one in of_channel if one["lbclient_state"]]
    assert {one["lbclient_backend"] for one in changes} == {task.address}
    assert {"connecting", "ready"} & {one["lbclient_state"] for one in changes}
    assert all(one["lbclient_reason"] for one in changes)


async def test_without_a_name_the_target_is_the_label() -> None:
    async with lbclient.insecure_channel("127.0.0.1:1") as channel:
        seen = channel.statistics()
        assert (seen.name, seen.label) == ("", "127.0.0.1:1")
        assert repr(channel) == "<lbclient channel to 127.0.0.1:1, idle>"


class Scrape:
    """What a registry shows of channels, by name and the label `target`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

    def __call__(self, name: str, label: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, {"target": label, **labels})


async def test_channels_of_one_name_are_summed_in_metrics_and_nowhere_else(
    start: Start, search: Any
) -> None:
    """As those of one target are; also where their targets differ."""
    tasks, scrape = [await start(lbclient.server) for _ in range(2)], Scrape()
    one = lbclient.insecure_channel(f"ipv4:{tasks[0].address}", name="search")
    two = lbclient.insecure_channel(f"ipv4:{tasks[1].address}", name="search")
    async with one, two:
        for channel, calls in ((one, 1), (two, 2)):
            export(channel, scrape.registry)
            for _ in range(calls):
                await search.SearchStub(channel).Search(search.Query(), timeout=10)
        assert scrape("lbclient_channels", "search") == 2
        assert scrape("lbclient_calls_total", "search", code="OK") == 3
        assert scrape("lbclient_backends", "search", state="ready") == 2
        assert scrape("lbclient_resolver_endpoints", "search") == 1  # the highest
        assert [channel.statistics().calls["OK"] for channel in (one, two)] == [1, 2]
        shown = [one for one in snapshot()["channels"] if one["name"] == "search"]
        assert [channel["calls"]["OK"] for channel in shown] == [1, 2]
        await one.close()
        assert scrape("lbclient_channels", "search") == 1
        assert scrape("lbclient_calls_total", "search", code="OK") == 3


async def test_channels_of_one_target_and_several_names_are_told_apart(
    start: Start, search: Any
) -> None:
    task, scrape = await start(lbclient.server), Scrape()
    one = lbclient.insecure_channel(task.address, name="online")
    two = lbclient.insecure_channel(task.address, name="batch")
    async with one, two:
        for channel, calls in ((one, 1), (two, 2)):
            export(channel, scrape.registry)
            for _ in range(calls):
                await search.SearchStub(channel).Search(search.Query(), timeout=10)
        assert scrape("lbclient_calls_total", "online", code="OK") == 1
        assert scrape("lbclient_calls_total", "batch", code="OK") == 2
        assert scrape("lbclient_calls_total", task.address, code="OK") is None


async def test_tables_that_no_open_channel_takes_are_shown(
    settings: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = settings("[channel.batch]\nseed = 1\n[channel.'ipv4:127.0.0.1:1']\nseed = 2")
    by_name, by_target = (
        f'{path} [channel."batch"]',
        f'{path} [channel."ipv4:127.0.0.1:1"]',
    )

    def unused() -> list[str]:
        told: list[str] = snapshot()["unused_tables"]
        return [one for one in told if one.startswith(str(path))]

    async with admin.page(port=0) as url, lbclient.insecure_channel("127.0.0.1:2"):
        assert unused() == [by_name, by_target]
        words = ["inspect", "--interval", "0.5", url.removeprefix("http://")]
        assert await asyncio.to_thread(main, words) == 0
        out = "".join(capsys.readouterr().out.split())  # long lines are folded
        assert f"unusedsettings{by_name}".replace(" ", "") in out
        async with lbclient.insecure_channel("ipv4:127.0.0.1:1"):
            assert unused() == [by_name]
            async with lbclient.insecure_channel("127.0.0.1:2", name="batch"):
                assert unused() == []
        assert unused() == [by_name, by_target]


def test_unused_tables_have_an_end() -> None:
    tables = {f"/lb.toml [channel.{n}]": False for n in range(1000)}
    config = replace(lbclient.ChannelConfig(), _tables=tables)
    assert len(unused_tables([config])) == MOST_TABLES


@pytest.mark.parametrize(
    "name", [None, 7, "a\nb", "\x1b[2J", "\u202e", "x" * 101, " ", "search "]
)
def test_a_name_is_a_short_line(name: Any) -> None:
    credentials = grpc.ssl_channel_credentials()
    makes: list[Callable[[], object]] = [
        lambda: lbclient.insecure_channel("127.0.0.1:1", name=name),
        lambda: lbclient.secure_channel("127.0.0.1:1", credentials, name=name),
    ]
    for make in makes:
        with pytest.raises(lbclient.ConfigError) as caught:
            make()
        want = "want text, at most 100 printable characters, no space around it"
        assert str(caught.value).startswith("name = ")
        assert str(caught.value).endswith(want)


async def test_the_kill_switch_s_channel_has_no_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LBCLIENT_DISABLE", "1")
    async with lbclient.insecure_channel("127.0.0.1:1", name="search") as channel:
        assert isinstance(channel, grpc.aio.Channel)
        assert not isinstance(channel, lbclient.client.channel.Channel)
