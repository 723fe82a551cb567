"""One world: runs a plan, heals all that it broke, and asks what was promised.

All of it is lbclient's own code and grpcio's in Python, on virtual time; the core, the
network, the machines and the resolver's source are the world's.
"""

import asyncio
import gc
import logging
import sys
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from random import Random
from typing import Any

from lbclient.client.channel import Channel
from lbclient.config import ChannelConfig
from lbclient.core.errors import ResolveError
from lbclient.core.model import Endpoint, Endpoints, snapshot
from tests.interceptors import PASSING
from tests.worlds.caller import Caller, Seen
from tests.worlds.clock import Clock, ProcessLoop, SpinError
from tests.worlds.datagrams import Datagrams
from tests.worlds.installed import installed
from tests.worlds.machines import Machine, clean_up, garbled
from tests.worlds.network import Host, Link, Network
from tests.worlds.plan import (
    FIRST_PROBE,
    HEALS,
    IDEMPOTENT,
    KINDS,
    PROBE_EVERY,
    PROBE_WORKERS_EVERY,
    CallPlan,
    Fault,
    Plan,
    ServerPlan,
)
from tests.worlds.workers import TaskMachine

AFTERWARDS = 6.0  # seconds after `close` in which all that it began ends
LOOK_EVERY = 0.25
WAITS_LOOKS = 4


class Source:
    """What a name service knows, with its faults; the channel's resolver."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.truth: dict[str, None] = {}
        self.fault = ""
        self._changed: asyncio.Event | None = None
        self.asked = 0

    def tell(self) -> None:
        if self._changed is not None:
            self._changed.set()

    def _answer(self) -> Endpoints:
        known = list(self.truth)
        if self.fault == "resolver fails":
            raise ResolveError("the name service is down")
        if self.fault == "resolver is empty":
            known = []
        elif self.fault == "resolver forgets one":
            known = known[1:]
        elif self.fault == "resolver lies":
            known = ["10.9.9.8:50051", "10.9.9.9:50051"]
        elif self.fault == "resolver invents one":
            known.append("10.9.9.9:50051")
        return snapshot([Endpoint(address) for address in known])

    async def watch(self) -> AsyncIterator[Endpoints]:
        while True:
            self._changed = asyncio.Event()
            self.asked += 1
            await asyncio.sleep(0.005)
            yield self._answer()
            await self._changed.wait()

    def refresh(self) -> None:
        self._world.client.call_later(0.02, self.tell)

    def __repr__(self) -> str:
        return "<the world's names>"


class World:
    """`seen` are the calls, `probes` those after all was healed."""

    def __init__(self, plan: Plan, traces: bool = False) -> None:
        """`traces`: all that happens is kept in `trace`, as times and words."""
        self.plan = plan
        self.trace: list[tuple[float, str]] | None = [] if traces else None
        self.complaints: list[str] = []  # of the client, at ERROR
        self.broken: list[tuple[str, str]] = []  # a promise, and how
        self.clock = Clock(Random(f"turns {plan.seed}"))
        self.network = Network(self.clock)
        self.machines: dict[str, Machine] = {}
        self.datagrams = Datagrams(self.clock, self._with_number)
        self.own_ports: dict[str, Host] = {}  # of workers, ever
        self.source = Source(self)
        self.executed: dict[int, list[tuple[float, str]]] = {}
        self.blocked: list[tuple[float, float]] = []  # the client
        self.faults: list[tuple[float, float, Fault, Machine | None]] = []
        self.healed_at = plan.lasts
        self._buried: list[ProcessLoop] = []
        self._moved = 0
        self.is_closing = False
        self.closed_at: float | None = None
        self._closing: asyncio.Task[None] | None = None
        self.statistics: Any = None
        self.live: list[Seen] = []  # calls, when the statistics were taken
        self.sent: dict[str, list[float]] = {}  # calls to each address
        self.dialled: dict[str, int] = {}
        self.most_connections: dict[str, int] = {}
        self.has_workers = any(server.workers for server in plan.servers)
        self._connected = Counter[str]()  # by address, at the last look
        self.idle_rooms: list[str] = []
        self._waited: dict[int, int] = {}  # looks in which a call waited beside room
        self.probes: list[Seen] = []
        # Of tasks with workers, in the end, by address: those that serve, and how many
        # connections there are to be to the port that they share.
        self.working: dict[str, list[str]] = {}
        self.shared: dict[str, int] = {}

    # --- what it is made of -------------------------------------------------------

    def _with_number(self, ip: str) -> Host | None:
        """The machine with an IP address; each has one port."""
        found = self.machines.get(f"{ip}:50051")
        return None if found is None else found.host

    def host(self, address: str) -> Host:
        """Who has an address; port 0 is a new one of a worker."""
        ip, _, port = address.rpartition(":")
        if port == "0":
            return self._task_at(ip).new_port()
        if (own := self.own_ports.get(address)) is not None:
            return own
        if address not in self.machines:
            self._make_machine(ServerPlan(address, "plain"))
        return self.machines[address].host

    def _task_at(self, ip: str) -> TaskMachine:
        machine = self.machines[f"{ip}:50051"]
        assert isinstance(machine, TaskMachine)
        return machine

    def _make_machine(self, plan: ServerPlan) -> Machine:
        rng = Random(f"link {self.plan.seed} {plan.address}")
        host = Host(plan.address, Link(rng, self.plan.delay))
        make = TaskMachine if plan.workers else Machine
        machine = self.machines[plan.address] = make(self, plan, host)
        return machine

    def note(self, what: str) -> None:
        if self.trace is not None:
            self.trace.append((self.clock.now, what))

    def executes(self, number: int, machine: Machine, context: Any) -> None:
        attempt = dict(context.invocation_metadata()).get("lbclient-attempt", "0")
        at = (self.clock.now, machine.host.address)
        self.executed.setdefault(number, []).append(at)
        self.note(f"{machine} executes call {number}, attempt {attempt}")

    def bury(self, loop: ProcessLoop) -> None:
        self.clock.end(loop)
        self.datagrams.end(loop)
        self._buried.append(loop)

    # --- its course -----------------------------------------------------------------

    def run(self) -> None:
        with self.opened():
            try:
                self._follow_plan()
                self.finish()
            except SpinError as error:
                self.broken.append(("nothing spins", str(error)))

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Its machines run, and its channel is there, until this is over."""
        with ExitStack() as stack:
            stack.enter_context(quiet())
            stack.enter_context(listening(self))
            stack.enter_context(
                installed(
                    self.clock,
                    self.network,
                    self.host,
                    self.plan.seed,
                    self.datagrams,
                )
            )
            self._start()
            try:
                yield
            finally:
                self._clean_up()

    def _start(self) -> None:
        for server in self.plan.servers:
            machine = self._make_machine(server)
            machine.start()
            self.source.truth[server.address] = None
        self.client = self.clock.start("client")
        self.channel = Channel(
            self.source,
            None,
            None,
            None,
            PASSING if self.plan.intercepts else None,
            ChannelConfig(**dict(self.plan.settings)),
            clock=self.client.time,
            name="world",
        )
        self.caller = Caller(self)
        self.network.begins, self.network.dials = self.begins, self.dials
        self.clock.after(LOOK_EVERY, self._look)

    def _follow_plan(self) -> None:
        plan, clock = self.plan, self.clock
        for fault in plan.faults:
            clock.at(fault.at, partial(self.begin_fault, fault))
        for call in plan.calls:
            clock.at(call.at, partial(self._begin_call, call))
        if plan.closes is not None:
            clock.at(plan.closes[0], self.close)
        clock.run(plan.lasts)

    def finish(self) -> None:
        """Waits until all is healed, sees whether it is, and closes the channel."""
        self.clock.run(max(self.clock.now, self.healed_at))
        self._collect()
        self._probe()
        if not self.is_closing:
            self._settle()
            self._on_client(self._take_statistics)
            self.close()
        self.clock.run(self.clock.now + AFTERWARDS)

    def _collect(self) -> None:
        """grpc.aio's intercepted calls are in circles: a stream of them that is dropped
        ends when it is collected."""
        if self.plan.intercepts:
            gc.collect()

    def _begin_call(self, call: CallPlan) -> None:
        if not self.is_closing:
            self.caller.begin(call)

    def _settle(self) -> None:
        """All calls of the plan have ended by then, or never will."""
        limit = self.clock.now + 30.0
        self.clock.run(limit, lambda: not self.caller.tasks)
        self._collect()
        self.clock.run(self.clock.now + 1.0)

    def _probe(self) -> None:
        """Calls, one after the other, now that all is well."""
        if self.is_closing or not (self.plan.probes and self.machines_up()):
            return
        self.note("all is healed")
        start = self.clock.now
        every = PROBE_WORKERS_EVERY if self.has_workers else PROBE_EVERY
        for step in range(int(HEALS / every)):
            call = CallPlan(FIRST_PROBE + step, start, IDEMPOTENT, 2.0, 0.01)
            at = start + step * every
            self.clock.at(at, partial(self._begin_probe, call))
        self.clock.run(start + HEALS + 2.5)

    def _begin_probe(self, call: CallPlan) -> None:
        self.probes.append(self.caller.begin(call))

    def machines_up(self) -> list[Machine]:
        return [self.machines[one] for one in self.source.truth]

    def _on_client(self, do: Callable[[], None]) -> None:
        self.client.call_soon(do)
        self.clock.run(self.clock.now + 0.01)

    def _take_statistics(self) -> None:
        self.statistics = self.channel.statistics()
        balancer = self.channel._balancer
        if balancer is not None:
            workers = balancer.connections.workers
            self.shared = {
                at: len(workers._tasks.shared_of(at)) for at in self.machines
            }
        self.working = {
            machine.host.address: [one.label for one in machine.working()]
            for machine in self.machines_up()
            if isinstance(machine, TaskMachine)
        }
        self.live = [seen for seen in self.caller.seen if seen.over_at is None]

    def close(self) -> None:
        if self.is_closing:
            return
        self.is_closing = True
        self.closed_at = self.clock.now
        self.note("the channel is closed")
        grace = None if self.plan.closes is None else self.plan.closes[1]
        self._closing = self.client.create_task(self.channel.close(grace))

    def _look(self) -> None:
        now = Counter(one.host.address for one in self.network.connections)
        before, self._connected = self._connected, now
        for address, count in now.items():
            if self.has_workers:
                # One that landed where another one is goes within a moment.
                count = min(count, before[address])
            most = self.most_connections.get(address, 0)
            self.most_connections[address] = max(most, count)
        self._look_for_room()
        if not self.is_closing:
            self.clock.after(LOOK_EVERY, self._look)

    def _look_for_room(self) -> None:
        """Who waits at several looks in a row, and could be sent at each of them."""
        balancer = self.channel._balancer
        is_awake = self.client.blocked_until < self.clock.now - LOOK_EVERY
        if balancer is None or not is_awake or self.is_closing:
            return
        before, self._waited = self._waited, {}
        for waiter in balancer.pending.waiters:
            if balancer.outliers.allowed(id(waiter.counts)):
                looks = self._waited[id(waiter)] = before.get(id(waiter), 0) + 1
                if looks == WAITS_LOOKS:
                    self.idle_rooms.append(
                        f"at {self.clock.now:.3f}: {waiter!r} beside {balancer.pool!r}"
                    )

    def begins(self, address: str, method: str) -> None:
        """A call is sent, to be counted where it is no question of health."""
        if method in KINDS:
            self.sent.setdefault(address, []).append(self.clock.now)

    def dials(self, address: str) -> None:
        self.dialled[address] = self.dialled.get(address, 0) + 1

    # --- faults -----------------------------------------------------------------------

    def begin_fault(self, fault: Fault) -> None:
        now = self.clock.now
        self.note(f"fault: {fault}")
        machine = None
        if fault.server >= 0:
            address = self.plan.servers[fault.server].address
            machine = self.machines[address]
        self.faults.append((now, now + fault.lasts, fault, machine))
        self.healed_at = max(self.healed_at, now + fault.lasts + 0.5)
        end = getattr(self, "_" + fault.kind.replace(" ", "_"))(fault, machine)
        if end is not None:
            self.clock.after(fault.lasts, partial(self._end_fault, fault, end))

    def _end_fault(self, fault: Fault, end: Callable[[], None]) -> None:
        self.note(f"over: {fault}")
        end()

    def _crash(self, fault: Fault, machine: Machine) -> Callable[[], None]:
        machine.die()
        return machine.start

    def _move(self, fault: Fault, machine: Machine) -> Callable[[], None]:
        """It comes up elsewhere, and the name service knows soon."""
        machine.die()
        self._moved += 1
        address = f"10.0.1.{self._moved}:50051"
        there = self._make_machine(ServerPlan(address, machine.plan.kind))
        there.start()

        def tell() -> None:
            self.source.truth.pop(machine.host.address, None)
            self.source.truth[address] = None
            self.source.tell()

        return tell

    def _drain(self, fault: Fault, machine: Machine) -> None:
        self._leave(fault, machine, in_order=True)

    def _stop(self, fault: Fault, machine: Machine) -> None:
        self._leave(fault, machine, in_order=False)

    def _leave(self, fault: Fault, machine: Machine, in_order: bool) -> None:
        process = machine.process
        task = machine.leave(in_order)
        if task is None:
            return
        limit = self.clock.now + 15.0
        self.healed_at = max(self.healed_at, limit + fault.lasts + 0.5)

        def look() -> None:
            if machine.process is not process:
                return  # it died meanwhile
            if task.done() or self.clock.now > limit:
                machine.die()
                self.clock.after(fault.lasts, machine.start)
            else:
                self.clock.after(0.1, look)

        look()

    def _freeze(self, fault: Fault, machine: Machine) -> None:
        for core in machine.process.cores if machine.process else ():
            core.stop(fault.lasts)

    _freeze_long = _freeze

    def _block(self, fault: Fault, machine: Machine) -> None:
        if machine.process is not None:
            machine.process.loop.block(fault.lasts)

    def _cut(self, fault: Fault, machine: Machine) -> Callable[[], None]:
        link = machine.host.link
        link.is_cut = True

        def mend() -> None:
            link.is_cut = False
            machine.changed()

        return mend

    def _vanish(self, fault: Fault, machine: Machine) -> Callable[[], None]:
        machine.vanish()
        return machine.start

    def _slow(self, fault: Fault, machine: Machine) -> Callable[[], None]:
        machine.host.link.extra = 0.3

        def mend() -> None:
            machine.host.link.extra = 0.0

        return mend

    def _goaway(self, fault: Fault, machine: Machine, abrupt: bool = False) -> None:
        for core in machine.process.cores if machine.process else ():
            core.say_goaway(abrupt)

    def _goaway_abrupt(self, fault: Fault, machine: Machine) -> None:
        self._goaway(fault, machine, abrupt=True)

    def _refuse_streams(
        self, fault: Fault, machine: Machine
    ) -> Callable[[], None] | None:
        cores = machine.process.cores if machine.process else []
        if machine.plan.kind != "lbclient":
            return None  # others may say so of what they have executed

        def refuse(wanted: bool) -> None:
            for core in cores:
                core.refuses_streams = wanted

        refuse(True)
        return partial(refuse, False)

    def _set(self, machine: Machine, name: str, value: Any) -> Callable[[], None]:
        before = getattr(machine, name)
        setattr(machine, name, value)
        return partial(setattr, machine, name, before if before != value else False)

    def _on_task(self, fault: Fault, machine: Machine) -> None:
        if isinstance(machine, TaskMachine):
            machine.suffer(fault)

    _kill_worker = _kill_and_kill_again = _freeze_worker = _on_task
    _block_worker = _reload = _on_task

    def _own_ports(self, fault: Fault, machine: Machine) -> Callable[[], None] | None:
        if not isinstance(machine, TaskMachine):
            return None
        before = machine.shut
        rng = Random(f"own ports {self.plan.seed} {fault.at}")
        kinds = [kind for kind in ("", "refused", "silent") if kind != before]
        machine.shut_own(rng.choice(kinds))
        return partial(machine.shut_own, before)

    def _lie(self, fault: Fault, machine: Machine) -> Callable[[], None]:
        return self._set(machine, "is_lying", True)

    def _garble(self, fault: Fault, machine: Machine) -> Callable[[], None]:
        rng = Random(f"garble {self.plan.seed} {fault.at}")
        for host in machine.hosts:
            host.garbles = partial(garbled, rng)

        def end() -> None:
            for host in machine.hosts:
                host.garbles = None

        return end

    def _lose(self, fault: Fault, machine: Machine) -> Callable[[], None]:
        machine.host.link.lost = 0.5

        def end() -> None:
            machine.host.link.lost = 0.0

        return end

    def _fail(self, fault: Fault, machine: Machine) -> Callable[[], None]:
        return self._set(machine, "is_failing", True)

    def _hang(self, fault: Fault, machine: Machine) -> Callable[[], None]:
        return self._set(machine, "is_hanging", True)

    def _overload(self, fault: Fault, machine: Machine) -> Callable[[], None]:
        machine.strain = 1.0 + Random(f"{self.plan.seed} {fault.at}").random()

        def end() -> None:
            machine.strain = 0.0

        return end

    def _mute(self, fault: Fault, machine: Machine) -> Callable[[], None] | None:
        process = machine.process
        if process is None:
            return None
        process.is_mute = True

        def end() -> None:
            process.is_mute = False

        return end

    def _of_source(self, fault: Fault, machine: None) -> Callable[[], None]:
        self.source.fault = fault.kind
        self.source.tell()

        def end() -> None:
            if self.source.fault == fault.kind:
                self.source.fault = ""
                self.source.tell()

        return end

    _resolver_fails = _resolver_is_empty = _of_source
    _resolver_forgets_one = _resolver_invents_one = _resolver_lies = _of_source

    def _client_blocks(self, fault: Fault, machine: None) -> None:
        self.blocked.append((self.clock.now, self.clock.now + fault.lasts))
        self.client.block(fault.lasts)

    # --- its end ----------------------------------------------------------------------

    def _clean_up(self) -> None:
        """Notes what is left, and lets go of all that ran, so that it is collected here
        and not in the next world."""
        client, callers = self.client, self.caller.tasks
        tasks = [one for one in asyncio.all_tasks(client) if one not in callers]
        self.left_tasks = [repr(task) for task in tasks]
        timers = client._scheduled
        self.left_timers = [repr(one) for one in timers if not one.cancelled()]
        self.left_connections = [one.host.address for one in self.network.connections]
        for machine in self.machines.values():
            machine.die()
            for host in machine.hosts:
                host.cores.clear()
                host.connections.clear()
        for loop in self._buried:
            loop.set_exception_handler(lambda *_: None)
        self.caller.forget()
        self.network.connections.clear()
        self.clock.forget()
        self.datagrams.forget()
        loops = [*self._buried, client]
        self._buried.clear()
        del self.channel, tasks, timers, callers
        self._closing = None
        clean_up(loops)
        self.errors = list(client.errors)


@contextmanager
def listening(world: Any, of_servers: bool = False) -> Iterator[None]:
    """What lbclient logs goes to the world's trace, and its errors to `complaints`."""
    handler = _Handler(world, of_servers)
    logger = logging.getLogger("lbclient")
    before, propagates = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(logging.INFO if world.trace is not None else logging.ERROR)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates
        logger.setLevel(before)


class _Handler(logging.Handler):
    """Takes what lbclient logs into the trace."""

    def __init__(self, world: Any, of_servers: bool) -> None:
        super().__init__()
        self._world = world
        self._of_servers = of_servers  # those who are asked for errors

    def emit(self, record: logging.LogRecord) -> None:
        is_server = record.name.startswith("lbclient.server")
        words = record.getMessage()
        self._world.note(f"[{'server' if is_server else 'client'}] {words}")
        if record.levelno >= logging.ERROR and is_server == self._of_servers:
            error = record.exc_info[1] if record.exc_info else None
            self._world.complaints.append(f"{words} ({error!r})")


@contextmanager
def quiet() -> Any:
    """What is thrown away at the end of a world says nothing of it."""
    hook = sys.unraisablehook
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sys.unraisablehook = lambda _: None
        try:
            yield
        finally:
            sys.unraisablehook = hook
            logging.getLogger("asyncio").setLevel(logging.NOTSET)
