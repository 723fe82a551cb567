"""Tells clients of an inference engine's load, by reading its Prometheus page.

For a server in front of an engine: `ServerConfig.named_metrics` takes what is read
here, and load reports carry it. What the page does not have, and what is old, is left
out of reports: to a picker it is unknown, not idle.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from math import nan
from time import monotonic
from types import TracebackType
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

from lbclient.background.tasks import is_fatal
from lbclient.core.errors import ConfigError
from lbclient.core.protocols import Clock
from lbclient.core.report.engine_page import EngineReading, read_page
from lbclient.core.text import printable
from lbclient.log import Log

logger = Log(__name__)

MOST_BYTES = 4 * 2**20  # of a page; vLLM's has some 100 KiB
PERIODS = 5  # without an answer, until what was read is old


class EngineMetrics:
    """Reads an inference engine's Prometheus page every `period` seconds.

    `url` is http or https, as "http://127.0.0.1:8000/metrics". `named_metrics` is for
    `ServerConfig`: `queue_length` and `running` are requests, `kv_cache` is the share
    of that memory in use. Each is NaN while it is not known, or was read more than five
    periods ago. Reads while it is used with `async with`. Raises ConfigError for
    another url, and for a period that is not 0.1 to 60 s.

    Example:

        async with EngineMetrics("http://127.0.0.1:8000/metrics") as engine:
            config = ServerConfig(named_metrics=engine.named_metrics)
            await lbclient.serve(lbclient.server(config=config))
    """

    def __init__(
        self, url: str, *, period: float = 1.0, clock: Clock = monotonic
    ) -> None:
        parts = urlsplit(url) if isinstance(url, str) else None
        if parts is None or parts.scheme not in ("http", "https") or not parts.netloc:
            want = "a URL such as 'http://127.0.0.1:8000/metrics'"
            raise ConfigError("url", url, want)
        if type(period) not in (int, float) or not 0.1 <= period <= 60.0:
            raise ConfigError("period", period, "seconds, 0.1 to 60")
        self._url = url
        self._period = period
        self._clock = clock
        self._reading = EngineReading()
        self._read_at = 0.0
        self._trouble = ""
        self._task: asyncio.Task[None] | None = None
        self.named_metrics: Mapping[str, Callable[[], float]] = {
            name: partial(self._value, place)
            for place, name in enumerate(EngineReading._fields)
        }

    def _value(self, place: int) -> float:
        value = self._reading[place]
        is_old = self._clock() - self._read_at > PERIODS * self._period
        return nan if value is None or is_old else value

    async def __aenter__(self) -> "EngineMetrics":
        self._task = asyncio.get_running_loop().create_task(self._read_on())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _read_on(self) -> None:
        while True:
            try:
                text = await asyncio.to_thread(_fetch, self._url, 2.0 * self._period)
                self._take(read_page(text))
            except Exception as error:
                if is_fatal(error):
                    raise
                self._complain(repr(error))
            await asyncio.sleep(self._period)

    def _take(self, reading: EngineReading) -> None:
        self._reading, self._read_at = reading, self._clock()
        if reading == EngineReading():
            self._complain("it has no metric of an engine that is known")
        elif self._trouble:
            self._trouble = ""
            logger.info("%s: the engine's metrics are read again", self._url)

    def _complain(self, trouble: str) -> None:
        """Logs it once, until it is over or another."""
        trouble = printable(trouble)
        if trouble != self._trouble:
            self._trouble = trouble
            words = "%s: the engine's metrics are unknown: %s"
            logger.warning(words, self._url, trouble, reason=trouble)

    def __repr__(self) -> str:
        read = ", ".join(f"{n} {get():g}" for n, get in self.named_metrics.items())
        return f"<{self._url}: {read}>"


def _fetch(url: str, timeout: float) -> str:
    opener = build_opener(ProxyHandler({}))  # an engine is near: no proxy
    with opener.open(url, timeout=timeout) as answer:
        page: bytes = answer.read(MOST_BYTES + 1)
    if len(page) > MOST_BYTES:
        raise ValueError(f"a page of more than {MOST_BYTES} bytes")
    return page.decode("utf-8", "replace")
