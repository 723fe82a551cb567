"""Whole messages between two processes, without ever waiting for the other one.

A frozen process reads nothing. What it has no room for is dropped, so nobody else
freezes with it. What that costs is for those who send it: see `messages`.
"""

import asyncio
import pickle
import select
import socket
from collections.abc import Callable

LARGEST = 1 << 18  # bytes of a message; one with 64 ports takes some 300


class Pipe:
    """One end of a pair of sockets. `dropped` counts messages without room."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self.dropped = 0
        self._end = end
        self._loop: asyncio.AbstractEventLoop | None = None

    def send(self, message: object) -> bool:
        """Whether the other one has room for it, and is there."""
        try:
            self._end.send(pickle.dumps(message))
        except OSError:
            self.dropped += 1
            return False
        return True

    def follow(
        self, take: Callable[[object], None], closed: Callable[[], None]
    ) -> None:
        """Hands on each message, and that the other end is closed, on this loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._end, self._read, take, closed)

    def _read(self, take: Callable[[object], None], closed: Callable[[], None]) -> None:
        if not self.read_now(take) and self._end.fileno() < 0:
            closed()

    def read_now(self, take: Callable[[object], None]) -> bool:
        """Hands on one message; False if there is none. Closes after the last one."""
        try:
            data = self._end.recv(LARGEST)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if data:
            take(pickle.loads(data))
        else:
            self.close()
        return bool(data)

    def close(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._end)
            self._loop = None
        self._end.close()

    def __repr__(self) -> str:
        return f"<pipe, {self.dropped} messages dropped>"


def wait_until_closed(end: socket.socket) -> None:
    """Returns once nobody has the other end. It reads nothing, and may do so in any
    thread, with a descriptor of its own."""
    hangs_up = select.poll()
    hangs_up.register(end, 0)
    hangs_up.poll()


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
