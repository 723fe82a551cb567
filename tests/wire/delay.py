"""A proxy that is far away: what passes it, by TCP or UDP, arrives some time later.

It stands on an address of loopback that no task listens on, with the port number of
its task for both: so whoever is told that number there finds the proxy again.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

FRONT, BACK = "127.0.0.2", "127.0.0.1"
CHUNK = 65536  # bytes that are read at once


class Delay:
    """Between any number of clients and the task on `port`; `delay` is each way's."""

    def __init__(self, port: int, delay: float) -> None:
        self.address = f"{FRONT}:{port}"
        self._port = port
        self._delay = delay
        self._loop = asyncio.get_running_loop()
        self._pumps: dict[asyncio.Task[Any], None] = {}
        self._writers: list[asyncio.StreamWriter] = []
        self._front = socket.socket(type=socket.SOCK_DGRAM)
        self._backs: dict[Any, socket.socket] = {}  # by the client that it is for

    async def __aenter__(self) -> "Delay":
        self._server = await asyncio.start_server(self._accept, FRONT, self._port)
        self._front.bind((FRONT, self._port))
        self._front.setblocking(False)
        self._loop.add_reader(self._front, self._from_client)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        for writer in self._writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
        for sock in (self._front, *self._backs.values()):
            self._loop.remove_reader(sock)
            sock.close()

    def _later(self, do: Callable[..., object], *arguments: Any) -> None:
        def try_to() -> None:
            with suppress(OSError):  # the other side is gone, or we are
                do(*arguments)

        self._loop.call_later(self._delay, try_to)

    def _accept(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        # Of a task that asyncio makes itself it complains when that is cancelled.
        self._pumps[self._loop.create_task(self._carry(reader, writer))] = None
        self._writers.append(writer)

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            there, back = await asyncio.open_connection(BACK, self._port)
        except OSError:
            writer.close()
            return
        self._writers.append(back)
        await asyncio.gather(self._pump(reader, back), self._pump(there, writer))

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        line: deque[bytes] = deque()

        def deliver() -> None:
            # Whichever timer is first: the bytes that came first go first.
            if data := line.popleft():
                sink.write(data)
            else:
                sink.close()

        data = b"none yet"
        while data:
            try:
                data = await source.read(CHUNK)
            except OSError:
                data = b""
            line.append(data)
            self._later(deliver)

    def _from_client(self) -> None:
        data, client = self._front.recvfrom(CHUNK)
        if client not in self._backs:
            back = self._backs[client] = socket.socket(type=socket.SOCK_DGRAM)
            back.setblocking(False)
            back.connect((BACK, self._port))
            self._loop.add_reader(back, self._from_task, back, client)
        self._later(self._backs[client].send, data)

    def _from_task(self, back: socket.socket, client: Any) -> None:
        with suppress(OSError):  # the task does not listen, or not any more
            self._later(self._front.sendto, back.recv(CHUNK), client)
