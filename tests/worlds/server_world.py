"""One world of servers: lbclient's own, with all that they have, and what arrives.

Clients are frames in memory: what a server does to requests does not hang on what a
client makes of it. A handler takes its process's CPU time, so that queues form; gate,
queue, quotas, reports, UDP and drain are lbclient's, unmodified.
"""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import nan
from random import Random
from typing import Any

import grpc

from lbclient import wire
from lbclient.config import ServerConfig
from lbclient.core.model import TaskState
from lbclient.core.protocols import FleetUsage
from lbclient.server.grpc_server import Server
from lbclient.server.quotas.memory_store import MemoryStore
from lbclient.v1 import health_pb2
from lbclient.wire import datagram
from tests.worlds.arrivals import ArrivalPlan, Traffic
from tests.worlds.client_core import READY, ClientCore, ClientStream
from tests.worlds.clock import Clock, ProcessLoop, SpinError
from tests.worlds.datagrams import Datagrams
from tests.worlds.installed import installed
from tests.worlds.machines import clean_up
from tests.worlds.network import Host, Link, Network
from tests.worlds.plan import Fault

METHOD = "/world.Server/Work"
PROBE_EVERY = 0.5  # seconds between two UDP probes of each task
AFTERWARDS = 12.0  # seconds in which all that was begun ends
TURN = 50e-6  # seconds of CPU time that a turn of a server's loop takes by itself
PROBER, STRANGER = ("10.1.0.9", 41_000), ("10.1.0.8", 41_001)


@dataclass
class Asked:
    """A request, and what became of it."""

    number: int
    traffic: Traffic
    task: int
    at: float
    over_at: float | None = None
    code: int = -1
    details: str = ""
    answer: bytes | None = None
    refusal: str = ""  # the word of lbclient's, of one that was not executed
    executed: list[float] = field(default_factory=list)

    @property
    def is_served(self) -> bool:
        return self.code == 0

    def __str__(self) -> str:
        return (
            f"request {self.number} at {self.at:.3f} to task {self.task}: {self.code}"
            f" {self.details!r}"
        )


@dataclass
class Drain:
    """One drain of a task: when it began, and when it was over."""

    task: int
    began_at: float
    over_at: float | None = None
    heard_at: list[float] = field(default_factory=list)  # by watchers
    watchers: int = 0


@dataclass
class Probe:
    """A UDP probe, what was wrong with it if anything, and what came back."""

    task: int
    at: float
    nonce: int
    is_sound: bool
    said: list[datagram.Answer] = field(default_factory=list)


class Store:
    """The quota store that all tasks share; it may fail, hang or lie."""

    def __init__(self, clock: Clock, rng: Random) -> None:
        self._inner = MemoryStore(lambda: clock.now)
        self._rng = rng
        self.fault = ""

    async def exchange(self, task: str, usage: Any) -> FleetUsage:
        await asyncio.sleep(0.002)
        if self.fault == "store fails":
            raise ConnectionError("the store is down")
        if self.fault == "store hangs":
            await asyncio.Event().wait()
        told = await self._inner.exchange(task, usage)
        if self.fault == "store lies":
            lie = self._rng.choice((nan, -1.0, float("inf")))
            lies = {"greedy": lie, "modest": lie}
            return FleetUsage(self._rng.choice((0, -1, 3)), lies, lies)
        return told


class Task:
    """A server's machine, and its process if it is up."""

    def __init__(self, world: "ServerWorld", number: int) -> None:
        self.world = world
        self.number = number
        self.ip = f"10.0.0.{number + 1}"
        link = Link(Random(f"link {world.plan.seed} {number}"), world.plan.delay)
        self.host = Host(f"{self.ip}:50051", link)
        self.loop: ProcessLoop | None = None
        self.server: Any = None
        self.started_at = 0.0
        self.statistics: list[Any] = []  # of servers that have stopped
        self.start()

    def start(self) -> None:
        if self.loop is None:
            self.loop = self.world.clock.start(self.host.address)
            self.loop.turn_takes = TURN
            self._starting = self.loop.create_task(self._start())
            self.host.changed()

    def config(self) -> ServerConfig:
        plan = self.world.plan
        settings = dict(plan.settings)
        if "quotas" in settings:
            settings["quota_store"] = self.world.store
        return ServerConfig(udp_secret=plan.secret, **settings)

    async def _start(self) -> None:
        plan = self.world.plan
        assert self.loop is not None
        work = partial(self._work, self.loop)
        handler: Any = grpc.unary_unary_rpc_method_handler(work)
        handlers = {"Work": handler}
        generic = grpc.method_handlers_generic_handler("world.Server", handlers)
        server = Server(
            config=self.config(),
            maximum_concurrent_rpcs=plan.places,
            clock=self.loop.time,
        )
        server.add_generic_rpc_handlers((generic,))
        if plan.is_secure:
            credentials = grpc.local_server_credentials()
            server.add_secure_port(self.host.address, credentials)
        else:
            server.add_insecure_port(self.host.address)
        await server.start()
        self.server, self.started_at = server, self.world.clock.now

    async def _work(self, loop: ProcessLoop, request: bytes, _: Any) -> bytes:
        number, cost, waits = request.split()
        asked = self.world.asked[int(number)]
        asked.executed.append(loop.time())
        loop.work(float(cost))
        await asyncio.sleep(float(waits))
        return b"%d" % asked.number

    def die(self) -> None:
        loop, self.loop, self.server = self.loop, None, None
        if loop is not None:
            for core in self.host.cores:
                core.die()
            self.world.bury(loop)

    async def leave(self, server: Server, in_order: bool) -> None:
        await (server.drain() if in_order else server.stop(None))
        self.statistics.append(server.statistics())

    def __repr__(self) -> str:
        return f"task {self.number}"


class Client:
    """All clients of one `Traffic`, with one connection to each task."""

    def __init__(self, world: "ServerWorld", traffic: Traffic) -> None:
        self.world = world
        self.traffic = traffic
        self._rng = Random(f"client {world.plan.seed} {traffic.begins} {traffic}")
        self.cores = [
            ClientCore(world.network, world.clients, task.host, {})
            for task in world.tasks
        ]
        self.heard: list[TaskState | None] = [None] * len(world.tasks)
        for core in self.cores:
            core.connect()
        if traffic.watches:
            for number in range(len(world.tasks)):
                world.keep(self._watch(number))

    def arrivals(self) -> Iterator[float]:
        at, traffic = self.traffic.begins, self.traffic
        while (at := at + self._rng.expovariate(traffic.rate)) < traffic.ends:
            yield at

    def ask(self) -> None:
        world, traffic = self.world, self.traffic
        task = self._choose()
        asked = Asked(len(world.asked), traffic, task, world.clock.now)
        world.asked.append(asked)
        deadline = None
        if traffic.timeout is not None:
            deadline = asked.at + traffic.timeout
        stream = ClientStream(self.cores[task], METHOD, deadline, waits=True)
        stream.begin(tuple(self._metadata()))
        stream.send(f"{asked.number} {traffic.cost} {traffic.waits}".encode())
        stream.close()
        message, end = stream.message(), stream.end()
        end.add_done_callback(lambda _: world.over(asked, message, end.result()))

    def _metadata(self) -> Iterator[tuple[str, str]]:
        if self.traffic.criticality:
            yield wire.CRITICALITY_KEY, self.traffic.criticality
        if self.traffic.customer:
            yield wire.CUSTOMER_KEY, self.traffic.customer

    def _choose(self) -> int:
        numbers = range(len(self.cores))
        ready = [n for n in numbers if self.cores[n].state == READY]
        well = [n for n in ready if self.heard[n] is not TaskState.LAME_DUCK]
        return self._rng.choice(well or ready or list(numbers))

    async def _watch(self, number: int) -> None:
        """As lbclient's clients do; asks again when that ends."""
        world = self.world
        while True:
            stream = ClientStream(self.cores[number], wire.WATCH_METHOD, None, True)
            stream.begin(())
            stream.send(health_pb2.HealthRequest().SerializeToString())
            stream.close()
            while (data := await stream.message()) is not None:
                report = health_pb2.HealthReport.FromString(data)
                parsed = wire.parse_health(data)
                state = parsed.state if parsed is not None else None
                world.hears(self, number, state, report)
                self.heard[number] = state
            self.heard[number] = None
            await asyncio.sleep(0.2)


class ServerWorld:
    """`asked` is all that arrived, `drains` and `probes` what else was seen."""

    def __init__(self, plan: ArrivalPlan, traces: bool = False) -> None:
        self.plan = plan
        self.trace: list[tuple[float, str]] | None = [] if traces else None
        self.broken: list[tuple[str, str]] = []
        self.complaints: list[str] = []
        self.clock = Clock(Random(f"turns {plan.seed}"))
        self.network = Network(self.clock)
        self.datagrams = Datagrams(self.clock, self._with_ip)
        self.store = Store(self.clock, Random(f"store {plan.seed}"))
        self._rng = Random(f"world {plan.seed}")
        self.tasks: list[Task] = []
        self.asked: list[Asked] = []
        self.drains: list[Drain] = []
        self.probes: dict[int, Probe] = {}
        self.sent_back: dict[Any, int] = {}  # bytes, by who was sent them
        self.sent_to: dict[Any, int] = {}
        self.sessions: dict[int, Any] = {}  # by task, as a watcher heard it
        self.ports: dict[int, int] = {}
        self.reports: list[tuple[float, int, Any]] = []
        self.faults: list[tuple[float, float, Fault]] = []
        self.statistics: list[Any] = []  # of each task, at rest
        self.left: list[str] = []  # when all had stopped
        self._buried: list[ProcessLoop] = []

    def note(self, what: str) -> None:
        if self.trace is not None:
            self.trace.append((self.clock.now, what))

    def _with_ip(self, ip: str) -> Host | None:
        return next((one.host for one in self.tasks if one.ip == ip), None)

    def _find(self, address: str) -> Host:
        return next(one.host for one in self.tasks if one.host.address == address)

    def bury(self, loop: ProcessLoop) -> None:
        self.clock.end(loop)
        self.datagrams.end(loop)
        self._buried.append(loop)

    def keep(self, coroutine: Any) -> None:
        task = self.clients.create_task(coroutine)
        self._kept.append(task)

    # --- its course -------------------------------------------------------------

    def run(self) -> None:
        with self._opened():
            try:
                self._follow_plan()
                self._settle()
            except SpinError as error:
                self.broken.append(("nothing spins", str(error)))

    @contextmanager
    def _opened(self) -> Iterator[None]:
        from tests.worlds.world import listening, quiet

        with ExitStack() as stack:
            stack.enter_context(quiet())
            stack.enter_context(listening(self, of_servers=True))
            plan = self.plan
            stack.enter_context(
                installed(
                    self.clock,
                    self.network,
                    self._find,
                    plan.seed,
                    self.datagrams,
                    0.1,
                )
            )
            self.tasks.extend(Task(self, number) for number in range(plan.tasks))
            self.clock.run(0.1)
            self.clients = self.clock.start("clients")
            self._kept: list[asyncio.Task[None]] = []
            try:
                yield
            finally:
                self._clean_up()

    def _follow_plan(self) -> None:
        clock, plan = self.clock, self.plan
        began_at = clock.now
        for traffic in plan.traffic:
            client = Client(self, traffic)
            for at in client.arrivals():
                clock.at(began_at + 0.2 + at, client.ask)
        for fault in plan.faults:
            clock.at(began_at + 0.2 + fault.at, partial(self._begin_fault, fault))
        self.datagrams.listen(PROBER, self.clients, partial(self._said, PROBER))
        self.datagrams.listen(STRANGER, self.clients, partial(self._said, STRANGER))
        self.began_at = began_at + 0.2
        clock.at(self.began_at, self._probe_all)
        clock.run(self.began_at + plan.lasts)

    def _settle(self) -> None:
        """Waits until all has ended, takes the statistics, and stops all."""
        limit, asked = self.clock.now + AFTERWARDS, self.asked
        self.clock.run(limit, lambda: all(one.over_at is not None for one in asked))
        self.clock.run(self.clock.now + 0.5)
        self.statistics = [
            task.server.statistics() for task in self.tasks if task.server is not None
        ]
        for kept in self._kept:
            kept.cancel()
        leaving = []
        for task in self.tasks:
            if task.loop is not None and task.server is not None:
                ending = task.loop.create_task(task.leave(task.server, False))
                leaving.append((task.loop, ending))
        self.clock.run(self.clock.now + 3.0)
        for loop, ending in leaving:
            if not ending.done():
                self.left.append(f"{loop.name} has not stopped")
            tasks = [one for one in asyncio.all_tasks(loop) if not one.done()]
            self.left += [f"a task of {loop.name}: {one!r}" for one in tasks]
            timers: Any = loop._scheduled
            self.left += [repr(one) for one in timers if not one.cancelled()]
        for loop, _ in leaving:
            if self.datagrams.is_used_by(loop):
                self.left.append(f"a UDP socket of {loop.name}")

    def over(self, asked: Asked, message: Any, status: Any) -> None:
        asked.over_at = self.clock.now
        asked.code, asked.details, trailers = status
        asked.refusal = dict(trailers).get(wire.REFUSAL_KEY, "")
        if message.done() and not message.cancelled():
            asked.answer = message.result()
        self.note(f"is over: {asked}")

    def hears(
        self, client: Client, number: int, state: TaskState | None, report: Any
    ) -> None:
        self.reports.append((self.clock.now, number, report))
        if report.udp_port:
            self.ports[number] = report.udp_port
        if report.HasField("udp_session"):
            self.sessions[number] = report.udp_session
        if state is TaskState.LAME_DUCK and client.heard[number] is not state:
            for drain in self.drains:
                if drain.task == number and drain.over_at is None:
                    drain.heard_at.append(self.clock.now)

    # --- UDP ------------------------------------------------------------------------

    def _probe_all(self) -> None:
        for task in self.tasks:
            self._probe(task)
        if self.clock.now < self.began_at + self.plan.lasts - 1.0:
            self.clock.after(PROBE_EVERY, self._probe_all)

    def _probe(self, task: Task) -> None:
        """As a client does; and as somebody does who has no secret, or sends rubbish.

        Without a secret anybody may ask.
        """
        plan, rng = self.plan, self._rng
        session = self.sessions.get(task.number)
        if plan.is_secure:
            if session is None:
                return
            port, secret, number = session.port, session.secret, session.id
        else:
            port, secret, number = 50051, plan.secret.encode(), 0
        self._send(task, port, PROBER, secret, number, True)
        kind = rng.choice(("secret", "session", "rubbish", "altered"))
        if kind == "secret":
            self._send(task, port, STRANGER, b"no secret", number, False)
        elif kind == "session":
            self._send(task, port, STRANGER, secret, number + 1, False)
        else:
            data = rng.randbytes(rng.choice((0, 20, datagram.PROBE_SIZE)))
            if kind == "altered" and secret:
                data = datagram.probe(rng.getrandbits(64), secret, number)
                at = rng.randrange(len(data))
                data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
            self._deliver(task, port, STRANGER, data)

    def _send(
        self,
        task: Task,
        port: int,
        source: Any,
        secret: bytes,
        session: int,
        is_sound: bool,
    ) -> None:
        nonce = self._rng.getrandbits(64)
        probe = Probe(task.number, self.clock.now, nonce, is_sound)
        self.probes[nonce] = probe
        self._deliver(task, port, source, datagram.probe(nonce, secret, session))

    def _deliver(self, task: Task, port: int, source: Any, data: bytes) -> None:
        self.sent_to[source] = self.sent_to.get(source, 0) + len(data)
        self.datagrams.send(data, source, (task.ip, port))

    def _said(self, who: Any, data: bytes, _: Any) -> None:
        self.sent_back[who] = self.sent_back.get(who, 0) + len(data)
        answer = datagram.parse_answer(data)
        if answer is None or answer.nonce not in self.probes:
            self.broken.append(("UDP answers who may ask", f"{data!r} came to {who}"))
        else:
            self.probes[answer.nonce].said.append(answer)

    # --- faults -----------------------------------------------------------------

    def _begin_fault(self, fault: Fault) -> None:
        self.note(f"fault: {fault}")
        now = self.clock.now
        self.faults.append((now, now + fault.lasts, fault))
        if fault.server < 0:
            self.store.fault = fault.kind
            self.clock.after(fault.lasts, self._store_is_well)
            return
        task = self.tasks[fault.server]
        if task.loop is None or task.server is None:
            return
        getattr(self, f"_{fault.kind}")(fault, task)

    def _store_is_well(self) -> None:
        self.store.fault = ""

    def _drain(self, fault: Fault, task: Task) -> None:
        watchers = task.server.statistics().streams.get("health", 0)
        drain = Drain(task.number, self.clock.now, watchers=watchers)
        self.drains.append(drain)
        self._leave(fault, task, True, drain)

    def _stop(self, fault: Fault, task: Task) -> None:
        self._leave(fault, task, False, None)

    def _leave(
        self, fault: Fault, task: Task, in_order: bool, drain: Drain | None
    ) -> None:
        loop, server = task.loop, task.server
        assert loop is not None
        leaving = loop.create_task(task.leave(server, in_order))
        task.server = None

        def look() -> None:
            if task.loop is not loop:
                return  # it crashed meanwhile
            if not leaving.done():
                self.clock.after(0.05, look)
                return
            if drain is not None:
                drain.over_at = self.clock.now
            task.die()
            self.clock.after(fault.lasts, task.start)

        look()

    def _crash(self, fault: Fault, task: Task) -> None:
        task.die()
        self.clock.after(fault.lasts, task.start)

    def _freeze(self, fault: Fault, task: Task) -> None:
        for core in task.host.cores:
            if not core.is_dead:
                core.stop(fault.lasts)

    def _block(self, fault: Fault, task: Task) -> None:
        assert task.loop is not None
        task.loop.block(fault.lasts)

    def _cut(self, fault: Fault, task: Task) -> None:
        task.host.link.is_cut = True

        def mend() -> None:
            task.host.link.is_cut = False
            task.host.changed()

        self.clock.after(fault.lasts, mend)

    def _lose(self, fault: Fault, task: Task) -> None:
        task.host.link.lost = 0.5

        def mend() -> None:
            task.host.link.lost = 0.0

        self.clock.after(fault.lasts, mend)

    def _goaway(self, fault: Fault, task: Task) -> None:
        for core in task.host.cores:
            if not core.is_dead:
                core.say_goaway(False)

    # --- its end ---------------------------------------------------------------------

    def _clean_up(self) -> None:
        for task in self.tasks:
            task.die()
            task.host.cores.clear()
            task.host.connections.clear()
        self.network.connections.clear()
        self._kept.clear()
        self.datagrams.forget()
        self.clock.forget()
        clean_up([*self._buried, self.clients])
        self._buried.clear()
