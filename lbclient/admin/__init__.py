"""The status page of a process: `/lbz`, and the same data as JSON at `/lbz.json`.

It shows the open channels and servers of this process, whoever made them: a process
that has to be looked into at night should not have to be changed for it first. It needs
nothing that lbclient does not need, and changes nothing but what is kept of picks and
latencies: see `lbclient.core.statistics.recent`. It asks nobody who they are, hence
127.0.0.1.
"""

import asyncio
import errno
import json
import mimetypes
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from os import getpid
from typing import Any

from lbclient.admin.asgi_site import AsgiSite
from lbclient.admin.debug import register
from lbclient.admin.history import History
from lbclient.admin.http import HttpRequest, HttpResponse, Site
from lbclient.admin.siblings import PATH, Siblings
from lbclient.admin.snapshot import program, snapshot
from lbclient.core.errors import ConfigError
from lbclient.log import Log

__all__ = ["asgi", "page", "register"]

logger = Log(__name__)

PORT = 9465  # Ours: beside 9464, which OpenTelemetry gives to its metrics
JSON = "application/json; charset=utf-8"
NEXT, MOST_PORT = 16, 65535  # ports that are tried if one is taken, and the last
KEPT = 0.25  # seconds; so many lookers cost as much as four


@asynccontextmanager
async def page(
    port: int = PORT, host: str = "127.0.0.1", *, names: Collection[str] = ()
) -> AsyncIterator[str]:
    """Serves the page for as long as the block runs; yields its URL.

    `port` 0 is any that is free. Where it is taken, as by another worker of the same
    program, it is the next free one of the 16 that follow, which the log tells. Each
    page links to those on the other ones.
    Requests must name an address, localhost, `host` or one of `names`. Raises
    ConfigError for a port or a host that cannot be had, and for one text as `names`.
    """
    _check_names(names)
    history, siblings = History(), Siblings(host)
    site = Site(pages(history, siblings), {"localhost", host, *names})
    try:
        wanted, port = port, await _open(site, host, port)
    except (OSError, OverflowError) as error:
        if _is_of_host(error):
            want = f"a name or an address of this machine: {error}"
            raise ConfigError("host", host, want) from None
        raise ConfigError(
            "port", port, f"one that is free on {host}: {error}"
        ) from None
    if wanted:
        siblings.watch(
            one for one in _tried(wanted) if one != port and one <= MOST_PORT
        )
    keeping = asyncio.create_task(history.keep())
    try:
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{port}/lbz"
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await siblings.close()
        await site.close()


def _tried(port: int) -> range:
    """The ports of which a page takes the first that is free."""
    return range(port, port + NEXT + 1 if port else 1)


async def _open(site: Site, host: str, port: int) -> int:
    for tried in _tried(port):
        try:
            found = await site.open(host, tried)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or tried in (port + NEXT, MOST_PORT):
                raise
        else:
            if port and found != port:
                logger.info("port %d is taken: the page is on port %d", port, found)
            return found
    raise AssertionError("the last one raises")


def asgi(*, names: Collection[str] = ()) -> Callable[..., Awaitable[None]]:
    """The page as an ASGI application: `app.mount("/debug", lbclient.admin.asgi())`.

    It is then at `/debug/lbz`, for whoever reaches the application it is mounted in:
    keep that path from strangers. Requests must name an address, localhost or one of
    `names`, as with `page`. Of several workers, it shows the one that answers.
    """
    _check_names(names)
    return AsgiSite(Site(pages(History(), Siblings("")), {"localhost", *names}))


def _check_names(names: Any) -> None:
    if isinstance(names, str):
        raise ConfigError("names", names, f"a collection of names: [{names!r}]")
    if not isinstance(names, Collection) or not all(isinstance(n, str) for n in names):
        raise ConfigError("names", names, "a collection of names, each a text")


def _is_of_host(error: Exception) -> bool:
    if isinstance(error, socket.gaierror):
        return error.errno != socket.EAI_SERVICE
    # Python 3.13 gives no number where no address of the host is this machine's.
    return isinstance(error, OSError) and error.errno in (errno.EADDRNOTAVAIL, None)


def pages(
    history: History,
    siblings: Siblings,
    described: Callable[[], dict[str, Any]] = snapshot,
) -> dict[str, Callable[[HttpRequest], HttpResponse]]:
    """What is served by path. `described` is what the page shows, as `shape` has it."""
    tell = _Telling(described)
    document = _file("lbz.html")

    def lbz(request: HttpRequest) -> HttpResponse:
        """The same address for people and for programs."""
        accepted = ",".join(request.headers.get("accept", ()))
        is_program = "application/json" in accepted and "text/html" not in accepted
        return tell(request) if is_program else document

    pages: dict[str, Callable[[HttpRequest], HttpResponse]] = {
        "/lbz": lbz,
        "/lbz.json": tell,
        "/lbz/history.json": lambda _: HttpResponse(JSON, _text(history.told())),
        "/lbz/siblings.json": lambda _: HttpResponse(JSON, _text(siblings.told())),
        PATH: lambda _: HttpResponse(
            JSON, _text({"program": program(), "pid": getpid()})
        ),
    }
    for name in ("page.css", "page.js", "charts.js", "uplot.css", "uplot.js"):
        pages[f"/lbz/{name}"] = partial(_given, _file(name))
    return pages


def _given(answer: HttpResponse, _: HttpRequest) -> HttpResponse:
    return answer


def _file(name: str) -> HttpResponse:
    kind, _ = mimetypes.guess_type(name)
    return HttpResponse(
        f"{kind}; charset=utf-8", (files(__name__) / "static" / name).read_bytes()
    )


def _text(said: object) -> bytes:
    return json.dumps(said, separators=(",", ":"), allow_nan=False).encode()


class _Telling:
    """The JSON, made again when it is asked for some time after the last."""

    def __init__(self, described: Callable[[], dict[str, Any]]) -> None:
        self._described = described
        self._answer: HttpResponse | None = None
        self._made_at = 0.0

    def __call__(self, _: HttpRequest) -> HttpResponse:
        now = time.monotonic()  # an ASGI server may run on trio
        if self._answer is None or now >= self._made_at + KEPT:
            self._answer = HttpResponse(JSON, _text(self._described()))
            self._made_at = now
        return self._answer
