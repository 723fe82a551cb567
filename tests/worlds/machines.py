"""The servers of a world: lbclient's own, on machines that break in every way.

The handlers do what the request's bytes say, and write down what they have executed.
"""

import asyncio
import gc
from collections import deque
from collections.abc import AsyncIterator
from math import nan
from random import Random
from typing import TYPE_CHECKING, Any

import grpc

from lbclient import wire
from lbclient.config import ServerConfig
from lbclient.server.disabled import PlainServer
from lbclient.server.grpc_server import Server
from lbclient.v1 import health_pb2, load_pb2
from tests.worlds.clock import ProcessLoop
from tests.worlds.network import Host
from tests.worlds.plan import KINDS, CallPlan, ServerPlan
from tests.worlds.server_core import ServerCore

if TYPE_CHECKING:
    from tests.worlds.world import World

Code = grpc.StatusCode
LIES = (0.0, -1.0, 1e9, nan, 0.01, 5.0)
MUTE = (
    wire.WATCH_METHOD,
    wire.CHECK_METHOD,
    wire.SERVING_CHECK_METHOD,
    wire.SERVING_WATCH_METHOD,
    wire.ORCA_METHOD,
)


def request_of(call: CallPlan) -> bytes:
    said = (call.number, call.takes, call.parts, call.size, call.ends, call.drips)
    return " ".join(map(str, (*said, ""))).encode().ljust(call.size, b".")


def garbled(rng: Random, data: bytes, kind_of: Any) -> bytes:
    """Another report than was meant: rubbish, a part of it, or a lie."""
    # The fields of a map have no order of their own.
    data = kind_of.FromString(data).SerializeToString(deterministic=True)
    kind = rng.randrange(4)
    if kind == 0:
        return rng.randbytes(rng.choice((0, 3, 40)))
    if kind == 1:
        return data[: rng.randrange(len(data) + 1)]
    if kind == 2 and data:
        at = rng.randrange(len(data))
        return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
    lie = rng.choice(LIES)
    load = load_pb2.LoadReport(application_utilization=lie, rps_fractional=lie, eps=lie)
    report = health_pb2.HealthReport(load=load, report_floor=lie, cost_rise=lie)
    report.workers.ports.add(shared=50051, own=[rng.randrange(70_000)])
    return report.SerializeToString()


def clean_up(loops: list[ProcessLoop]) -> None:
    """Lets go of all that ran on loops that are over, so that it is collected here and
    not in the next world."""
    task: asyncio.Task[Any] | None
    for loop in loops:
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop._ready.clear()  # type: ignore[attr-defined]
        loop._scheduled.clear()
        loop.forget()
    task = None
    gc.collect()  # and what nobody retrieved is told now
    for loop in loops:
        loop.close()


class Mute(grpc.GenericRpcHandler):
    """Health services that hang while the server is to be mute."""

    def __init__(self, process: "Service") -> None:
        self._process = process

    def service(self, details: Any) -> Any:
        if details.method not in MUTE or not self._process.is_mute:
            return None

        async def hang(_requests: Any, _context: Any) -> None:
            await asyncio.Event().wait()

        return grpc.stream_stream_rpc_method_handler(hang)


class Service:
    """A server of a machine, and its handlers, in one process."""

    def __init__(self, machine: "Machine", loop: ProcessLoop) -> None:
        self.machine = machine
        self.loop = loop
        self.is_mute = False

    def make(self) -> Any:
        """The server, which listens nowhere yet."""
        handlers = {
            path.rpartition("/")[2]: getattr(grpc, f"{kind}_rpc_method_handler")(
                getattr(self, f"_{kind}")
            )
            for path, kind in KINDS.items()
        }
        generic = grpc.method_handlers_generic_handler("world.World", handlers)
        server = self._make()
        server.add_generic_rpc_handlers((Mute(self), generic))
        return server

    def _make(self) -> Any:
        plan, machine = self.machine.plan, self.machine
        options: tuple[Any, ...] = ()
        if plan.slots is not None:
            options = (("grpc.max_concurrent_streams", plan.slots),)
        if plan.kind == "lbclient":
            config = ServerConfig(
                utilization=lambda: machine.utilization(self.loop),
                utilization_replaces=True,
                signals={"strain": lambda: machine.strain},
                udp_health=machine.world.plan.udp,
                lame_duck_period=10.0,
                worker_ports="off" if plan.own == "off" else "any",
            )
            return Server(config=config, options=options, clock=self.loop.time)
        plain = grpc.aio.server(options=options)
        return plain if plan.kind == "plain" else PlainServer(plain, ())

    @property
    def cores(self) -> list[ServerCore]:
        """One, once it has started."""
        return [core for core in self.machine.host.cores if core.loop is self.loop]

    # --- handlers ---------------------------------------------------------------

    async def _begin(self, request: bytes, context: Any) -> tuple[int, bytes, float]:
        number, takes, parts, size, ends, drips, _ = request.split(b" ", 6)
        machine = self.machine
        machine.executes(int(number), context, self.loop)
        if machine.is_failing:
            await context.abort(Code.INTERNAL, f"broken at {machine.host.address}")
        if machine.is_hanging:
            await asyncio.Event().wait()
        if float(takes):
            await asyncio.sleep(float(takes))
        if ends == b"not-found":
            await context.abort(Code.NOT_FOUND, "no such thing")
        if ends == b"unavailable":
            await context.abort(Code.UNAVAILABLE, "says the handler")
        if ends == b"raises":
            raise ValueError("raised by the handler")
        answer = b"%d at %s" % (int(number), machine.host.address.encode())
        return int(parts), answer.ljust(int(size), b"."), float(drips)

    async def _unary_unary(self, request: bytes, context: Any) -> bytes:
        _, answer, _ = await self._begin(request, context)
        return answer

    async def _unary_stream(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        parts, answer, drips = await self._begin(request, context)
        for number in range(parts):
            if number and drips:
                await asyncio.sleep(drips)
            yield answer

    async def _stream_unary(self, requests: Any, context: Any) -> bytes:
        answer, count = b"", 0
        async for request in requests:
            if not count:
                _, answer, _ = await self._begin(request, context)
            count += 1
        return b"%d of " % count + answer

    async def _stream_stream(self, requests: Any, context: Any) -> AsyncIterator[bytes]:
        answer, drips = b"", 0.0
        async for request in requests:
            if not answer:
                _, answer, drips = await self._begin(request, context)
            elif drips:
                await asyncio.sleep(drips)
            yield answer


class ServerProcess(Service):
    """One life of a server."""

    def __init__(self, machine: "Machine", loop: ProcessLoop) -> None:
        super().__init__(machine, loop)
        self.world = machine.world
        self.server: Any = None  # until its loop runs
        self._starting = loop.create_task(self._start())

    async def _start(self) -> None:
        self.server = self.make()
        self.server.add_insecure_port(self.machine.host.address)
        await self.server.start()


class Machine:
    """A machine with an address, what is wrong with it, and its server's process."""

    def __init__(self, world: "World", plan: ServerPlan, host: Host) -> None:
        self.world = world
        self.plan = plan
        self.host = host
        self.process: Any = None  # a ServerProcess, or a task of workers
        self.strain = 0.0
        self.is_lying = self.is_failing = self.is_hanging = False
        self.ill_since: float | None = None  # with what shows in no calls' errors
        self._rng = Random(f"{world.plan.seed} {plan.address}")
        self._executed_at: deque[float] = deque()

    @property
    def hosts(self) -> list[Host]:
        """Its ports."""
        return [self.host]

    def executes(self, number: int, context: Any, loop: ProcessLoop) -> None:
        self._executed_at.append(self.world.clock.now)
        self.world.executes(number, self, context)

    def utilization(self, loop: ProcessLoop) -> float:
        """Of 50 requests a second, as it has had them lately, in this process."""
        now = self.world.clock.now
        while self._executed_at and self._executed_at[0] < now - 2.0:
            self._executed_at.popleft()
        if self.is_lying:
            return self._rng.choice(LIES)
        return 0.02 + self._requests_lately(loop, now) / 100

    def _requests_lately(self, loop: ProcessLoop, now: float) -> int:
        return len(self._executed_at)

    def is_up(self) -> bool:
        return self.process is not None

    def start(self) -> None:
        if self.process is None:
            for host in self.hosts:
                host.is_gone = False
            loop = self.world.clock.start(self.host.address)
            self.process = self._begin_process(loop)
            self.changed()

    def _begin_process(self, loop: ProcessLoop) -> Any:
        return ServerProcess(self, loop)

    def changed(self) -> None:
        for host in self.hosts:
            host.changed()

    def die(self, with_machine: bool = False) -> None:
        process, self.process = self.process, None
        if process is not None:
            for core in process.cores:
                core.die(with_machine)
            self.world.bury(process.loop)

    def vanish(self) -> None:
        for host in self.hosts:
            host.is_gone = True
        self.die(with_machine=True)

    async def _leave(self, process: ServerProcess, in_order: bool) -> None:
        if in_order and isinstance(process.server, Server):
            await process.server.drain()
        else:
            await process.server.stop(None)

    def leave(self, in_order: bool) -> Any:
        """A task in its process: it drains, or stops at once, and ends."""
        process = self.process
        if process is None or process.server is None:
            return None
        return process.loop.create_task(self._leave(process, in_order))

    def __repr__(self) -> str:
        return self.host.address
