"""Reads grpcio's wake-ups of the event loop together, where it reads one a turn.

A thread of grpcio takes events from gRPC's core, and for each writes one byte to a
socket. In each turn the loop reads one byte, and handles all events that are there.
So where several events come in a turn, bytes are left, and each costs a turn of the
loop in which nothing has come. When the socket's buffer is full, on Linux from 278
bytes on, the thread waits for room. The loop then gets one event in each turn, and the
events of requests that have begun wait behind hundreds of new requests.

All event loops of a process read the same socket. A byte that one of them takes is no
more there for another one, which then handles nothing. So while there are several loops
each leaves the bytes to grpcio's own reads.
"""

import asyncio
import gc
import os
from collections.abc import Callable, Iterable
from functools import partial
from sys import byteorder

from lbclient.grpc_seam.private import find

try:
    from fcntl import ioctl
    from termios import FIONREAD
except ImportError:  # not on Windows
    ioctl = None  # type: ignore[assignment]

CLOSED = "Event loop is closed"  # as asyncio and uvloop say it
_NONE = bytes(4)  # an int, in whose place FIONREAD returns the bytes unread


class Wakeups:
    """Takes the place of grpcio's reader of one socket. Owned by an event loop, which
    drops it as it would have dropped that: `remove_reader` goes by the socket."""

    def __init__(
        self, socket: int, handle: Callable[[], object], is_alone: Callable[[], bool]
    ) -> None:
        """`is_alone`: no other event loop reads the socket."""
        self._socket = socket
        self._handle = handle
        self.is_alone = is_alone

    def __call__(self) -> None:
        unread = int.from_bytes(ioctl(self._socket, FIONREAD, _NONE), byteorder)
        try:  # `suppress` would take 0.5 us, each time
            self._handle()  # reads one byte, and handles all events that are there
            # Whoever writes a byte does so after its event is there, so those of all
            # these bytes were handled. Where one of them raised, the bytes are left for
            # the events behind it.
            if unread > 1 and self.is_alone():
                os.read(self._socket, unread - 1)
        except BlockingIOError:  # another loop was faster, and handles it
            pass
        except RuntimeError as error:
            # Of a channel that was left open in another loop: nobody waits for it.
            if str(error) != CLOSED:
                raise

    def __repr__(self) -> str:
        return f"<reads socket {self._socket} for {self._handle!r}>"


def read_together(
    loop: asyncio.AbstractEventLoop,
    readers: Iterable[tuple[int, Callable[..., object]]],
) -> Wakeups | None:
    """Reads grpcio's wake-ups of this loop together, from now on. None: it can not.

    To be called in the loop, once grpcio is in use. `readers` are those of the loop.
    """
    kind = find("grpc._cython.cygrpc:PollerCompletionQueue")
    if kind is None or ioctl is None:
        return None
    for socket, reader in readers:
        if isinstance(reader, Wakeups):
            return reader
        method = reader.func if isinstance(reader, partial) else reader
        queue = getattr(method, "__self__", None)
        if isinstance(queue, kind):
            wakeups = Wakeups(socket, reader, partial(_has_one_loop, queue))
            loop.add_reader(socket, wakeups)
            return wakeups
    return None


def _has_one_loop(queue: object) -> bool:
    """Whether one event loop alone handles the queue's events; False if nobody knows.

    grpcio has no name for its loops, but the garbage collector finds them.
    """
    for found in gc.get_referents(queue):
        if isinstance(found, dict):
            return sum(not loop.is_closed() for loop in tuple(found)) == 1
    return False
