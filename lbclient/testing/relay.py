"""A TCP relay before a server of a test: it cuts connections, or goes silent.

A server that shares its process with the test can be neither killed nor frozen. Behind
a relay it looks so: connections are reset, or carry no bytes.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

HOST = "127.0.0.1"
CHUNK = 65536  # bytes that are read at once
TURNS = 5  # of the loop, in which asyncio closes what was aborted

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Relay:
    """Passes bytes between any number of clients and one server, on 127.0.0.1."""

    def __init__(self) -> None:
        self.port = 0  # where it listens: any free port first, then always this one
        self._listener: socket.socket | None = None
        self._thawed = asyncio.Event()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._accepted: dict[socket.socket, None] = {}  # that have no transport yet
        self._writers: dict[asyncio.StreamWriter, None] = {}  # that are not closed

    async def open(self, server_port: int) -> None:
        # Neither by asyncio's own server nor by `sock_accept`: both may lose a
        # connection that is accepted while they are closed or cancelled.
        self._listener = socket.create_server((HOST, self.port))
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._thawed.set()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._listener, self._accept, self._listener, server_port)

    def freeze(self) -> None:
        """Nothing passes, in either direction, until `thaw`."""
        self._thawed.clear()

    def thaw(self) -> None:
        self._thawed.set()

    async def cut(self) -> None:
        """Resets all connections, and refuses new ones until `open`."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        for writer in self._writers:
            writer.transport.abort()
        self._writers = {}
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for accepted in self._accepted:
            accepted.close()
        self._accepted.clear()
        for _ in range(TURNS):
            await asyncio.sleep(0)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def _accept(self, listener: socket.socket, server_port: int) -> None:
        with suppress(OSError):  # the client has gone meanwhile
            accepted, _ = listener.accept()
            accepted.setblocking(False)
            self._accepted[accepted] = None
            self._start(self._carry(accepted, server_port))

    async def _carry(self, accepted: socket.socket, server_port: int) -> None:
        with suppress(OSError):  # either side has gone, and now the other one
            await self._thawed.wait()
            del self._accepted[accepted]
            async with self._connected(sock=accepted) as (from_client, to_client):
                place = {"host": HOST, "port": server_port}
                async with self._connected(**place) as (from_server, to_server):
                    await asyncio.gather(
                        self._pump(from_client, to_server),
                        self._pump(from_server, to_client),
                    )

    @asynccontextmanager
    async def _connected(self, **where: Any) -> AsyncIterator[Streams]:
        try:
            streams = await asyncio.open_connection(**where)
        except BaseException:
            if "sock" in where:
                where["sock"].close()
            raise
        self._forget_closed()
        self._writers[streams[1]] = None
        try:
            yield streams
        finally:
            # It stays open until its peer has read all, or `cut` aborts it.
            streams[1].transport.close()
            self._forget_closed()

    def _forget_closed(self) -> None:
        for writer in list(self._writers):
            if writer.is_closing() and not writer.transport.get_write_buffer_size():
                del self._writers[writer]

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        while data := await source.read(CHUNK):
            await self._thawed.wait()
            sink.write(data)
            await sink.drain()
        raise ConnectionResetError("one side has closed")
