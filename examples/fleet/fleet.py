"""The demo's fleet: backends and clients, each in a process, and how to order them.

Leaving the fleet's context ends every process, whatever happened in it.
"""

import asyncio
import json
import signal
import socket
from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any

import fleet_pb2
import fleet_pb2_grpc
import grpc
from child import Child, DemoError
from figures import Call, Usage

READY_WITHIN = 30.0  # seconds; for Python to start on a machine that is busy
# Below the ports that Linux hands out by itself: a connection that happens to get
# the port of a backend which is just restarting would keep it from coming back.
PORTS = range(20000, 32000)


def free_ports(count: int, rng: Random) -> list[int]:
    """Ports on which nobody listens now."""
    ports: list[int] = []
    for port in rng.sample(PORTS, len(PORTS)):
        if len(ports) == count:
            break
        with socket.socket() as sock, suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", port))
            ports.append(port)
    return ports


class Backend:
    """A place in the fleet; one process after the other fills it."""

    def __init__(self, name: str, port: int, speed: float) -> None:
        self.name = name
        self.address = f"127.0.0.1:{port}"
        self.port = port
        self.speed = speed
        self.note = ""  # what the demo is doing to it
        self.child: Child | None = None
        self.ready = asyncio.Event()

    def hear(self, line: str) -> None:
        if line == "ready":
            self.ready.set()

    async def usage(self) -> Usage:
        # The environment's proxy would get even calls to this machine.
        direct = [("grpc.enable_http_proxy", 0)]
        async with grpc.aio.insecure_channel(self.address, direct) as channel:
            stub: Any = fleet_pb2_grpc.FleetStub(channel)
            reply = await stub.Usage(
                fleet_pb2.UsageRequest(), timeout=READY_WITHIN, wait_for_ready=True
            )
            return Usage(reply.busy, reply.elapsed, reply.cores)


class Client:
    """A client process: what it last said of the backends, and its report."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.child: Child | None = None
        self.ready = asyncio.Event()
        self.page = ""  # the URL of its window to look in
        self.view: dict[str, dict[str, Any]] = {}  # by address
        self.report: asyncio.Future[dict[str, Any]] | None = None

    def hear(self, line: str) -> None:
        message = json.loads(line)
        if "backends" in message:
            self.view = message["backends"]
        elif "calls" in message:
            assert self.report is not None
            self.report.set_result(message)
        else:
            self.page = message["page"]
            self.ready.set()

    def begin(self, order: dict[str, Any]) -> None:
        assert self.child is not None
        self.report = asyncio.get_running_loop().create_future()
        self.child.tell({"do": "begin", **order})

    async def end(self) -> dict[str, Any]:
        assert self.child is not None
        assert self.report is not None
        self.child.tell({"do": "end"})
        return await self.report


class Fleet:
    """All backends and clients. Leaving the context ends every process."""

    def __init__(
        self, speeds: list[float], clients: int, cores: int, rng: Random
    ) -> None:
        ports = free_ports(len(speeds), rng)
        self.cores = cores
        self.backends = [
            Backend(f"backend-{number}", port, speed)
            for number, (port, speed) in enumerate(zip(ports, speeds, strict=True))
        ]
        self.clients = [Client(f"client-{number}") for number in range(clients)]
        self.failures: Counter[str] = Counter()
        self.skipped = 0
        self._children: list[Child] = []
        self._group = asyncio.TaskGroup()

    @property
    def target(self) -> str:
        return "ipv4:" + ",".join(backend.address for backend in self.backends)

    async def __aenter__(self) -> "Fleet":
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        for child in self._children:
            child.may_end = True
            child.signal(signal.SIGKILL)  # ends also what is stopped
        # Ctrl-C cancels who waits for them, and asyncio complains of a later end.
        await asyncio.gather(*(child.wait() for child in self._children))
        await self._group.__aexit__(*error)

    async def start(self) -> None:
        async with asyncio.TaskGroup() as group:
            for backend in self.backends:
                group.create_task(self.start_backend(backend))
            for client in self.clients:
                group.create_task(self._start_client(client))

    async def start_backend(self, backend: Backend) -> None:
        """Returns when the backend serves."""
        backend.ready.clear()
        backend.child = await self._start(
            backend,
            "backend.py",
            f"--name={backend.name}",
            f"--port={backend.port}",
            f"--speed={backend.speed}",
            f"--cores={self.cores}",
        )

    async def _start_client(self, client: Client) -> None:
        client.child = await self._start(client, "client.py")

    async def _start(
        self, place: Backend | Client, program: str, *arguments: str
    ) -> Child:
        child = await Child.start(place.name, program, *arguments)
        self._children.append(child)
        self._group.create_task(child.follow(place.hear))
        try:
            async with asyncio.timeout(READY_WITHIN):
                await place.ready.wait()
        except TimeoutError:
            raise DemoError(f"{place.name} was not ready in time") from None
        return child

    async def stop_backend(self, backend: Backend, number: signal.Signals) -> None:
        """Sends a signal that ends the backend, and waits until it has."""
        assert backend.child is not None
        backend.child.may_end = True
        backend.child.signal(number)
        await backend.child.wait()

    async def usages(self) -> list[Usage]:
        return await asyncio.gather(*(backend.usage() for backend in self.backends))

    def begin(self, orders: list[dict[str, Any]]) -> None:
        for client, order in zip(self.clients, orders, strict=True):
            client.begin(order)

    async def end(self) -> list[Call]:
        """Lets the clients finish; returns what they report, in order of sending."""
        calls: list[Call] = []
        self.failures.clear()
        self.skipped = 0
        for report in await asyncio.gather(*(client.end() for client in self.clients)):
            calls += (Call(*call) for call in report["calls"])
            self.failures.update(report["failures"])
            self.skipped += report["skipped"]
        return sorted(calls)

    def states(self, backend: Backend) -> Counter[str]:
        """What the clients say of the backend: how many of them say what."""
        return Counter(
            client.view[backend.address]["state"]
            for client in self.clients
            if backend.address in client.view
        )

    async def seen_ready(self, backend: Backend, within: float) -> bool:
        """Waits until every client sees the backend ready."""
        for _ in range(round(within / 0.05)):
            if self.states(backend)["ready"] == len(self.clients):
                return True
            await asyncio.sleep(0.05)
        return False
