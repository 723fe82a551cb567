"""A real scrape over HTTP, in its own thread, while calls run."""

import asyncio
import gc
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import pytest
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.parser import text_string_to_metric_families

import lbclient
from lbclient.core.model import Endpoint, Endpoints
from lbclient.metrics import export
from tests import needs

Series = dict[tuple[str, str], float]
"""By name, and the value of the label that is not `target`."""


class Scraper:
    def __init__(self, registry: CollectorRegistry, port: int) -> None:
        self.registry = registry
        self._url = f"http://127.0.0.1:{port}/metrics"

    def text(self) -> str:
        with urlopen(self._url, timeout=10) as response:
            assert response.status == 200
            return str(response.read().decode())

    def series(self) -> Series:
        series: Series = {}
        for family in text_string_to_metric_families(self.text()):
            for sample in family.samples:
                labels = [v for k, v in sample.labels.items() if k != "target"]
                series[sample.name, "".join(labels)] = sample.value
        return series

    async def __call__(self) -> Series:
        return await asyncio.to_thread(self.series)


@contextmanager
def http_server(registry: CollectorRegistry) -> Iterator[int]:
    server, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def scrape() -> Iterator[Scraper]:
    registry = CollectorRegistry()
    with http_server(registry) as port:
        yield Scraper(registry, port)


async def test_a_scrape_sees_calls_on_both_sides(
    scrape: Scraper, start: Callable[..., Awaitable[Any]], search: Any
) -> None:
    tasks = [await start(lbclient.server) for _ in range(2)]
    for task in tasks:
        export(task.server, scrape.registry)
    target = "ipv4:" + ",".join(task.address for task in tasks)
    async with lbclient.insecure_channel(target) as channel:
        export(channel, scrape.registry)
        stub = search.SearchStub(channel)
        for _ in range(10):
            await stub.Search(search.Query(), timeout=10)
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.Search(search.Query(text="fail"), timeout=10)
        slow = stub.Search(search.Query(text="sleep 10"), timeout=10)
        seen = await scrape()
        slow.cancel()
        assert seen["lbclient_calls_total", "OK"] == 10
        assert seen["lbclient_calls_total", "INTERNAL"] == 1
        assert seen["lbclient_attempts_total", "served"] == 10
        assert seen["lbclient_attempts_total", "failed"] == 1
        assert seen["lbclient_attempt_latency_seconds_count", ""] == 11
        assert seen["lbclient_attempt_latency_seconds_bucket", "+Inf"] == 11
        assert seen["lbclient_in_flight", ""] == 1
        assert seen["lbclient_backends", "ready"] == 2
        assert seen["lbclient_resolver_endpoints", ""] == 2
        assert seen["lbclient_server_requests_total", "OK"] == 10
        assert seen["lbclient_server_requests_total", "INTERNAL"] == 1
        assert seen["lbclient_server_latency_seconds_count", ""] == 11
        assert seen["lbclient_server_state", "serving"] == 2
        assert seen["lbclient_picks_total", "weighted_least_loaded"] == 12
        assert seen["lbclient_subset_size", ""] == 2
        assert seen["lbclient_retries_left", ""] == pytest.approx(1.1)
        assert seen["lbclient_weights_gcount", ""] == 2
        assert seen["lbclient_weights_gsum", ""] == pytest.approx(2.0)
        assert seen["lbclient_report_ages_seconds_gcount", ""] == 2
        assert seen["lbclient_server_signal", "load"] < 1


async def test_each_method_is_counted_on_both_sides_whatever_its_arity(
    scrape: Scraper, start: Callable[..., Awaitable[Any]], search: Any
) -> None:
    task = await start(lbclient.server)
    export(task.server, scrape.registry)
    async with lbclient.insecure_channel(task.address) as channel:
        export(channel, scrape.registry)
        stub = search.SearchStub(channel)
        again = search.SearchStub(channel)
        for text in ("", "", "fail"):
            with suppress(grpc.aio.AioRpcError):
                await stub.Search(search.Query(text=text), timeout=10)
        await again.Search(search.Query(), timeout=10)
        async for _ in stub.Pages(search.Query(), timeout=10):
            pass
        await stub.Index(iter([search.Query()]), timeout=10)
        async for _ in stub.Chat(iter([search.Query()]), timeout=10):
            pass
        unknown = channel.unary_unary("/search.Search/Unknown")
        with pytest.raises(grpc.aio.AioRpcError):
            await unknown(b"", timeout=10)
        waiting = stub.Search(search.Query(text="sleep 10"), timeout=10)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        text = await asyncio.to_thread(scrape.text)
    service = 'grpc_service="search.Search"'

    def line(side: str, code: str, method: str, kind: str) -> str:
        labels = f'grpc_code="{code}",grpc_method="{method}",{service}'
        return f'grpc_{side}_handled_total{{{labels},grpc_type="{kind}"}}'

    series = {
        name: float(value)
        for name, _, value in (row.rpartition(" ") for row in text.splitlines())
        if name.startswith("grpc_") and "Cancelled" not in name
    }
    both = ("client", "server")
    assert series == {
        **{line(side, "OK", "Search", "unary"): 3 for side in both},
        **{line(side, "Internal", "Search", "unary"): 1 for side in both},
        **{line(side, "OK", "Pages", "server_stream"): 1 for side in both},
        **{line(side, "OK", "Index", "client_stream"): 1 for side in both},
        **{line(side, "OK", "Chat", "bidi_stream"): 1 for side in both},
        line("client", "Unimplemented", "Unknown", "unary"): 1,
        'grpc_server_handled_total{grpc_code="Unimplemented",grpc_method="unknown",'
        'grpc_service="unknown",grpc_type="unknown"}': 1,
    }


async def test_a_lame_duck_shows_on_both_sides(
    scrape: Scraper,
    start: Callable[..., Awaitable[Any]],
    eventually: Callable[..., Awaitable[None]],
) -> None:
    stays, leaves = await start(lbclient.server), await start(lbclient.server)
    export(leaves.server, scrape.registry)
    target = f"ipv4:{stays.address},{leaves.address}"
    async with lbclient.insecure_channel(target) as channel:
        export(channel, scrape.registry)
        await channel.channel_ready()
        leaves.server.lame_duck()
        await eventually(
            lambda: "lame duck" in [b.state for b in channel.statistics().backends]
        )
        seen = await scrape()
        assert seen["lbclient_backends", "lame_duck"] == 1
        assert seen["lbclient_server_state", "lame_duck"] == 1
        assert seen["lbclient_server_state", "serving"] == 0


async def test_counts_outlive_the_channel_and_never_go_down(
    scrape: Scraper, start: Callable[..., Awaitable[Any]], search: Any
) -> None:
    task = await start()

    async def use() -> Series:
        async with lbclient.insecure_channel(task.address) as channel:
            export(channel, scrape.registry)
            await search.SearchStub(channel).Search(search.Query(), timeout=10)
            return await scrape()

    for n in (1, 2, 3):
        assert (await use())["lbclient_calls_total", "OK"] == n
        gc.collect()
        seen = await scrape()
        assert seen["lbclient_calls_total", "OK"] == n
        assert ("lbclient_channels", "") not in seen


async def test_a_scrape_starts_no_channel(scrape: Scraper) -> None:
    async with lbclient.insecure_channel("127.0.0.1:1") as channel:
        export(channel, scrape.registry)
        assert (await scrape())["lbclient_channels", ""] == 1
        assert channel.get_state() is grpc.ChannelConnectivity.IDLE
    assert ("lbclient_channels", "") not in await scrape()


async def test_scrapes_in_threads_disturb_nothing(
    scrape: Scraper,
    start: Callable[..., Awaitable[Any]],
    search: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The endpoints change all the time, codes come up; four threads look on."""
    tasks = [await start() for _ in range(2)]

    class Restless:
        async def watch(self) -> AsyncIterator[Endpoints]:
            ours = tuple(Endpoint(task.address) for task in tasks)
            for i in range(10_000):
                others = range(50_000, 50_000 + i % 5)
                yield (*ours, *(Endpoint(f"127.0.0.1:{port}") for port in others))
                await asyncio.sleep(0.002)

    def scrape_on(totals: list[float]) -> None:
        while not done.is_set():
            seen = scrape.series()
            totals.append(seen.get(("lbclient_calls_total", "OK"), 0.0))

    done = asyncio.Event()
    totals: list[list[float]] = [[] for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        async with lbclient.insecure_channel(Restless()) as channel:
            export(channel, scrape.registry)
            stub = search.SearchStub(channel)
            threads = [asyncio.to_thread(scrape_on, total) for total in totals]
            scraping = asyncio.gather(*threads)
            for i in range(100):
                text = "fail" if i % 10 == 0 else ""
                await asyncio.gather(
                    stub.Search(search.Query(text=text), timeout=10),
                    return_exceptions=True,
                )
            done.set()
            await scraping
            assert (await scrape())["lbclient_calls_total", "OK"] == 90
    finally:
        sys.setswitchinterval(interval)
    for total in totals:
        assert total == sorted(total)
    assert "could not be read" not in caplog.text


async def test_the_kill_switch_switches_metrics_off_too(scrape: Scraper) -> None:
    plain = grpc.aio.insecure_channel("127.0.0.1:1")
    export(plain, scrape.registry)
    export(grpc.aio.server(), scrape.registry)
    assert await scrape() == {}
    await plain.close()


async def test_promtool_finds_no_fault(
    scrape: Scraper, start: Callable[..., Awaitable[Any]]
) -> None:
    needs.program("promtool")
    task = await start(lbclient.server)
    export(task.server, scrape.registry)
    async with lbclient.insecure_channel(task.address) as channel:
        export(channel, scrape.registry)
        await channel.channel_ready()
        checked = await asyncio.to_thread(
            subprocess.run,
            ["promtool", "check", "metrics"],
            input=await asyncio.to_thread(scrape.text),
            text=True,
            capture_output=True,
        )
    assert (checked.returncode, checked.stderr) == (0, "")


WITHOUT_FOLDER = """
import asyncio, lbclient
from lbclient.metrics import export
from lbclient.metrics.multiprocess import mirror

async def main():
    server = lbclient.server()
    export(server)
    for _ in range(3):
        mirror().write()
    await server.stop(None)

asyncio.run(main())
"""


def test_a_folder_of_several_workers_that_is_missing_is_told_once(
    tmp_path: Path,
) -> None:
    """It was told every five seconds, with a traceback, as on a full disk."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_FOLDER],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "missing")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("metrics could not be written for other processes") == 1
    assert "FileNotFoundError" in done.stderr
