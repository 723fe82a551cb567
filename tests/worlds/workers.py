"""Tasks of several workers: lbclient's supervisor and workers, on processes in memory.

Each process has a loop of its own. In memory are the processes themselves, their pipes
and signals; a new process takes `STARTS` seconds.
"""

import asyncio
import pickle
import signal
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

from lbclient.server.workers.messages import Assignment
from lbclient.server.workers.supervisor import Supervisor
from lbclient.server.workers.worker import _Worker
from tests.worlds.clock import ProcessLoop
from tests.worlds.machines import Machine, Service
from tests.worlds.network import Host
from tests.worlds.plan import Fault
from tests.worlds.server_core import ServerCore

if TYPE_CHECKING:
    from tests.worlds.world import World

STARTS = 0.2  # seconds, of a new interpreter and what it imports
FIRST_OWN = 40_000  # ports


class End:
    """One end of a pipe, in the place of a socket."""

    def __init__(self) -> None:
        self.peer: End
        self.inbox: deque[bytes] = deque()
        self.reads: Callable[[], None] = lambda: None
        self.is_closed = False

    def __enter__(self) -> "End":
        return self

    def __exit__(self, *_: object) -> None:
        """The parent's copy of its child's end."""


def pair() -> tuple[End, End]:
    one, other = End(), End()
    one.peer, other.peer = other, one
    return one, other


class MemoryPipe:
    """In the place of `Pipe`."""

    def __init__(self, end: End) -> None:
        self.dropped = 0
        self._end = end

    def send(self, message: object) -> bool:
        peer = self._end.peer
        if self._end.is_closed or peer.is_closed:
            self.dropped += 1
            return False
        peer.inbox.append(pickle.dumps(message))
        peer.reads()
        return True

    def follow(
        self, take: Callable[[object], None], closed: Callable[[], None]
    ) -> None:
        loop = asyncio.get_running_loop()

        def read() -> None:
            while self.read_now(take):
                pass
            if self._end.peer.is_closed and not self._end.is_closed:
                self.close()
                closed()

        self._end.reads = lambda: soon(loop, read)
        self._end.reads()

    def read_now(self, take: Callable[[object], None]) -> bool:
        if not self._end.inbox or self._end.is_closed:
            return False
        take(pickle.loads(self._end.inbox.popleft()))
        return True

    def close(self) -> None:
        self._end.is_closed = True
        self._end.reads = lambda: None


def process_loop() -> ProcessLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ProcessLoop)
    return loop


def soon(loop: Any, do: Callable[[], object]) -> None:
    """On the loop of another process, if that is there."""
    if loop in loop.clock.loops:
        loop.call_soon(do)


class MemoryProcess:
    """In the place of `multiprocessing.Process`: a worker."""

    exitcode: int | None = None

    def __init__(self, target: Any, args: tuple[Assignment, End], name: str) -> None:
        self._assignment, self._end = args
        self._parent: ProcessLoop = process_loop()
        self.task: WorkingTask = self._parent.task
        self.pid = next(self.task.machine.pids)
        self.name = f"{self.task.machine} worker {self._assignment.number}"
        self.loop: ProcessLoop | None = None
        self.service: Service | None = None
        self.began_at = self._parent.clock.now
        self._working: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.task.processes[self.pid] = self
        self._parent.clock.after(STARTS, self._begin)

    def _begin(self) -> None:
        if self.exitcode is not None:
            return
        machine = self.task.machine
        machine.world.note(f"{self.label} begins")
        self.loop = machine.world.clock.start(self.label)
        self.service = Service(machine, self.loop)
        self._assignment = self._assignment._replace(make_server=self.service.make)
        self._working = self.loop.create_task(self._work())
        self._working.add_done_callback(self._over)

    async def _work(self) -> None:
        # What pickle does not take: a function of the world's.
        pipe: Any = MemoryPipe(self._end)
        await _Worker(self._assignment, pipe).serve()

    def _over(self, work: "asyncio.Task[None]") -> None:
        code = 1 if work.cancelled() or work.exception() else 0
        clock = self._parent.clock
        clock.after(0.0, partial(self.end, code))

    @property
    def label(self) -> str:
        return f"{self.name}, process {self.pid}"

    def is_alive(self) -> bool:
        return self.exitcode is None

    def serves(self) -> bool:
        """It has been there for a while, and was not told to leave."""
        worker = self.task.worker_of(self)
        return self.is_alive() and worker is not None and bool(worker.serves())

    @property
    def cores(self) -> list[ServerCore]:
        return [] if self.service is None else self.service.cores

    def end(self, code: int, with_machine: bool = False) -> None:
        """The kernel ends it, and tells its parent."""
        if self.exitcode is not None:
            return
        self.exitcode = code
        machine = self.task.machine
        machine.world.note(f"{self.label} ends: {code}")
        self._end.is_closed = True
        self._end.reads = lambda: None
        for core in self.cores:
            core.die(with_machine)
        if self.loop is not None:
            machine.world.bury(self.loop)
        self.task.processes.pop(self.pid, None)
        if (tell := self._parent.readers.get(self.pid)) is not None:
            soon(self._parent, tell)

    def terminate(self) -> None:
        loop = self.loop
        handler = None if loop is None else loop.signals.get(signal.SIGTERM)
        if handler is None:
            self.end(-signal.SIGTERM)
        else:
            soon(loop, handler)

    def kill(self) -> None:
        self._parent.clock.after(0.0, partial(self.end, -signal.SIGKILL))

    def join(self) -> None:
        pass


class WorkingTask:
    """One life of a task: its supervisor, on a loop of its own, and its workers."""

    def __init__(self, machine: "TaskMachine", loop: Any) -> None:
        self.machine = machine
        self.loop = loop
        loop.task = self
        self.server = self  # it is there, and may be told to leave
        self.supervisor: Supervisor | None = None
        self.processes: dict[int, MemoryProcess] = {}
        self.running = loop.create_task(self._run())

    async def _run(self) -> None:
        plan = self.machine.plan
        clock = asyncio.get_running_loop().time
        self.supervisor = Supervisor(plan.workers, self._assign, clock=clock)
        await self.supervisor.run()

    def _assign(self, number: int, group: int, slot: int) -> Assignment:
        plan = self.machine.plan
        made = "made:by_its_process"
        return Assignment(made, None, number, group, slot, plan.workers, plan.address)

    def worker_of(self, process: MemoryProcess) -> Any:
        if self.supervisor is None:
            return None
        every: list[Any] = self.supervisor._alive
        return next((one for one in every if one._process is process), None)

    @property
    def cores(self) -> list[ServerCore]:
        return [core for each in self.processes.values() for core in each.cores]

    def signal(self, number: int) -> None:
        if (handler := self.loop.signals.get(number)) is not None:
            soon(self.loop, handler)


class TaskMachine(Machine):
    """A machine whose server is a task of workers."""

    def __init__(self, world: "World", plan: Any, host: Host) -> None:
        super().__init__(world, plan, host)
        self.pids = count(1000)
        self.shut = plan.own if plan.own in ("refused", "silent") else ""
        self.served: dict[str, list[float]] = {}  # by worker's process
        self._own: list[Host] = []

    @property
    def hosts(self) -> list[Host]:
        return [self.host, *self._own]

    def new_port(self) -> Host:
        """A free one, for a worker alone."""
        ip = self.host.address.rpartition(":")[0]
        host = Host(f"{ip}:{FIRST_OWN + len(self._own)}", self.host.link)
        host.shut = self.shut
        self._own.append(host)
        self.world.own_ports[host.address] = host
        return host

    def shut_own(self, how: str) -> None:
        """A firewall's rules for own ports change; connections that are there stay,
        unless it drops what comes."""
        self.shut = how
        for host in self._own:
            host.shut = how
            host.changed()

    def _begin_process(self, loop: ProcessLoop) -> WorkingTask:
        return WorkingTask(self, loop)

    def executes(self, number: int, context: Any, loop: ProcessLoop) -> None:
        self.served.setdefault(loop.name, []).append(self.world.clock.now)
        super().executes(number, context, loop)

    def _requests_lately(self, loop: ProcessLoop, now: float) -> int:
        served = self.served.get(loop.name, [])
        return len(served) - bisect_left(served, now - 2.0)

    def die(self, with_machine: bool = False) -> None:
        task, self.process = self.process, None
        if task is not None:
            self.world.bury(task.loop)
            for process in list(task.processes.values()):
                process.end(-signal.SIGKILL, with_machine)

    def leave(self, in_order: bool) -> Any:
        if self.process is None:
            return None
        self.process.signal(signal.SIGTERM)
        return self.process.running

    def working(self) -> list[MemoryProcess]:
        """The workers that serve, and are to have calls."""
        if self.process is None:
            return []
        return [one for one in self.process.processes.values() if one.serves()]

    def suffer(self, fault: Fault) -> None:
        """What happens to one of its workers, or to all, one by one."""
        if self.process is None:
            return
        if fault.kind == "reload":
            self.process.signal(signal.SIGHUP)
            return
        some = self.working()
        if not some:
            return
        rng = Random(f"worker {self.world.plan.seed} {fault.at}")
        one = rng.choice(some)
        if fault.kind == "freeze worker":
            for core in one.cores:
                core.stop(fault.lasts)
        elif fault.kind == "block worker":
            assert one.loop is not None
            one.loop.block(fault.lasts)
        else:
            one.kill()
            if fault.kind == "kill and kill again":
                again = Fault(fault.at, "kill worker", fault.server, 0.1)
                self.world.clock.after(fault.lasts, partial(self.suffer, again))
