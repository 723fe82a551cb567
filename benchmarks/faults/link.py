"""A TCP proxy whose connections can stop without a word, as behind a lost route.

It stands in front of one task, in the event loop of its user.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from benchmarks.faults.fleet import HOST, Addressed

CHUNK = 65536  # bytes that are read at once


class Link:
    """`dials` counts its connections. Those of a link that `is_mute` bring what the
    server says first, its SETTINGS, and carry nothing in either direction then."""

    def __init__(self, task: Addressed, is_mute: bool = False) -> None:
        self.is_mute = is_mute
        self.dials = 0
        self._back = task.address.rpartition(":")
        self._flows: list[asyncio.Event] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, HOST, 0)
        port = self._server.sockets[0].getsockname()[1]
        self.address = f"{HOST}:{port}"

    def stall(self) -> None:
        """The connections that there are carry nothing from now on; new ones do."""
        for flow in self._flows:
            flow.clear()

    def resume(self) -> None:
        for flow in self._flows:
            flow.set()

    def _accept(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.dials += 1
        self._writers.append(writer)
        self._run(self._carry(reader, writer))

    def _run(self, coroutine: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        host, _, port = self._back
        try:
            there, back = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        self._writers.append(back)
        flow = asyncio.Event()
        self._flows.append(flow)
        if self.is_mute:
            writer.write(await there.read(CHUNK))  # SETTINGS
        else:
            flow.set()
        self._run(_pump(reader, back, flow))
        self._run(_pump(there, writer, flow))

    async def close(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def _pump(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, flow: asyncio.Event
) -> None:
    with suppress(OSError):
        await flow.wait()
        while data := await source.read(CHUNK):
            await flow.wait()
            sink.write(data)
            await sink.drain()
    sink.close()


@asynccontextmanager
async def links(tasks: Iterable[Addressed]) -> AsyncIterator[list[Link]]:
    """One in front of each task."""
    made = [Link(task) for task in tasks]
    async with AsyncExitStack() as stack:
        for link in made:
            await link.start()
            stack.push_async_callback(link.close)
        yield made
