"""A task of `lbclient serve` for tests: its processes, its words, its signals."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
PROGRAM = "tests.wire.workers_program"


class Task:
    """A supervisor and its workers. `log` has the lines of its stderr so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.log: list[str] = []
        self.said: list[str] = []
        self.reading = asyncio.gather(
            self._read(process.stderr, self.log), self._read(process.stdout, self.said)
        )

    @staticmethod
    async def _read(stream: asyncio.StreamReader | None, lines: list[str]) -> None:
        assert stream is not None
        async for line in stream:
            lines.append(line.decode().rstrip())  # noqa: PERF401 - as they come

    async def address(self) -> str:
        await eventually(lambda: self.said or self.process.returncode is not None)
        assert self.said, self.log
        port = json.loads(self.said[0])["listening"].rpartition(":")[2]
        return f"127.0.0.1:{port}"

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def found(self, pattern: str) -> list[str]:
        return re.findall(pattern, "\n".join(self.log))

    def pids(self) -> list[int]:
        """Of all workers that have been ready, in order."""
        return [int(pid) for pid in self.found(r"process (\d+)[^>]*> is ready")]

    def own_ports(self) -> list[int]:
        return [int(port) for port in self.found(r"on port (\d+)> is ready")]

    async def ended(self) -> int:
        await eventually(lambda: self.process.returncode is not None, lambda: self.log)
        await self.reading
        status = self.process.returncode
        assert status is not None
        return status


@asynccontextmanager
async def serving(
    function: str = "make_server",
    *options: str,
    workers: int = 2,
    within: Sequence[str] = (),
    **environment: str,
) -> AsyncIterator[Task]:
    """Ends with all of its processes, whatever a test has done to it. `within` is the
    command that runs it."""
    process = await asyncio.create_subprocess_exec(
        *within,
        sys.executable,
        "-m",
        "lbclient",
        "serve",
        function if ":" in function else f"{PROGRAM}:{function}",
        f"--workers={workers}",
        "--json",
        *options,
        env={**os.environ, **environment},
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    task = Task(process)
    try:
        yield task
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        await task.reading


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@asynccontextmanager
async def mapped(address: str) -> AsyncIterator[str]:
    """Another address for the same port, and for no other, as a port mapping has."""
    host, _, port = address.partition(":")
    pumps: list[asyncio.Task[None]] = []
    writers: list[asyncio.StreamWriter] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, int(port))
        writers.extend((writer, back))
        pumps.append(asyncio.create_task(pump(reader, back)))
        pumps.append(asyncio.create_task(pump(there, writer)))

    server = await asyncio.start_server(take, "127.0.0.2", 0)
    try:
        yield f"127.0.0.2:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.gather(*pumps, return_exceptions=True)


async def command(*words: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "lbclient", *words],
        capture_output=True,
        text=True,
        timeout=60,
    )
