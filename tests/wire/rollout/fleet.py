"""Tasks in processes that come and go, and calls that go on meanwhile.

A process is forked from one that has imported everything: to import it anew takes a
third of a second of CPU, at which a fleet's restarts would spend most of their time.

The load is open: calls are sent when they are due, however slow or absent the answers
are, so a fleet that cannot serve shows as failures and not as fewer calls.
"""

import asyncio
import multiprocessing
from collections.abc import Awaitable, Callable, Sequence
from itertools import cycle
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any, NamedTuple

import grpc
import search_pb2 as pb
import search_pb2_grpc as pb_grpc

import lbclient
from tests.ports import HOST, free_ports
from tests.waiting import eventually
from tests.wire.rollout.task import run

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([run.__module__])
LOOKS = 6000  # a minute: many processes start and stop, on a machine that is busy
DEADLINE = 20.0  # seconds; for what is never answered
WORK = 0.02  # seconds for which a task has a call at least


class Task:
    """A place in the fleet; one process after the other fills it."""

    _ours: Connection  # once started: when it is closed, the process ends

    def __init__(self, port: int, kind: str, *arguments: str) -> None:
        self.port = port
        self.address = f"{HOST}:{port}"
        self.pids: list[int] = []
        self._arguments = (kind, str(port), *arguments)
        self._processes: list[Any] = []

    def start(self) -> None:
        theirs, self._ours = PROCESSES.Pipe(duplex=False)
        process = PROCESSES.Process(target=run, args=(theirs, *self._arguments))
        process.start()
        theirs.close()
        assert process.pid is not None
        self.pids.append(process.pid)
        self._processes.append(process)

    def terminate(self) -> None:
        self._processes[-1].terminate()

    def kill(self) -> None:
        """Returns when the process is dead and its sockets are closed."""
        self._processes[-1].kill()
        self._processes[-1].join()

    async def ended(self) -> int:
        process = self._processes[-1]
        await eventually(lambda: process.exitcode is not None, turns=LOOKS)
        return int(process.exitcode)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
            process.close()


class Fleet:
    """Leaving the context ends every process, whatever happened in it."""

    def __init__(self, size: int, kind: str = "ours", *arguments: str) -> None:
        self.tasks = [Task(port, kind, *arguments) for port in free_ports(size)]

    def target(self) -> str:
        return "ipv4:" + ",".join(task.address for task in self.tasks)

    def pids(self) -> set[int]:
        """Of all processes that there have been."""
        return {pid for task in self.tasks for pid in task.pids}

    async def __aenter__(self) -> "Fleet":
        for task in self.tasks:
            task.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self.tasks:
            task.close()


def are_ready(channels: Sequence[lbclient.Channel]) -> bool:
    """Whether every channel sees every backend ready; makes new ones connect."""
    return all(
        channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY
        and {backend.state for backend in channel.statistics().backends} == {"ready"}
        for channel in channels
    )


class Failure(NamedTuple):
    backend: str | None
    why: str


def ask(stub: Any) -> Any:
    return stub.Search(pb.Query(text=str(WORK)), timeout=DEADLINE)


async def answer(call: Any, served: set[int]) -> None:
    served.add(int((await call).text))


class Load:
    """So many calls a second, on the channels in turn, and what became of them.

    `make` begins a call. `follow` sees it to its end; who serves it, a process id,
    it adds to `served` as soon as it knows.
    """

    def __init__(
        self,
        channels: Sequence[lbclient.Channel],
        rate: float,
        make: Callable[[Any], Any] = ask,
        follow: Callable[[Any, set[int]], Awaitable[None]] = answer,
    ) -> None:
        self.begun = 0
        self.answered = 0
        self.served: set[int] = set()
        self.failures: list[Failure] = []
        self._stubs = cycle([pb_grpc.SearchStub(channel) for channel in channels])
        self._rate = rate
        self._make = make
        self._follow = follow
        self._is_over = False

    async def run(self) -> None:
        """Until `end`, and then until the last call is done."""
        began_at = monotonic()
        async with asyncio.TaskGroup() as group:
            while not self._is_over:
                while self.begun < (monotonic() - began_at) * self._rate:
                    self.begun += 1
                    group.create_task(self._call())
                await asyncio.sleep(1 / self._rate)

    def end(self) -> None:
        self._is_over = True

    async def _call(self) -> None:
        call = self._make(next(self._stubs))
        try:
            await self._follow(call, self.served)
            self.answered += 1
        except grpc.aio.AioRpcError as error:
            why = f"{error.code().name}: {error.details()}"
            self.failures.append(Failure(lbclient.info(call).backend, why))
