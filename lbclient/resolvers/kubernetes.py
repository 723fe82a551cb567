"""Watches the EndpointSlices of a Service through Kubernetes' API.

A change is known within a second, with zones and the numbers of a StatefulSet's pods,
and the Service need not be headless. The cost is a connection to the API for each
client, and the right to read EndpointSlices (docs/discovery.md).

The end of a watch is normal: the next watch continues where it ended. An error that
prevents a watch is a ResolveError. Needs aiohttp, an extra.

Kubernetes, "Kubernetes API concepts", efficient detection of changes; "Accessing the
Kubernetes API from a Pod".
"""

import asyncio
import json
import os
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple

import aiohttp

from lbclient.background.threads import in_daemon_thread
from lbclient.core.backoff import Backoff, jittered
from lbclient.core.errors import ResolveError
from lbclient.core.model import Endpoints
from lbclient.resolvers.endpoint_slices import GONE, NONSENSE, Gone, Slices
from lbclient.resolvers.listing import MAX_BYTES, join_host

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

THREAD = "lbclient kubernetes"  # the name of one that reads files and answers

# A rolling update changes a slice for each pod: those of a moment are one answer.
DEBOUNCE = 0.1  # seconds

QUIET = 5.0  # seconds without news after which a hint is a reason to doubt the watch

# Seconds after which the API shall end a watch. Clients that start together do not
# come back together.
WATCH_FOR = (240, 300)

# Seconds. An API that is in trouble is asked more and more seldom, and not before it
# wants to be; without trouble for a while, one that comes is the first.
MOST_PAUSE = 10.0
MOST_RETRY_AFTER = 60.0  # of a Retry-After that is obeyed
CALM = 60.0  # without trouble

HOST = re.compile(r"[\w.:%-]{1,253}")

ERROR_BYTES = 4096  # of an answer that explains itself


class Api(NamedTuple):
    """The address of the API, and its directory.

    The directory has `token`, `ca.crt` and `namespace`.
    """

    url: str
    account: Path


class ApiTimeouts(NamedTuple):
    """How long the API may take, in seconds.

    For an answer to begin and to end, and between two events of a watch, in which the
    API sends a bookmark about once a minute. `pause`: the mean pause between two
    watches.
    """

    begin: float = 10.0
    end: float = 30.0
    silence: float = 90.0
    pause: float = 1.0


PATIENCE = ApiTimeouts()


class Kubernetes:
    """Watches one Service.

    `namespace`: this pod's own if empty. `port`: the name or the number of the pods'
    port.
    """

    paces_itself = True  # also where hints come: a list is dear to the API

    def __init__(
        self,
        service: str,
        namespace: str,
        port: str,
        rng: Random,
        api: Api | None = None,
        patience: ApiTimeouts = PATIENCE,
    ) -> None:
        self.service = service
        self.namespace = namespace
        self.port = port
        self._rng = rng
        self._api = api
        self._patience = patience
        self._response: aiohttp.ClientResponse | None = None  # of the watch
        self._heard_at = 0.0
        self._is_doubted = False
        self._troubles = 0  # of late
        self._resume_at = 0.0
        self._retry_after = 0.0  # as the API's last refusal says

    def __repr__(self) -> str:
        name = f"{self.service}.{self.namespace}" if self.namespace else self.service
        return f"<EndpointSlices of {name}, port {self.port}>"

    def refresh(self) -> None:
        """Hints that something may have changed: is the watch still alive?"""
        if self._response is None or self._response.closed:
            return
        if asyncio.get_running_loop().time() - self._heard_at >= QUIET:
            self._is_doubted = True
            self._response.close()

    async def watch(self) -> AsyncGenerator[Endpoints, None]:
        """Yields the ready endpoints now and after every change.

        Raises ResolveError when the API cannot be asked, or will not tell.
        """
        await asyncio.sleep(self._resume_at - asyncio.get_running_loop().time())
        try:
            async with aclosing(self._watch()) as watch:
                async for endpoints in watch:
                    yield endpoints
        except ResolveError:
            self._note_trouble()
            raise

    async def _watch(self) -> AsyncGenerator[Endpoints, None]:
        api = in_cluster(os.environ) if self._api is None else self._api
        last: Endpoints | None = None
        async with await self._session(api) as session:
            slices = Slices(self.port)
            version = ""
            while True:
                if not version:
                    version, endpoints = await self._list(session, api, slices)
                    if endpoints != last:
                        last = endpoints
                        yield endpoints
                try:
                    async with self._get(session, api, version) as response:
                        lines = _Lines(response.content)
                        while batch := await lines.read():
                            self._heard()
                            version, endpoints = await in_daemon_thread(
                                THREAD, slices.apply, batch, version
                            )
                            if endpoints != last:
                                last = endpoints
                                yield endpoints
                except Gone:
                    version = ""
                    self._note_trouble()
                except (aiohttp.ClientError, TimeoutError):
                    pass  # it ended, somehow
                await self._pause()

    async def _session(self, api: Api) -> aiohttp.ClientSession:
        context: ssl.SSLContext | bool = True
        if api.url.startswith("https:"):
            try:
                context = await in_daemon_thread(
                    THREAD,
                    ssl.create_default_context,
                    cafile=str(api.account / "ca.crt"),
                )
            except OSError as error:  # SSLError is one
                words = f"cannot use {api.account / 'ca.crt'}: {error}"
                raise ResolveError(words) from error
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context),
            timeout=aiohttp.ClientTimeout(total=None, sock_read=self._patience.silence),
            read_bufsize=1 << 20,  # so that what comes at once is read at once
        )

    async def _list(
        self, session: aiohttp.ClientSession, api: Api, slices: Slices
    ) -> tuple[str, Endpoints]:
        try:
            async with (
                asyncio.timeout(self._patience.end),
                self._get(session, api, "") as response,
            ):
                text = (await _body(response.content, MAX_BYTES)).decode()
        except (aiohttp.ClientError, TimeoutError, UnicodeDecodeError) as error:
            raise ResolveError(f"{api.url}: {_words(error)}") from error
        return await in_daemon_thread(THREAD, slices.replace, text)

    @asynccontextmanager
    async def _get(
        self, session: aiohttp.ClientSession, api: Api, version: str
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A list, or the watch of what follows a version; once the API has agreed."""
        # Read each time: tokens are exchanged while pods run.
        token = await in_daemon_thread(THREAD, _read, api.account / "token")
        namespace = self.namespace
        if not namespace:
            namespace = await in_daemon_thread(THREAD, _read, api.account / "namespace")
        url = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        query = {"labelSelector": f"kubernetes.io/service-name={self.service}"}
        if version:
            query |= {
                "watch": "true",
                "allowWatchBookmarks": "true",
                "resourceVersion": version,
                "timeoutSeconds": str(self._rng.randint(*WATCH_FOR)),
            }
        else:
            query["resourceVersion"] = "0"  # from the API's cache: kind to its store
        try:
            async with asyncio.timeout(self._patience.begin):
                response = await session.get(
                    api.url + url,
                    params=query,
                    headers={"Authorization": f"Bearer {token}"},
                    allow_redirects=False,
                )
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise ResolveError(f"{api.url}: {_words(error)}") from error
        async with response:
            if response.status == GONE and version:
                raise Gone
            if response.status != 200:
                self._retry_after = seconds(response.headers.get("Retry-After", ""))
                words = await _refusal(response, self._patience.begin)
                if token:  # a proxy between may repeat what it was sent
                    words = words.replace(token, "...")
                raise ResolveError(f"{api.url}: {words}")
            if version:
                self._response = response
                self._heard()
            yield response

    def _heard(self) -> None:
        self._heard_at = asyncio.get_running_loop().time()

    def _note_trouble(self) -> None:
        """After each the pause is twice as long."""
        now = asyncio.get_running_loop().time()
        if now >= self._resume_at + CALM:
            self._troubles = 0
        pause = self._patience.pause
        self._troubles += 1
        pause = Backoff(pause, max(pause, MOST_PAUSE)).after(self._troubles)
        # Those who were refused together do not come back together.
        least = self._retry_after * self._rng.uniform(1.0, 1.5)
        self._retry_after = 0.0
        self._resume_at = now + max(least, jittered(pause, self._rng))

    async def _pause(self) -> None:
        """Between two watches: none if it was ours to end the first."""
        pause = 0.0
        if not self._is_doubted:
            pause = jittered(self._patience.pause, self._rng)
        self._is_doubted = False
        left = self._resume_at - asyncio.get_running_loop().time()
        await asyncio.sleep(max(pause, left))


class _Lines:
    """The events of a watch, those of a moment together."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content
        self._rest = b""

    async def read(self) -> list[bytes]:
        """The next ones; empty at the end."""
        while chunk := await self._content.readany():
            await asyncio.sleep(DEBOUNCE)
            chunk += self._content.read_nowait(-1)
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            if len(self._rest) > MAX_BYTES:
                raise ResolveError(f"a watch event has more than {MAX_BYTES:,} bytes")
            if lines:
                return lines
        return []


async def _body(content: aiohttp.StreamReader, most: int) -> bytes:
    parts, size = [], 0
    while chunk := await content.readany():
        parts.append(chunk)
        size += len(chunk)
        if size > most:
            raise ResolveError(f"the API server's list has more than {most:,} bytes")
    return b"".join(parts)


async def _refusal(response: aiohttp.ClientResponse, within: float) -> str:
    """An API explains itself in a Status; a proxy between does not."""
    words = response.reason or ""
    try:
        async with asyncio.timeout(within):
            body = await response.content.read(ERROR_BYTES)
        words = str(json.loads(body)["message"])
    except (aiohttp.ClientError, TimeoutError, *NONSENSE):
        pass
    return f"{response.status} {words}"


def seconds(text: str) -> float:
    """What a Retry-After says, as far as it is heeded; 0.0 if it says nothing so.

    >>> seconds("7"), seconds("86400"), seconds("Fri, 31 Dec 1999 23:59:59 GMT")
    (7.0, 60.0, 0.0)
    """
    if not re.fullmatch("[0-9]{1,9}", text):
        return 0.0
    return min(float(text), MOST_RETRY_AFTER)


def _words(error: Exception) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else str(error)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ResolveError(f"cannot read {path}: {error}") from error


def in_cluster(environ: Mapping[str, str], account: Path = ACCOUNT) -> Api:
    """The API as a pod finds it. Raises ResolveError where this is none."""
    host = environ.get("KUBERNETES_SERVICE_HOST")
    port = environ.get("KUBERNETES_SERVICE_PORT", "443")
    if host and not HOST.fullmatch(host):
        raise ResolveError("KUBERNETES_SERVICE_HOST is not a valid host")
    if not host or not port.isdecimal():
        raise ResolveError("not in a pod: KUBERNETES_SERVICE_HOST is not set")
    return Api(f"https://{join_host(host, int(port))}", account)
