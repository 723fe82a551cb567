"""A minimal HTTP server for the status page: GET only, one request a connection.

Everything that a client could make large is limited: the head of a request, the time it
takes, connections in all and from one address. A connection beyond the limit closes the
oldest one, which is the likeliest to be idle: requests take milliseconds. The Host
header is checked, so that a page elsewhere cannot read this one through a name that
resolves to this address (DNS rebinding).
"""

import asyncio
import socket
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address
from typing import Any

from lbclient.log import Log

HEAD_SIZE = 8192  # bytes; what servers take of a request by default
PATIENCE = 10.0  # seconds for a request and its answer
CONNECTIONS = 32  # at a time; ours: four addresses with all that each may have
OF_ONE = 8  # of one address, or IPv6 prefix of 64 bits; a browser has 6

PLAIN = "text/plain; charset=utf-8"

# Nothing from elsewhere, nothing in a frame, nothing kept.
HEADERS = (
    "Content-Security-Policy: default-src 'none'; script-src 'self'; "
    "style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options: nosniff",
    "Referrer-Policy: no-referrer",
    "Cross-Origin-Resource-Policy: same-origin",
    "Cache-Control: no-store",
    "Connection: close",
)

logger = Log(__name__)


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """What a path has to say, of that media type."""

    kind: str
    body: bytes


@dataclass(frozen=True, slots=True)
class HttpRequest:
    method: str
    path: str
    headers: Mapping[str, list[str]]


class HttpError(Exception):  # it is none of ours
    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(status, why)
        self.status = status
        self.why = why


Pages = Mapping[str, Callable[[HttpRequest], HttpResponse]]


class Site:
    """Serves pages until it is closed; owns its connections.

    `names` are those by which requests may know it; None: all names.
    """

    _server: asyncio.Server

    def __init__(
        self, pages: Pages, names: Collection[str] | None, patience: float = PATIENCE
    ) -> None:
        self._patience = patience
        self._pages = pages
        self._names = None if names is None else {name.lower() for name in names}
        self._serving: dict[asyncio.Task[None], str] = {}  # whom; the oldest first

    def __repr__(self) -> str:
        return f"<{len(self._pages)} pages, {len(self._serving)} requests>"

    async def open(self, host: str, port: int) -> int:
        """Listens, and returns the port. Raises OSError if it cannot.

        "::" is every address, of IPv4 as well, as gRPC takes it for its own ports;
        asyncio takes it for those of IPv6.
        """
        where: Any = {"host": host, "port": port}
        if host == "::":
            where = {"sock": everywhere(port)}
        self._server = await asyncio.start_server(
            self._connected, **where, limit=HEAD_SIZE
        )
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        self._server.close()
        for serving in self._serving:
            serving.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._server.wait_closed()

    def _connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        whom = neighbourhood(writer.get_extra_info("peername"))
        self._make_room(whom)
        serving = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._serving[serving] = whom
        serving.add_done_callback(self._serving.pop)

    def _make_room(self, whom: str) -> None:
        held = {one: by for one, by in self._serving.items() if not one.cancelling()}
        of_one = [one for one, by in held.items() if by == whom]
        if len(of_one) >= OF_ONE:
            of_one[0].cancel()
        elif len(held) >= CONNECTIONS:
            next(iter(held)).cancel()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            async with asyncio.timeout(self._patience):
                writer.write(await self._answer(reader))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # whoever it was has gone, or is too slow
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        with_body = True
        try:
            request = await read(reader)
        except HttpError as refusal:
            status, answer = refusal.status, _told(refusal)
        else:
            with_body = request.method != "HEAD"
            status, answer = self.answer(request)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}",
            f"Content-Type: {answer.kind}",
            f"Content-Length: {len(answer.body)}",
            *HEADERS,
        )
        text = "\r\n".join((*head, "", "")).encode()
        return text + answer.body if with_body else text

    def answer(self, request: HttpRequest) -> tuple[HTTPStatus, HttpResponse]:
        """Never fails."""
        try:
            return HTTPStatus.OK, self._find(request)
        except HttpError as refusal:
            return refusal.status, _told(refusal)
        except Exception:  # of what reads the statistics
            logger.exception("the page could not be made")
            told = HttpResponse(PLAIN, b"this could not be made; see the log\n")
            return HTTPStatus.INTERNAL_SERVER_ERROR, told

    def _find(self, request: HttpRequest) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            why = "there is nothing to change here: GET and HEAD only"
            raise HttpError(HTTPStatus.METHOD_NOT_ALLOWED, why)
        self._check_host(request)
        page = self._pages.get(request.path)
        if page is None:
            paths = ", ".join(self._pages)
            raise HttpError(HTTPStatus.NOT_FOUND, f"not here; there are {paths}")
        return page(request)

    def _check_host(self, request: HttpRequest) -> None:
        """Accepts addresses and the site's own names as Host: any other name could be
        made to point here."""
        hosts = request.headers.get("host", [])
        name = _name_of(hosts[0]) if len(hosts) == 1 else ""
        if self._names is None or name in self._names:
            return
        with suppress(ValueError):
            ip_address(name)
            return
        why = f"this is known by address, or as {', '.join(sorted(self._names))}"
        raise HttpError(HTTPStatus.MISDIRECTED_REQUEST, why)


def _told(refusal: HttpError) -> HttpResponse:
    return HttpResponse(PLAIN, f"{refusal.why}\n".encode())


def everywhere(port: int) -> socket.socket:
    """Of IPv4 alone where there is no IPv6."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(
            ("", port), family=socket.AF_INET6, dualstack_ipv6=True
        )
    return socket.create_server(("", port))


def neighbourhood(peer: object) -> str:
    """Whose connection it is; an IPv6 network hands out 64 bits to each machine.

    >>> neighbourhood(("::ffff:10.0.0.3", 5, 0, 0)), neighbourhood(("fe80::1%e", 5))
    ('10.0.0.3', 'fe80::')
    """
    if not isinstance(peer, tuple):
        return ""  # it has gone
    address = ip_address(str(peer[0]).partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return str(IPv6Address(int(address) >> 64 << 64))
    return str(getattr(address, "ipv4_mapped", None) or address)


def _name_of(host: str) -> str:
    """Without the port, and without brackets.

    >>> _name_of("Localhost:80"), _name_of("[::1]:80"), _name_of("a.b")
    ('localhost', '::1', 'a.b')
    """
    name, colon, port = host.rpartition(":")
    bare = name if colon and port.isdecimal() else host
    return bare.strip("[]").lower()


async def read(reader: asyncio.StreamReader) -> HttpRequest:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        why = f"more than {HEAD_SIZE} bytes"
        raise HttpError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, why) from None
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise HttpError(HTTPStatus.BAD_REQUEST, "this is not HTTP/1.1")
    headers: dict[str, list[str]] = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers.setdefault(name.strip().lower(), []).append(value.strip())
    return HttpRequest(words[0], words[1].partition("?")[0], headers)
