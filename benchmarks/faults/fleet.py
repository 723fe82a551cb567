"""Backends in processes, an open load on a channel, and what became of the calls."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from time import monotonic
from typing import Any, NamedTuple, Protocol

import grpc

import lbclient
from benchmarks.faults.task import METHOD, TASK_KEY, serve
from benchmarks.harness.load import steady
from benchmarks.harness.processes import ROOT, Process, command_of, start
from tests.ports import free_ports

HOST = "127.0.0.1"
NOTHING: Mapping[str, str] = {}
# For a task's environment. On a machine that is busy with other things a server of
# ours is overloaded, and refuses calls: these are not lost by the fault that is shown.
NO_SHEDDING = {"LBCLIENT_MAX_LOAD": "0"}
ROUND_ROBIN = [
    ("grpc.service_config", '{"loadBalancingConfig":[{"round_robin":{}}]}'),
    ("grpc.enable_http_proxy", 0),
]


# What a table calls the two kinds of servers.
SERVERS = {"ours": "lbclient servers", "stock": "stock servers"}


class Task:
    """A backend in a process. `kind` is "ours" or "stock", plain grpc.aio.

    With several ports it is as many backends, which live and die together.
    `environment` is what its own has besides ours.
    """

    process: Process

    def __init__(
        self,
        kind: str,
        *ports: int,
        host: str = HOST,
        inside: Sequence[str] = (),
        **environment: str,
    ) -> None:
        """`inside` are the words before a command that has it run elsewhere, such as in
        a network namespace."""
        self._environment = environment
        self._inside = inside
        self.kind = kind
        self.ports = ports
        self.port = ports[0]
        self.host = host
        self.address = ",".join(f"{host}:{port}" for port in ports)

    async def start(self, **behaviour: Any) -> None:
        ports = ",".join(map(str, self.ports))
        self.process = await start(
            *self._inside, *command_of(serve, self.kind, ports, self.host),
            env={**os.environ, **self._environment}, cwd=ROOT,
        )  # fmt: skip
        await self.process.hear()
        await self.behave(**behaviour)

    async def behave(self, **behaviour: Any) -> None:
        """From now on: `latency`, `status`, `share`, see `benchmarks.faults.task`."""
        await self.process.ask(behaviour)

    def signal(self, number: signal.Signals) -> None:
        self.process.process.send_signal(number)

    async def wait(self) -> None:
        """Until its process has ended."""
        await self.process.process.wait()

    async def close(self) -> None:
        if hasattr(self, "process"):
            await self.process.close()


@asynccontextmanager
async def fleet(
    count: int, kind: str, environment: Mapping[str, str] = NOTHING, **behaviour: Any
) -> AsyncIterator[list[Task]]:
    """So many tasks that have started; leaving the context ends every process."""
    tasks = [Task(kind, port, **environment) for port in free_ports(count)]
    async with AsyncExitStack() as stack:
        for task in tasks:
            stack.push_async_callback(task.close)
        await asyncio.gather(*(task.start(**behaviour) for task in tasks))
        yield tasks


class Addressed(Protocol):
    """A task, or what stands in front of it."""

    @property
    def address(self) -> str: ...


class Front(NamedTuple):
    """What stands in front of tasks."""

    address: str


def target_of(tasks: Iterable[Addressed]) -> str:
    return "ipv4:" + ",".join(task.address for task in tasks)


def ours(tasks: Iterable[Addressed], **settings: Any) -> lbclient.Channel:
    config = lbclient.ChannelConfig(**settings)
    return lbclient.insecure_channel(target_of(tasks), config=config)


def theirs(tasks: Iterable[Addressed]) -> grpc.aio.Channel:
    """What plain grpc.aio does, by turns."""
    return grpc.aio.insecure_channel(target_of(tasks), options=ROUND_ROBIN)


class Ended(NamedTuple):
    """A call: when it was sent, how long it took, with which status and words it ended
    and the port of who answered; "" if nobody did."""

    sent_at: float
    seconds: float
    status: str
    words: str
    port: str


class Tally(list[Ended]):
    """Every call of one load, in the order of their ends."""

    def failed(self) -> "Tally":
        return Tally(call for call in self if call.status != "OK")

    def since(self, moment: float) -> "Tally":
        return Tally(call for call in self if call.sent_at >= moment)

    def by_status(self) -> Counter[str]:
        return Counter(call.status for call in self)

    def by_ending(self) -> Counter[str]:
        """By "STATUS: words", or "OK"."""
        return Counter(
            call.status if call.status == "OK" else f"{call.status}: {call.words}"
            for call in self
        )

    def by_port(self) -> Counter[str]:
        return Counter(call.port for call in self)

    def first_good_after(self, moment: float) -> float | None:
        """Seconds from then to the end of the first call sent since that is OK."""
        ends = [c.sent_at + c.seconds for c in self.since(moment) if c.status == "OK"]
        return min(ends) - moment if ends else None


async def send_one(
    channel: grpc.aio.Channel,
    tally: Tally,
    timeout: float | None = None,
    method: str = METHOD,
    metadata: Any = None,
) -> None:
    """A call that ends as anything else than an AioRpcError has the name of that for
    its status."""
    call: Any = channel.unary_unary(method)
    sent_at = monotonic()
    port = status = words = ""
    rpc = call(b"echo", timeout=timeout, metadata=metadata)
    try:
        await rpc
        status = "OK"
    except grpc.aio.AioRpcError as error:
        status, words = error.code().name, error.details() or ""
    except BaseException as error:
        status, words = type(error).__name__, str(error)
    if status != "CancelledError":
        trailers = dict(await rpc.trailing_metadata() or ())
        port = str(trailers.get(TASK_KEY, ""))
    took = monotonic() - sent_at
    tally.append(Ended(sent_at, took, status, words, port))


async def drive(
    channel: grpc.aio.Channel,
    rate: float,
    seconds: float,
    timeout: float | None = 1.0,
    method: str = METHOD,
    metadata: Callable[[], Any] = tuple,
) -> Tally:
    """An open load: calls are sent when they are due, whatever became of the others.

    Returns when the last one has ended.
    """
    tally = Tally()
    await steady(
        rate, seconds, lambda: send_one(channel, tally, timeout, method, metadata())
    )
    return tally


def states(channel: lbclient.Channel) -> str:
    """What `statistics()` says of the backends, one after the other."""
    backends = channel.statistics().backends
    return "; ".join(f"{b.address}: {b.state}: {b.reason}" for b in backends)
