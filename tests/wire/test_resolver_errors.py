"""What the channel makes of a resolver that fails, whichever it is."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import lbclient
from lbclient import metrics
from lbclient.core.model import Endpoints
from lbclient.resolvers import Dns, File, Srv
from lbclient.resolvers.kubernetes import ApiTimeouts, Kubernetes
from lbclient.resolvers.name_servers import NameServers
from tests.wire.disk import Disk
from tests.wire.kubernetes_api import (
    KubernetesApi,
    endpoint,
    endpoint_slice,
    kubernetes_api,
)
from tests.wire.name_server import name_server


async def test_a_resolver_may_be_a_dataclass(
    start: Callable[..., Awaitable[Any]], search: Any
) -> None:
    """It has no hash then: the first call raised TypeError."""

    @dataclass
    class Fixed:
        address: str

        async def watch(self) -> AsyncIterator[Endpoints]:
            yield (lbclient.Endpoint(self.address),)
            await asyncio.Event().wait()

    task = await start(lbclient.server)
    async with lbclient.insecure_channel(Fixed(task.address)) as channel:
        await search.SearchStub(channel).Search(search.Query(), timeout=20)


class FailsLater:
    """Tells one endpoint, then nothing but errors."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.asked_at: list[float] = []

    async def watch(self) -> AsyncIterator[Endpoints]:
        self.asked_at.append(asyncio.get_running_loop().time())
        if len(self.asked_at) == 1:
            yield (lbclient.Endpoint(self.address),)
        raise lbclient.ResolveError("it is out")


async def test_a_lost_backend_cuts_the_pause_after_an_error_short(
    start: Callable[..., Awaitable[Any]],
    search: Any,
    eventually: Callable[..., Awaitable[None]],
) -> None:
    """The pauses double; that in which a connection is lost is shorter."""
    task = await start(lbclient.server)
    resolver = FailsLater(task.address)
    async with lbclient.insecure_channel(resolver) as channel:
        await search.SearchStub(channel).Search(search.Query(), timeout=5)
        await eventually(lambda: len(resolver.asked_at) == 3)
        await task.server.stop(0)
        await eventually(lambda: len(resolver.asked_at) == 4)
        _, first, second, third = resolver.asked_at
        assert third - second < second - first
        assert channel.statistics().resolver.error == "it is out"
        assert channel.statistics().resolver.endpoints == 1


class Empties:
    """Tells lists of so many endpoints, one after the other, each when it is asked."""

    def __init__(self, address: str, *counts: int) -> None:
        self.endpoints = (lbclient.Endpoint(address),)
        self.counts = asyncio.Queue[int]()
        for count in counts:
            self.counts.put_nowait(count)

    def __repr__(self) -> str:
        return "<a list>"

    async def watch(self) -> AsyncIterator[Endpoints]:
        while True:
            yield self.endpoints[: await self.counts.get()]


@pytest.mark.parametrize("counts", [(0,), (1, 0)])
async def test_no_endpoints_are_an_error_as_long_as_there_are_none(
    counts: tuple[int, ...],
    start: Callable[..., Awaitable[Any]],
    search: Any,
    eventually: Callable[..., Awaitable[None]],
) -> None:
    """From the first, and when they are believed: a fleet of none looked healthy."""
    task = await start(lbclient.server)
    resolver = Empties(task.address, *counts)
    config = lbclient.ChannelConfig(empty_after=0.1)
    async with lbclient.insecure_channel(resolver, config=config) as channel:
        registry = CollectorRegistry()
        metrics.export(channel, registry=registry)

        def state() -> tuple[str, float | None]:
            labels = {"target": "<a list>"}
            failing = registry.get_sample_value("lbclient_resolver_failing", labels)
            return channel.statistics().resolver.error, failing

        channel.get_state(try_to_connect=True)
        await eventually(lambda: state() == ("no endpoints", 1.0))
        assert channel.statistics().backends == ()
        resolver.counts.put_nowait(1)
        await search.SearchStub(channel).Search(
            search.Query(), timeout=5, wait_for_ready=True
        )
        assert state() == ("", 0.0)


class Source:
    """A resolver over a real source, which can be broken in some way."""

    def __init__(self, kind: str, how: str, address: str, folder: Path) -> None:
        self.kind, self.how, self.folder = kind, how, folder
        self.port = int(address.rpartition(":")[2])
        self.path = folder / "backends.json"

    async def begin(self, stack: AsyncExitStack) -> Any:
        if self.kind == "file":
            self.path.write_text(json.dumps([{"targets": [f"127.0.0.1:{self.port}"]}]))
        if self.kind == "yaml":
            self.path = self.path.with_suffix(".yaml")
            self.path.write_text(f"- targets: ['127.0.0.1:{self.port}']\n")
        if self.kind in ("file", "yaml"):
            resolver = File(str(self.path), 0.02, patience=1.0)
            resolver.path = self.disk = Disk(self.path)
            stack.callback(self.disk.go_on)
            return resolver
        if self.kind == "k8s":
            self.api = await stack.enter_async_context(kubernetes_api(self.folder))
            ports = [{"name": "grpc", "port": self.port, "protocol": "TCP"}]
            self.api.put(endpoint_slice("search-a", endpoint("127.0.0.1"), ports=ports))
            patience = ApiTimeouts(pause=0.05)
            if self.how == "hangs":
                patience = ApiTimeouts(begin=1.0, end=1.0, pause=0.05)
            return Kubernetes(
                "search", "prod", "grpc", Random(7), self.api.api, patience
            )
        self.server = await stack.enter_async_context(name_server())
        self.server.ttl = 0  # nobody knows how long it holds: the interval counts
        if self.how == "silence":
            self.server.patience = 0.5
        asking = NameServers(self.server.resolver)
        if self.kind == "dns":
            self.server.records["search.test", "A"] = ["127.0.0.1"]
            lookup = asking.addresses
            return Dns("search.test", self.port, 0.1, Random(7), lookup)
        record = f"0 1 {self.port} localhost."
        self.server.records["search.test", "SRV"] = [record]
        return Srv("search.test", 0.1, Random(7), asking.services)

    def spoil(self) -> None:
        if self.kind in ("file", "yaml"):
            self._spoil_file(self.path)
        elif self.kind == "k8s":
            self._spoil_api(self.api)
        elif self.how == "empty":
            self.server.records = {("search.test", "TXT"): ["there is such a name"]}
        else:
            self.server.fails = dict.fromkeys(("A", "AAAA", "SRV"), self.how)

    def _spoil_file(self, path: Path) -> None:
        if self.how == "gone":
            path.unlink()
            return
        if self.how == "hangs":
            self.disk.hang()
            return
        cut = path.read_text()[:-5]
        wrong = '[{"a": 1}]'
        path.write_text(
            {"truncated": cut, "wrong types": wrong, "empty": "[]"}[self.how]
        )

    def _spoil_api(self, api: KubernetesApi) -> None:
        if self.how == "empty":
            api.delete("search-a")
            return
        if self.how == "hangs":
            api.hangs = True
        elif self.how.isdecimal():
            api.refuses = (int(self.how), "it will not")
        else:  # of a list, after a watch that cannot go on
            api.refuses_watches = (410, "too old")
            api.body = {"truncated": b'{"items": [', "wrong types": b"[]"}[self.how]
        api.end_watches()


@pytest.mark.parametrize(
    ("kind", "how", "words"),
    [
        ("dns", "NXDOMAIN", "DNS lookup of 'search.test'"),
        ("dns", "SERVFAIL", "SERVFAIL"),
        ("dns", "silence", "timed out"),
        ("dns", "empty", "no endpoints"),
        ("srv", "NXDOMAIN", "does not exist"),
        ("srv", "SERVFAIL", "SERVFAIL"),
        ("srv", "silence", "timed out"),
        ("srv", "empty", "no endpoints"),
        ("file", "truncated", "cannot use"),
        ("file", "wrong types", "want targets and labels"),
        ("file", "gone", "cannot read"),
        ("file", "hangs", "no answer in 1 s"),
        ("file", "empty", "no endpoints"),
        ("yaml", "truncated", "cannot use"),
        ("yaml", "wrong types", "want targets and labels"),
        ("yaml", "gone", "cannot read"),
        ("yaml", "empty", "no endpoints"),
        ("k8s", "401", "401 it will not"),
        ("k8s", "403", "403 it will not"),
        ("k8s", "410", "410 it will not"),
        ("k8s", "500", "500 it will not"),
        ("k8s", "hangs", "no answer in time"),
        ("k8s", "truncated", "invalid EndpointSlice list"),
        ("k8s", "wrong types", "invalid EndpointSlice list"),
        ("k8s", "empty", "no endpoints"),
    ],
)
async def test_a_source_that_fails_is_told_and_takes_nothing_away(
    kind: str,
    how: str,
    words: str,
    start: Callable[..., Awaitable[Any]],
    search: Any,
    eventually: Callable[..., Awaitable[None]],
    tmp_path: Path,
) -> None:
    task = await start(lbclient.server)
    source = Source(kind, how, task.address, tmp_path)
    async with AsyncExitStack() as stack:
        resolver = await source.begin(stack)
        async with lbclient.insecure_channel(resolver) as channel:
            stub = search.SearchStub(channel)
            await stub.Search(search.Query(), timeout=5)
            registry = CollectorRegistry()
            metrics.export(channel, registry=registry)
            labels = {"target": repr(resolver)}

            def failing() -> float | None:
                return registry.get_sample_value("lbclient_resolver_failing", labels)

            assert failing() == 0.0
            source.spoil()
            await eventually(lambda: channel.statistics().resolver.error)
            assert words in channel.statistics().resolver.error
            assert failing() == 1.0
            assert channel.statistics().resolver.endpoints == 1
            await stub.Search(search.Query(), timeout=5)
