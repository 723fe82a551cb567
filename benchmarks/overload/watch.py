"""A server's process, and what the kernel and the server itself say of it."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple


class Reading(NamedTuple):
    """Seconds of CPU and counts, since the process began."""

    at: float
    ran: float  # by the loop's thread
    waited: float  # by it, for a processor
    others: float  # ran, by all other threads
    refused: int

    def rates(self, before: "Reading") -> "Rates":
        """By the second since then."""
        seconds = self.at - before.at
        pairs = zip(self[1:], before[1:], strict=True)
        return Rates(*((now - then) / seconds for now, then in pairs))


class Rates(NamedTuple):
    """By the second."""

    ran: float
    waited: float
    others: float
    refused: float


class Server:
    def __init__(self, process: Any, port: int) -> None:
        self._process = process
        self.port = port
        self.pid = process.pid

    async def read(self) -> Reading:
        self._process.stdin.write(b"\n")
        refused = int(await asyncio.wait_for(self._process.stdout.readline(), 30))
        threads = schedstat(self.pid)
        ran, waited = threads.pop(self.pid)
        others = sum(ran for ran, _ in threads.values())
        return Reading(time.monotonic(), ran, waited, others, refused)

    @asynccontextmanager
    async def memory(self) -> AsyncIterator[list[int]]:
        """Bytes that the process has in memory: now, and every half a second."""
        statm = Path(f"/proc/{self.pid}/statm")

        def resident() -> int:
            return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        seen = [resident()]

        async def watch() -> None:
            while True:
                await asyncio.sleep(0.5)
                seen.append(resident())

        watching = asyncio.create_task(watch())
        try:
            yield seen
        finally:
            watching.cancel()


def schedstat(pid: int) -> dict[int, tuple[float, float]]:
    """Seconds that each thread ran, and waited for a processor."""
    times = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it has just ended
            ran, waited, _ = (task / "schedstat").read_text().split()
            times[int(task.name)] = int(ran) * 1e-9, int(waited) * 1e-9
    return times


@asynccontextmanager
async def serving(
    kind: str, handler: str, cgroup: Path | None = None
) -> AsyncIterator[Server]:
    """A server of the kind, see `serve`; its process ends with the context."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.overload.serve", kind, handler),
        *([] if cgroup is None else [str(cgroup)]),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), 60)
        if not line:
            raise RuntimeError(f"the server of {kind} did not begin")
        yield Server(process, int(line))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
