"""A server in front of an inference engine tells its clients of the engine's load."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from math import isnan
from typing import Any

import pytest

import lbclient
from lbclient import ChannelConfig, ConfigError, ServerConfig
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
        head = f"HTTP/1.1 {self.status}\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

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


async def test_trouble_is_logged_once_and_so_is_its_end(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lbclient.server.engine_metrics")
    url = await engine.start()
    engine.page = "something else 1\n"
    async with EngineMetrics(url, period=0.1) as metrics:
        await eventually(lambda: engine.requests > 2)
        assert all(isnan(get()) for get in metrics.named_metrics.values())
        engine.page = engine.waiting(5)
        await eventually(lambda: metrics.named_metrics["queue_length"]() == 5.0)
        assert repr(metrics) == f"<{url}: queue_length 5, running nan, kv_cache nan>"
        engine.page = "x" * (MOST_BYTES + 1)
        await eventually(lambda: "more than" in caplog.text)
    words = [record.getMessage() for record in caplog.records]
    assert len(words) == 3
    assert "no metric of an engine that is known" in words[0]
    assert "read again" in words[1]


async def test_an_engine_that_is_not_there_is_unknown() -> None:
    async with EngineMetrics("http://127.0.0.1:1/metrics", period=0.1) as metrics:
        await asyncio.sleep(0)
        assert isnan(metrics.named_metrics["kv_cache"]())


@pytest.mark.parametrize("url", ["", "localhost:8000", "file:///etc/passwd", 7, None])
def test_another_url_is_refused(url: Any) -> None:
    with pytest.raises(ConfigError, match="url"):
        EngineMetrics(url)


@pytest.mark.parametrize("period", [0.0, 61.0, "1", True])
def test_another_period_is_refused(period: Any) -> None:
    with pytest.raises(ConfigError, match="period"):
        EngineMetrics("http://127.0.0.1:8000/metrics", period=period)
