"""A server in front of an inference engine tells its clients of the engine's load."""

import asyncio
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from math import isnan
from typing import Any, NoReturn

import pytest

import lbclient
from lbclient import ChannelConfig, ConfigError, ServerConfig
from lbclient.core.report import engine_page
from lbclient.server import engine_metrics
from lbclient.server.engine_metrics import MOST_BYTES, EngineMetrics
from tests.hosts import Host, unary_unary
from tests.waiting import eventually

ECHO = "/test.Keys/Echo"
QUEUE = "named_metrics.queue_length"


class Engine:
    """Serves a Prometheus page over HTTP, or what a test makes of it."""

    def __init__(self) -> None:
        self.page = self.waiting(3)
        self.status = "200 OK"
        self.location = ""
        self.drips_from = ""  # of the response: from here on a byte a time, for ever
        self.hung_up = 0  # on a response that drips
        self.requests = 0
        self._server: asyncio.Server | None = None

    @staticmethod
    def waiting(count: float) -> str:
        name = 'num_requests_waiting{engine="0",model_name="m"}'
        return f"# TYPE vllm:num_requests_waiting gauge\nvllm:{name} {count}\n"

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}/metrics"

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.requests += 1
        body = self.page.encode()
        status = self.status.replace("N", str(self.requests))
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n"
        head += f"Location: {self.location}\r\n" if self.location else ""
        whole = f"{head}Connection: close\r\n\r\n".encode() + body
        if self.drips_from:
            await self._drip(reader, writer, whole)
        else:
            writer.write(whole)
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def _drip(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, whole: bytes
    ) -> None:
        begin, mark, _ = whole.partition(self.drips_from.encode())
        writer.write(begin + mark)
        while not reader.at_eof():
            writer.write(b"x")
            with suppress(TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.02)
        self.hung_up += 1

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    made = Engine()
    yield made
    await made.stop()


async def echo(request: bytes, _: Any) -> bytes:
    return request


async def test_reports_carry_what_the_engine_tells_and_nothing_that_is_old(
    engine: Engine, host: Host
) -> None:
    now = 100.0
    url = await engine.start()
    async with EngineMetrics(url, period=0.1, clock=lambda: now) as metrics:
        config = ServerConfig(named_metrics=metrics.named_metrics, smoothing=0.01)
        address = (await host({ECHO: unary_unary(echo)}, config=config)).address
        settings = ChannelConfig(picker="cache_aware")
        async with lbclient.insecure_channel(
            f"ipv4:{address}", config=settings
        ) as channel:
            await channel.channel_ready()

            async def told() -> float | None:
                with lbclient.key("session-42"):
                    await channel.unary_unary(ECHO)(b"", timeout=5)
                (node,) = channel.balancer().pool.nodes.values()
                assert node.load.report is not None
                return node.load.report.metrics.get(QUEUE)

            await until(told, lambda value: value == pytest.approx(3.0))
            engine.page = engine.waiting(0)
            await until(told, lambda value: value == pytest.approx(0.001))
            engine.status = "503 Service Unavailable"
            before = engine.requests
            await eventually(lambda: engine.requests > before + 1)
            assert await told() is not None
            now += 1.0
            await until(told, lambda value: value is None)
            engine.status = "200 OK"
            await until(told, lambda value: value is not None)


async def until(ask: Callable[[], Any], is_right: Callable[[Any], bool]) -> None:
    for _ in range(600):
        if is_right(await ask()):
            return
        await asyncio.sleep(0.02)
    assert is_right(await ask())


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, "lbclient.server.engine_metrics")
    return lambda: [record.getMessage() for record in caplog.records]


async def test_trouble_is_logged_once_and_so_is_its_end(
    engine: Engine, said: Callable[[], list[str]]
) -> None:
    url = await engine.start()
    engine.page = "something else 1\n"
    async with EngineMetrics(url, period=0.1) as metrics:
        await eventually(lambda: engine.requests > 2)
        assert all(isnan(get()) for get in metrics.named_metrics.values())
        engine.page = engine.waiting(5)
        await eventually(lambda: metrics.named_metrics["queue_length"]() == 5.0)
        assert repr(metrics) == f"<{url}: queue_length 5, running nan, kv_cache nan>"
        before = engine.requests
        await eventually(lambda: engine.requests > before + 2)
        engine.page += "vllm:num_requests_running 2\nvllm:kv_cache_usage_perc 0.5\n"
        await eventually(lambda: metrics.named_metrics["kv_cache"]() == 0.5)
        engine.page = "x" * (MOST_BYTES + 1)
        await eventually(lambda: "more than" in said()[-1])
    words = said()
    assert len(words) == 4
    assert "no metric of an engine that is known" in words[0]
    assert "the page does not tell them: running, kv_cache" in words[1]
    assert "read again" in words[2]


async def test_errors_whose_words_differ_are_logged_once(
    engine: Engine, said: Callable[[], list[str]]
) -> None:
    url = await engine.start()
    engine.status = "503 N th refusal"
    async with EngineMetrics(url, period=0.1):
        await eventually(lambda: engine.requests > 3)
    (words,) = said()
    assert "HTTP 503 1 th refusal" in words


@pytest.mark.parametrize("drips_from", ["HTTP/1.1 200", "Length: ", "\r\n\r\n"])
async def test_a_page_that_drips_has_an_end(
    engine: Engine, said: Callable[[], list[str]], drips_from: str
) -> None:
    """Each read of it is soon done; its head may drip, too."""
    engine.drips_from = drips_from
    engine.page = "x" * MOST_BYTES
    url = await engine.start()
    async with EngineMetrics(url, period=0.1):
        await eventually(lambda: engine.hung_up > 1, said)
    (words,) = said()
    assert "no whole page within 0.2 s" in words


async def test_a_page_that_ends_early_is_not_read(
    engine: Engine, said: Callable[[], list[str]]
) -> None:
    """Of 37 it may have the 3."""
    engine.status = "200 OK\r\nContent-Length: 1000"
    url = await engine.start()
    async with EngineMetrics(url, period=0.1) as metrics:
        await eventually(said)
        assert isnan(metrics.named_metrics["queue_length"]())
    assert "bytes early" in said()[0]


async def test_no_redirect_is_followed(
    engine: Engine, said: Callable[[], list[str]]
) -> None:
    other = Engine()
    try:
        engine.location = await other.start()
        engine.status = "302 Found"
        url = await engine.start()
        async with EngineMetrics(url, period=0.1):
            await eventually(lambda: engine.requests > 2)
    finally:
        await other.stop()
    assert other.requests == 0
    assert "HTTP 302 Found" in said()[0]


def test_nothing_waits_for_a_lookup_that_hangs(
    monkeypatch: pytest.MonkeyPatch, said: Callable[[], list[str]]
) -> None:
    """A resolver has no timeout; one thread hangs, and not one more each period."""
    is_over = threading.Event()
    lookups = []

    def hang(*place: object, **how: object) -> NoReturn:
        lookups.append(threading.current_thread())
        is_over.wait(60)
        raise socket.gaierror("no answer")

    async def leave() -> None:
        monkeypatch.setattr(socket, "getaddrinfo", hang)
        async with EngineMetrics("http://engine.test/metrics", period=0.1):
            await eventually(said)

    try:
        asyncio.run(leave())
        (thread,) = lookups
        assert thread.is_alive()
        assert not is_over.is_set()
    finally:
        is_over.set()
    thread.join()
    assert "no whole page within 0.2 s" in said()[0]


async def test_a_page_is_parsed_in_the_thread_that_reads_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large one would hold up the event loop."""
    names = []

    def read(text: str) -> engine_page.EngineReading:
        names.append(threading.current_thread().name)
        return engine_page.read_page(text)

    monkeypatch.setattr(engine_metrics, "read_page", read)
    async with EngineMetrics(await engine.start(), period=0.1) as metrics:
        await eventually(lambda: metrics.named_metrics["queue_length"]() == 3.0)
    assert {*names} == {"lbclient engine metrics"}


async def test_an_engine_that_is_not_there_is_unknown() -> None:
    async with EngineMetrics("http://127.0.0.1:1/metrics", period=0.1) as metrics:
        await asyncio.sleep(0)
        assert isnan(metrics.named_metrics["kv_cache"]())


URLS = [
    *("", "localhost:8000", "file:///etc/passwd", 7, None, "http://:80/metrics"),
    *("http://127.0.0.1:99999", "http://127.0.0.1:x", "http://[::1", "http://a:0"),
    "http://somebody:word@127.0.0.1:8000/metrics",
]


@pytest.mark.parametrize("url", URLS)
def test_another_url_is_refused(url: Any) -> None:
    with pytest.raises(ConfigError, match="url"):
        EngineMetrics(url)


@pytest.mark.parametrize("period", [0.0, 61.0, "1", True])
def test_another_period_is_refused(period: Any) -> None:
    with pytest.raises(ConfigError, match="period"):
        EngineMetrics("http://127.0.0.1:8000/metrics", period=period)
