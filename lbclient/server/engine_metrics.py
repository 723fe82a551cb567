"""Tells clients of an inference engine's load, by reading its Prometheus page.

For a server in front of an engine: `ServerConfig.named_metrics` takes what is read
here, and load reports carry it. What the page does not have, and what is old, is left
out of reports: to a picker it is unknown, not idle.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from functools import partial
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from io import BufferedReader, RawIOBase
from math import nan
from time import monotonic
from types import TracebackType
from typing import Any
from urllib.parse import SplitResult, urlsplit

from lbclient.background.tasks import is_fatal
from lbclient.background.threads import in_daemon_thread
from lbclient.core.errors import ConfigError
from lbclient.core.protocols import Clock
from lbclient.core.report.engine_page import EngineReading, read_page
from lbclient.core.text import printable
from lbclient.log import Log

logger = Log(__name__)

MOST_BYTES = 4 * 2**20  # of a page; vLLM's has some 100 KiB
PIECE = 65536  # bytes of a page that are read at once, at most
LONGEST_READ = 5.0  # seconds for a page, however long the period is
PERIODS = 5  # without an answer, until what was read is old

# Times as long as a page may take is waited for it: the connection may take as long as
# the page, and so may each further address of a name. A lookup has no limit.
LIMITS = 3


class EngineMetrics:
    """Reads an inference engine's Prometheus page every `period` seconds.

    `url` is http or https, as "http://127.0.0.1:8000/metrics". `named_metrics` is for
    `ServerConfig`: `queue_length` and `running` are requests, `kv_cache` is the share
    of that memory in use. Each is NaN while it is not known, or was read more than five
    periods ago. Reads while it is used with `async with`, in a thread of its own. A
    page may take two periods, and 5 s at most; redirects are not followed. Raises
    ConfigError for another url, and for a period that is not 0.1 to 60 s.

    Example:

        async with EngineMetrics("http://127.0.0.1:8000/metrics") as engine:
            config = ServerConfig(named_metrics=engine.named_metrics)
            await lbclient.serve(lbclient.server(config=config))
    """

    def __init__(
        self, url: str, *, period: float = 1.0, clock: Clock = monotonic
    ) -> None:
        self._parts = _parts_of(url)
        if type(period) not in (int, float) or not 0.1 <= period <= 60.0:
            raise ConfigError("period", period, "seconds, 0.1 to 60")
        self._url = url
        self._period = period
        self._clock = clock
        self._reading = EngineReading()
        self._read_at = 0.0
        self._limit = min(2.0 * period, LONGEST_READ)
        self._trouble = ""  # that was logged last; empty: all is well
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
        page: asyncio.Future[EngineReading] | None = None
        try:
            while True:
                try:
                    if page is None:
                        read = partial(_read, self._parts, self._limit)
                        page = in_daemon_thread("lbclient engine metrics", read)
                    await asyncio.wait([page], timeout=LIMITS * self._limit)
                    if page.done():
                        ended, page = page, None
                        self._take(ended.result())
                    else:  # no second thread while this one hangs
                        self._fail(_too_late(self._limit))
                except Exception as error:
                    if is_fatal(error):
                        raise
                    self._fail(error)
                await asyncio.sleep(self._period)
        finally:
            if page is not None and not page.cancel():
                page.exception()  # or asyncio says that nobody asked for it

    def _take(self, reading: EngineReading) -> None:
        self._reading, self._read_at = reading, self._clock()
        found = reading._asdict().items()
        missing = ", ".join(name for name, value in found if value is None)
        if not missing:
            self._say("", logging.INFO, "all are read again")
        elif reading == EngineReading():
            words = "unknown: the page has no metric of an engine that is known"
            self._say(missing, logging.WARNING, words)
        else:
            words = f"unknown, as the page does not tell them: {missing}"
            self._say(missing, logging.WARNING, words)

    def _fail(self, error: Exception) -> None:
        """Errors are one trouble: the words of some differ each time."""
        words = f"the page could not be read: {printable(repr(error))}"
        self._say("unreadable", logging.WARNING, words)

    def _say(self, trouble: str, level: int, words: str) -> None:
        """Logs it once, until it is over or another."""
        if trouble != self._trouble:
            self._trouble = trouble
            said = "%s: the engine's metrics: %s"
            logger.log(level, said, self._url, words, reason=words)

    def __repr__(self) -> str:
        read = ", ".join(f"{n} {get():g}" for n, get in self.named_metrics.items())
        return f"<{self._url}: {read}>"


class _Timed(RawIOBase):
    """Reads a response until its time is over, its head included: a timeout alone is
    for each read, and bytes that drip never run into it."""

    def __init__(self, connection: socket.socket, limit: float) -> None:
        self._connection = connection
        self._file: Any = connection.makefile("rb", buffering=0)
        self._limit = limit
        self._ends_at = monotonic() + limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._ends_at - monotonic()
        if left <= 0.0:
            raise _too_late(self._limit)
        self._connection.settimeout(left)
        try:
            count: int | None = self._file.readinto(buffer)
        except TimeoutError:
            raise _too_late(self._limit) from None
        return count

    def makefile(self, mode: str) -> BufferedReader:
        """What HTTPResponse wants of a socket."""
        return BufferedReader(self, PIECE)

    def close(self) -> None:
        self._file.close()
        super().close()


def _too_late(limit: float) -> TimeoutError:
    return TimeoutError(f"no whole page within {limit:g} s")


def _parts_of(url: object) -> SplitResult:
    """Raises ConfigError for what no page can be read from."""
    want = "a URL such as 'http://127.0.0.1:8000/metrics'"
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        is_right = parts.port != 0 and parts.hostname and "@" not in parts.netloc
    except ValueError:  # a port or an IPv6 address
        is_right = False
    if not is_right or parts.scheme not in ("http", "https"):
        raise ConfigError("url", url, want)
    return parts


def _read(parts: SplitResult, limit: float) -> EngineReading:
    """Without a proxy, as an engine is near, and without redirects."""
    make = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    port = parts.port or make.default_port  # else an IPv6 address would be split
    connection = make(parts.hostname or "", port, timeout=limit)

    def answer_of(reader: socket.socket, **how: Any) -> HTTPResponse:
        timed: Any = _Timed(reader, limit)
        return HTTPResponse(timed, **how)

    connection.response_class = answer_of  # type: ignore[assignment]
    try:
        path = parts._replace(scheme="", netloc="", fragment="").geturl()
        connection.request("GET", path or "/", headers={"Connection": "close"})
        with connection.getresponse() as answer:
            return read_page(_whole(answer))
    finally:
        connection.close()


def _whole(answer: HTTPResponse) -> str:
    if answer.status != 200:
        raise ValueError(f"HTTP {answer.status} {answer.reason}")
    page = bytearray()
    while piece := answer.read1(PIECE):
        page += piece
        if len(page) > MOST_BYTES:
            raise ValueError(f"a page of more than {MOST_BYTES} bytes")
    if answer.length:
        raise ValueError(f"the page ended {answer.length} bytes early")
    return page.decode("utf-8", "replace")
