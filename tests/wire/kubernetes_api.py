"""Kubernetes' API, as far as a client of EndpointSlices sees it, on loopback.

The shapes are written after the API's documentation (v1.29): lists with versions,
events a line each, bookmarks, Status objects for errors. Those in recorded/ are of
answers that real ones gave.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from aiohttp import web

from lbclient.resolvers.kubernetes import Api

PATH = "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"


def endpoint(
    address: str,
    host: str = "",
    zone: str = "eu-west-1a",
    hint: str = "",
    **conditions: bool | None,
) -> dict[str, Any]:
    """Ready, unless `conditions` say something else."""
    name = host or f"search-7d9f8b6c5d-{address.replace('.', '')[-5:]}"
    told: dict[str, Any] = {
        "addresses": [address],
        "conditions": {
            "ready": True,
            "serving": True,
            "terminating": False,
            **conditions,
        },
        "nodeName": "ip-10-0-0-7.eu-west-1.compute.internal",
        "targetRef": {"kind": "Pod", "namespace": "prod", "name": name},
    }
    told |= {"zone": zone} if zone else {}
    told |= {"hostname": host} if host else {}
    told |= {"hints": {"forZones": [{"name": hint}]}} if hint else {}
    return told


GRPC = ({"name": "grpc", "port": 50051, "protocol": "TCP"},)


def endpoint_slice(
    name: str,
    *endpoints: dict[str, Any],
    ports: Any = GRPC,
    family: str = "IPv4",
) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "prod",
            "labels": {"kubernetes.io/service-name": "search"},
        },
        "addressType": family,
        "endpoints": list(endpoints),
        "ports": None if ports is None else list(ports),
    }


def status(code: int, message: str) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "code": code,
    }


class KubernetesApi:
    """Slices of the Service search in the namespace prod.

    `refuses` is the status and message that requests end with, or a whole Status, and
    `refuses_watches` the same for those that would watch; `retry_after` goes with both.
    `tokens` are good, versions below `forgotten` are 410 Gone, and while it `hangs`
    requests get no answer.
    """

    def __init__(self, account: Path) -> None:
        self.account = account
        self.api = Api("", account)
        self.tokens = ["first"]
        self.refuses: tuple[int, str] | dict[str, Any] | None = None
        self.refuses_watches: tuple[int, str] | dict[str, Any] | None = None
        self.retry_after = ""
        self.asked_at: list[float] = []  # by the loop's time
        self.hangs = False
        self.forgotten = 0
        self.body: bytes | None = None  # of lists, instead of a good one
        self.lists = 0
        self.watches: list[str] = []  # versions that they began from
        self.ended = 0  # watches that were
        self._slices: dict[str, dict[str, Any]] = {}
        self._version = 1000
        self._events: list[tuple[int, bytes]] = []
        self._watchers: dict[asyncio.Queue[bytes | None], web.Request] = {}
        self.use_token("first")
        (account / "namespace").write_text("prod\n")

    def use_token(self, token: str) -> None:
        (self.account / "token").write_text(token + "\n")

    def put(self, value: dict[str, Any]) -> None:
        name = value["metadata"]["name"]
        kind = "MODIFIED" if name in self._slices else "ADDED"
        self._slices[name] = value
        self._happens(kind, value)

    def delete(self, name: str) -> None:
        self._happens("DELETED", self._slices.pop(name))

    def bookmark(self) -> None:
        self._happens("BOOKMARK", {"kind": "EndpointSlice", "metadata": {}})

    def say(self, line: bytes) -> None:
        """Sends what is no event, perhaps, to every watch."""
        for queue in self._watchers:
            queue.put_nowait(line)

    def end_watches(self) -> None:
        for queue in self._watchers:
            queue.put_nowait(None)

    def cut_watches(self) -> None:
        for request in self._watchers.values():
            assert request.transport is not None
            request.transport.abort()

    @property
    def watching(self) -> int:
        return len(self._watchers)

    def _happens(self, kind: str, value: dict[str, Any]) -> None:
        self._version += 1
        value["metadata"]["resourceVersion"] = str(self._version)
        line = json.dumps({"type": kind, "object": value}).encode() + b"\n"
        self._events.append((self._version, line))
        self.say(line)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked_at.append(asyncio.get_running_loop().time())
        if self.hangs:
            await asyncio.sleep(3600)
        refusal = self._refusal(request)
        if refusal is not None:
            headers = {"Retry-After": self.retry_after} if self.retry_after else {}
            return web.json_response(refusal, status=refusal["code"], headers=headers)
        if "watch" in request.query:
            return await self._watch(request)
        self.lists += 1
        if self.body is not None:
            return web.Response(body=self.body)
        return web.json_response(
            {
                "kind": "EndpointSliceList",
                "apiVersion": "discovery.k8s.io/v1",
                "metadata": {"resourceVersion": str(self._version)},
                "items": self._chosen(request),
            }
        )

    def _chosen(self, request: web.Request) -> list[dict[str, Any]]:
        is_asked = request.query["labelSelector"] == "kubernetes.io/service-name=search"
        is_there = request.match_info["namespace"] == "prod"
        return list(self._slices.values()) if is_asked and is_there else []

    def _refusal(self, request: web.Request) -> dict[str, Any] | None:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in self.tokens:
            return status(401, "Unauthorized")
        refuses = self.refuses
        if refuses is None and "watch" in request.query:
            refuses = self.refuses_watches
        return status(*refuses) if isinstance(refuses, tuple) else refuses

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        version = int(request.query["resourceVersion"])
        self.watches.append(str(version))
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        if version < self.forgotten:
            gone = status(410, f"too old resource version: {version}")
            await _send(response, {"type": "ERROR", "object": gone})
            return response
        for at, line in self._events:
            if at > version:
                queue.put_nowait(line)
        self._watchers[queue] = request
        try:
            with suppress(ConnectionError):
                while event := await queue.get():
                    await response.write(event)
        finally:
            del self._watchers[queue]
            self.ended += 1
        return response


async def _send(response: web.StreamResponse, event: dict[str, Any]) -> None:
    await response.write(json.dumps(event).encode() + b"\n")


@asynccontextmanager
async def kubernetes_api(
    account: Path, tls: ssl.SSLContext | None = None
) -> AsyncIterator[KubernetesApi]:
    """Runs one; `account` is where a pod would find its token."""
    api = KubernetesApi(account)
    application = web.Application()
    application.router.add_get(PATH, api.answer)
    runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    port = runner.addresses[0][1]
    api.api = Api(f"http{'s' if tls else ''}://127.0.0.1:{port}", account)
    try:
        yield api
    finally:
        await runner.cleanup()
