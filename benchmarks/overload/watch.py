"""A server's process, and what the kernel and the server itself say of it."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness.linux import resident, schedstat
from benchmarks.harness.processes import Process, running
from benchmarks.overload.serve import serve


class Reading(NamedTuple):
    """Seconds of CPU and counts, since the process began."""

    at: float
    ran: float  # by the loop's thread
    waited: float  # by it, for a processor
    others: float  # ran, by all other threads
    refused: int  # with an answer
    unanswered: int
    each: float  # of what the loop's thread ran, for one of those, of late

    def rates(self, before: "Reading") -> "Rates":
        """By the second since then."""
        seconds = self.at - before.at
        pairs = zip(self[1:-1], before[1:-1], strict=True)
        ran, waited, others, refused, unanswered = (
            (now - then) / seconds for now, then in pairs
        )
        dropping = unanswered * self.each
        return Rates(ran, waited, others, refused, unanswered, dropping)


class Rates(NamedTuple):
    """By the second."""

    ran: float
    waited: float
    others: float
    refused: float
    unanswered: float
    dropping: float


class Server:
    def __init__(self, process: Process, port: int) -> None:
        self._process = process
        self.port = port
        self.pid = process.pid

    async def read(self) -> Reading:
        counts = await self._process.ask()
        threads = schedstat(self.pid)
        ran, waited = threads.pop(self.pid)
        others = sum(ran for ran, _ in threads.values())
        return Reading(time.monotonic(), ran, waited, others, *counts)

    @asynccontextmanager
    async def memory(self) -> AsyncIterator[list[int]]:
        """Bytes that the process has in memory: now, and every half a second."""
        seen = [resident(self.pid)]

        async def watch() -> None:
            while True:
                await asyncio.sleep(0.5)
                seen.append(resident(self.pid))

        watching = asyncio.create_task(watch())
        try:
            yield seen
        finally:
            watching.cancel()


@asynccontextmanager
async def serving(
    kind: str, handler: str, cgroup: Path | None = None
) -> AsyncIterator[Server]:
    """A server of the kind, see `serve`; its process ends with the context."""
    async with running(serve, kind, handler, str(cgroup or "")) as process:
        yield Server(process, await process.hear())
