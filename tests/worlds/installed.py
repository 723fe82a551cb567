"""Puts a world in the places of gRPC's core, of clocks, of chance and of the machine.

Within `installed` grpcio's and lbclient's code is unmodified; what it asks of the
outside is answered by the world, and so is the same for the same seed.
"""

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from random import Random
from types import SimpleNamespace
from typing import Any

import grpc.aio._channel
import grpc.aio._utils
from grpc._cython import cygrpc

from lbclient import grpc_seam
from lbclient.client.backends import idleness
from lbclient.client.health.udp import Prober
from lbclient.grpc_seam import intake, own_streams, private
from lbclient.server import parts, reporting_server, sampler
from lbclient.server.overload import charging, core_queue, gate, system_readings
from lbclient.server.overload.run_queue import RunQueue
from lbclient.server.quotas import cpu_timing, quota_enforcer
from lbclient.server.quotas.memory_store import ProcessStore
from lbclient.server.report import health, reporter, udp_sessions
from lbclient.server.report import udp as responder
from lbclient.server.statistics import ContentionStatistics
from lbclient.server.workers import process, supervisor, worker
from lbclient.server.workers.membership import Membership
from tests.worlds.client_core import ClientCore
from tests.worlds.clock import Clock, ProcessLoop, member, worked
from tests.worlds.datagrams import Datagrams, binding, sending
from tests.worlds.memory_batches import IN_PLACES
from tests.worlds.memory_channel import MemoryChannel
from tests.worlds.memory_server import MemoryContext, MemoryServer
from tests.worlds.network import Host, Network
from tests.worlds.workers import MemoryPipe, MemoryProcess, pair

SAMPLE_INTERVAL = 0.3  # seconds; every 0.1 s takes 40 % of a world's time


class InOrder(dict[Any, None]):
    """A WeakSet's methods, in order of insertion: no addresses decide who is first."""

    def add(self, one: Any) -> None:
        self[one] = None

    def discard(self, one: Any) -> None:
        self.pop(one, None)


class OneCpu:
    """In the place of the meter of CPUs: one for each process, which is all its own,
    and used as the process says by `ProcessLoop.work`."""

    cpus = 1.0

    def __init__(self, smoothing: float, busy: Any = None) -> None:
        self._read = 0.0, worked()

    def read(self, now: float) -> float:
        (at, before), self._read = self._read, (now, worked())
        return (self._read[1] - before) / (now - at) if now > at else 0.0

    def note_lag(self, seconds: float, now: float) -> None:
        pass

    def statistics(self) -> ContentionStatistics:
        return ContentionStatistics()


class UsualSpeed:
    """In the place of the measured speed of the machine."""

    factor = 1.0

    def start(self) -> None:
        pass

    def sample(self, now: float) -> None:
        pass


def _counted(make: Callable[[], Any]) -> tuple[Any, Callable[[], int]]:
    """In the place of what asks gRPC's core, by channelz, how many calls it began."""
    made = make()
    return made, lambda: made[0]._server.begun


def _replaced(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    before = getattr(owner, name)
    setattr(owner, name, value)
    stack.callback(setattr, owner, name, before)


def _join(place: Membership) -> Membership:
    """In the place of `join`: of the process whose code runs."""
    loop: Any = asyncio.get_running_loop()
    loop.member = place
    return place


def _replace_processes(stack: ExitStack, chance: Any) -> None:
    """Processes of workers, their pipes and signals."""
    for module in (reporting_server, parts, health, quota_enforcer):
        _replaced(stack, module, "membership", member)
    _replaced(stack, worker, "join", _join)
    _replaced(stack, worker, "Pipe", MemoryPipe)
    _replaced(stack, process, "Pipe", MemoryPipe)
    _replaced(stack, process, "pair", pair)
    _replaced(stack, process, "SPAWN", SimpleNamespace(Process=MemoryProcess))
    # The number of a process is its descriptor.
    kernel = SimpleNamespace(pidfd_open=lambda pid: pid, close=lambda _: None)
    _replaced(stack, process, "os", kernel)
    _replaced(stack, supervisor, "SystemRandom", chance)
    _replaced(stack, supervisor, "is_init", lambda: False)
    no_cpu = SimpleNamespace(read=lambda now: 0.0)
    _replaced(stack, parts, "TaskCpuMeter", lambda processes: no_cpu)


def _forget_grpcio() -> None:
    private.find.cache_clear()
    intake._subclass.cache_clear()


@contextmanager
def installed(
    clock: Clock,
    network: Network,
    find: Callable[[str], Host],
    seed: object,
    datagrams: Datagrams,
    sample_interval: float = SAMPLE_INTERVAL,
) -> Iterator[None]:
    """`find` finds a machine by its address. `sample_interval`: of servers' signals."""
    rng = Random(f"chance of {seed}")

    def chance(*_: object) -> Random:
        return Random(rng.getrandbits(64))

    def dial(target: bytes, options: Any, credentials: Any, loop: ProcessLoop) -> Any:
        address = target.decode().removeprefix("ipv4:")
        core = ClientCore(network, loop, find(address), dict(options))
        return MemoryChannel(core, credentials is not None)

    class Store(ProcessStore):
        def __init__(self) -> None:
            super().__init__(lambda: clock.now)

    def no_memory(*_: object) -> Any:
        return SimpleNamespace(read=lambda now: 0.0)

    with ExitStack() as stack:
        stack.callback(_forget_grpcio)
        _replaced(stack, cygrpc, "AioChannel", dial)
        for name, value in IN_PLACES.items():
            _replaced(stack, own_streams, name, value)
        _replaced(stack, cygrpc, "AioServer", MemoryServer)
        _replaced(stack, cygrpc, "_ServicerContext", MemoryContext)
        MemoryServer.host_of = staticmethod(find)
        wall = SimpleNamespace(time=clock.wall)
        _replaced(stack, grpc.aio._utils, "time", wall)
        ordered = SimpleNamespace(WeakSet=InOrder)
        _replaced(stack, grpc.aio._channel, "weakref", ordered)
        _replaced(stack, import_module("lbclient.server.grpc_server"), "Random", chance)
        _replaced(stack, sampler, "Random", chance)
        _replaced(stack, sampler, "ContentionMeter", OneCpu)
        _replaced(stack, sampler, "SAMPLE_INTERVAL", sample_interval)
        _replaced(stack, quota_enforcer, "Random", chance)
        _replaced(stack, quota_enforcer, "ProcessStore", Store)
        _replaced(stack, cpu_timing, "thread_time", worked)
        _replaced(stack, core_queue, "thread_time", worked)
        _replaced(stack, core_queue, "OF_PROCESS", UsualSpeed())
        _replaced(stack, charging, "OF_PROCESS", UsualSpeed())
        _replaced(stack, gate, "RunQueue", partial(RunQueue, cpu_time=worked))
        _replaced(stack, grpc_seam, "counted", _counted)
        _replaced(stack, udp_sessions, "token_bytes", rng.randbytes)
        _replaced(stack, udp_sessions, "randbits", rng.getrandbits)
        _replaced(stack, responder, "_bind", binding(datagrams))
        _replaced(stack, Prober, "send", sending(datagrams))
        _replaced(stack, reporter, "SystemRandom", chance)
        _replaced(stack, idleness, "SystemRandom", chance)
        _replaced(stack, system_readings, "MemoryMeter", no_memory)
        _replace_processes(stack, chance)
        _forget_grpcio()
        was_on = gc.isenabled()
        gc.disable()  # a collection ends what was dropped, whenever it comes
        if was_on:
            stack.callback(gc.enable)
        yield
