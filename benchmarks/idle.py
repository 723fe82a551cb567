"""What inactive backends cost a client: connections, CPU and memory.

    python -m benchmarks.idle                about 4 minutes

One client process with 500 connected backends, which then become inactive; the servers
answer UDP health checks, as ours do. CPU is that of the whole process, its C threads
included, in stretches that follow each other, as a prober asks less and less often.

Memory is what the process has more than before it had backends, three ways: resident;
resident when the C allocator has given back (`malloc_trim`) what it keeps of the time
with connections, to use it again; and what is in use by Python, which is measured in a
run of its own, as to trace it costs CPU. The second is held against the target: the
first depends on how many connections there were, and not on backends.

Exit status 1 if a target is missed.
"""

import asyncio
import ctypes
import gc
import os
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lbclient
from benchmarks.harness import linux
from benchmarks.harness.echo import echo_on, many_spawned
from benchmarks.harness.measured import Measured
from benchmarks.harness.options import conclude, exit_with, parser_of
from benchmarks.harness.processes import result_of
from benchmarks.harness.servers import target_of
from lbclient.config import ChannelConfig

BACKENDS = 500
LOOK_EVERY = 0.1  # seconds
LOOKS = 1200  # until a state must be reached; 500 connections take some 60

MOST_CPU = 0.005  # of a core
MOST_MEMORY = 50.0  # KB for each backend


@dataclass(frozen=True, slots=True)
class Plan:
    """How one client is measured. Times in seconds."""

    is_traced: bool = False
    idle_after: float = 20.0  # all are to be connected before the first is inactive
    stretches: int = 3
    stretch: float = 30.0


PLAIN, TRACED = Plan(), Plan(is_traced=True, stretches=1)


@dataclass(frozen=True, slots=True)
class Idle:
    """What one client found after its last stretch. Memory in KB for each backend."""

    states: dict[str, int]  # of the backends
    connections: int
    cpu: list[float]  # shares of a core, by stretch
    probes: list[int]  # sent, by stretch
    resident: float
    trimmed: float
    traced: float | None  # None: it was not
    call: float  # seconds, of the one that ended the idle time

    def misses(self) -> list[str]:
        """The targets that were missed; a traced client has none for CPU."""
        found = []
        if self.states.keys() != {"inactive"}:
            found.append(f"all inactive, not {self.states}")
        if self.connections:
            found.append(f"no connection, not {self.connections}")
        if self.traced is None and max(self.cpu) >= MOST_CPU:
            found.append(f"CPU below {MOST_CPU:.1%} of a core")
        memory = self.trimmed if self.traced is None else self.traced
        if memory > MOST_MEMORY:
            found.append(f"at most {MOST_MEMORY:.0f} KB for each")
        return found


# --- the client ---------------------------------------------------------------


async def client(ports: list[int], plan: Plan) -> Idle:
    """Raises TimeoutError if the backends do not get ready, or not inactive."""
    async with lbclient.insecure_channel(f"127.0.0.1:{ports[0]}") as channel:
        await echo_on(channel)()  # for what is there once, whoever is called
    gc.collect()
    if plan.is_traced:
        tracemalloc.start()
    resident_before, in_use_before = resident(), in_use()
    config = ChannelConfig(subset="whole", idle_after=plan.idle_after)
    async with lbclient.insecure_channel(target_of(ports), config=config) as channel:
        await channel.channel_ready()
        await all_are(channel, "ready")
        await all_are(channel, "inactive")
        cpu, probes = [], []
        for _ in range(plan.stretches):
            sent = probes_of(channel)
            cpu.append(await share_of_a_core(plan.stretch))
            probes.append(probes_of(channel) - sent)
        gc.collect()
        grown, in_use_now = resident() - resident_before, in_use() - in_use_before
        give_back()
        trimmed = resident() - resident_before
        states, connections = states_of(channel), own_connections()
        began = time.monotonic()
        await echo_on(channel)()
        call = time.monotonic() - began
    tracemalloc.stop()
    return Idle(
        states=dict(states),
        connections=connections,
        cpu=cpu,
        probes=probes,
        resident=grown / len(ports),
        trimmed=trimmed / len(ports),
        traced=in_use_now / len(ports) if plan.is_traced else None,
        call=call,
    )


def states_of(channel: lbclient.Channel) -> Counter[str]:
    return Counter(backend.state for backend in channel.statistics().backends)


async def all_are(channel: lbclient.Channel, state: str) -> None:
    for _ in range(LOOKS):
        states = states_of(channel)
        if states.keys() == {state}:
            return
        await asyncio.sleep(LOOK_EVERY)
    raise TimeoutError(f"not all {state}: {dict(states)}")


def probes_of(channel: lbclient.Channel) -> int:
    prober = channel.balancer().backends.idleness._prober
    return 0 if prober is None else prober.statistics().sent


async def share_of_a_core(seconds: float) -> float:
    began, used = time.monotonic(), time.process_time()
    await asyncio.sleep(seconds)
    return (time.process_time() - used) / (time.monotonic() - began)


def resident() -> float:
    """KB of this process that are in RAM."""
    return linux.resident(os.getpid()) / 1024


def in_use() -> float:
    """KB that Python has in use, of those asked for while traced."""
    return tracemalloc.get_traced_memory()[0] / 1024


def give_back() -> None:
    trim: Callable[[int], Any] | None
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


def own_connections() -> int:
    """TCP sockets of this process, in whatever state."""
    files = Path("/proc/self/fd")
    mine = {
        os.readlink(file) for file in files.iterdir() if file.is_socket()
    }  # "socket:[inode]"
    return sum(f"socket:[{one.inode}]" in mine for one in linux.tcp_sockets())


# --- the servers, and what is said --------------------------------------------


async def client_of(ports: list[int], plan: dict[str, Any]) -> Idle:
    return await client(ports, Plan(**plan))


def say(idle: Idle, plan: Plan) -> None:
    print(", ".join(f"{count} {state}" for state, count in idle.states.items()))
    print(f"  TCP connections     {idle.connections}")
    if idle.traced is None:
        for n, (cpu, probes) in enumerate(zip(idle.cpu, idle.probes, strict=True)):
            since = f"{n * plan.stretch:.0f} to {(n + 1) * plan.stretch:.0f} s"
            print(f"  CPU, {since:14} {cpu:.2%} of a core, {probes} probes")
        trimmed = f"{idle.trimmed:.1f} when trimmed"
        print(f"  resident memory     {idle.resident:.1f} KB for each, {trimmed}")
    else:
        print(f"  memory in Python    {idle.traced:.1f} KB for each")
    print(f"  the next call       {idle.call * 1000:.0f} ms")


async def run(backends: int) -> list[Idle]:
    """What a client in a process of its own found of each plan."""
    found = []
    async with many_spawned(backends) as ports:
        for plan in (PLAIN, TRACED):
            found.append(Idle(**await result_of(client_of, ports, plan)))
            say(found[-1], plan)
    return found


def main() -> int:
    parser = parser_of("idle", __doc__)
    parser.add_argument("--backends", type=int, default=BACKENDS)
    given = parser.parse_args()
    found = asyncio.run(run(given.backends))
    missed = [missed for idle in found for missed in idle.misses()]
    plain, traced = found
    told = [
        Measured(name=f"inactive: {what}", value=value, unit=unit)
        for what, value, unit in (
            ("memory of each, trimmed", plain.trimmed, "KB"),
            ("memory of each in Python", traced.traced or 0.0, "KB"),
            ("CPU", 100.0 * max(plain.cpu), "% of a core"),
        )
    ]
    return conclude(given, found, missed, measured=told)


if __name__ == "__main__":
    exit_with(main)
