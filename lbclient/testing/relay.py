"""A TCP relay before a server of a test: it cuts connections, or goes silent.

A server that shares its process with the test can be neither killed nor frozen. Behind
a relay it looks so: connections are reset, or carry no bytes.
"""

import asyncio

HOST = "127.0.0.1"
CHUNK = 65536  # bytes that are read at once

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Relay:
    """Between any number of clients and one server, both on 127.0.0.1."""

    def __init__(self) -> None:
        self.port = 0  # where it listens: any free port first, then always this one
        self._listener: asyncio.Server | None = None
        self._thawed = asyncio.Event()
        self._connections: dict[asyncio.Task[None], None] = {}
        self._writers: dict[asyncio.StreamWriter, None] = {}

    async def open(self, server_port: int) -> None:
        loop = asyncio.get_running_loop()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if self._listener is None:  # cut since it was accepted
                writer.transport.abort()
                return
            self._writers[writer] = None
            # asyncio complains of a task that it makes itself when that is cancelled.
            task = loop.create_task(self._carry((reader, writer), server_port))
            self._connections[task] = None
            task.add_done_callback(self._connections.pop)

        self._thawed.set()
        self._listener = await asyncio.start_server(accept, HOST, self.port)
        self.port = self._listener.sockets[0].getsockname()[1]

    def freeze(self) -> None:
        """Nothing passes, in either direction, until `thaw`."""
        self._thawed.clear()

    def thaw(self) -> None:
        self._thawed.set()

    async def cut(self) -> None:
        """Resets all connections, and refuses new ones until `open`."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        writers, self._writers = self._writers, {}
        for writer in writers:
            writer.transport.abort()
        connections = list(self._connections)
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await asyncio.sleep(0)  # in which asyncio closes the sockets

    async def _carry(self, client: Streams, server_port: int) -> None:
        try:
            await self._thawed.wait()
            server = await asyncio.open_connection(HOST, server_port)
            self._writers[server[1]] = None
            try:
                await asyncio.gather(
                    self._pump(client[0], server[1]), self._pump(server[0], client[1])
                )
            finally:
                self._drop(server[1])
        except OSError:
            pass  # either side has gone, and now the other one
        finally:
            self._drop(client[1])

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        while data := await source.read(CHUNK):
            await self._thawed.wait()
            sink.write(data)
            await sink.drain()
        raise ConnectionResetError("one side has closed")

    def _drop(self, writer: asyncio.StreamWriter) -> None:
        self._writers.pop(writer, None)
        writer.transport.close()
