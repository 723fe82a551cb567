"""A server of bare HTTP/2 frames (RFC 9113) that takes no call, in a way of choice.

It says that it serves, as a server of ours does.
"""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lbclient import wire
from lbclient.v1 import health_pb2, load_pb2

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
ACK = END_STREAM = 1
END_HEADERS = 4
REFUSED_STREAM, CANCEL = 7, 8
PREFACE = 24


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    size = struct.pack(">I", len(payload))[1:]
    return size + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header field that is not indexed (RFC 7541, section 6.2.2)."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


ANSWER = b"\x88" + literal(b"content-type", b"application/grpc")  # :status 200
# As gRPC's core ends a call that it has no room for.
CANCELLED = literal(b"grpc-status", b"1") + literal(b"grpc-message", b"CANCELLED")
# As a Go service with statuses of its own does.
OWN = literal(b"grpc-status", b"1001") + literal(b"grpc-message", b"out of stock")
SERVING = health_pb2.HealthReport(state=load_pb2.SERVING, load=load_pb2.LoadReport())
WATCH = wire.WATCH_METHOD.encode()


def message(content: bytes) -> bytes:
    return b"\0" + struct.pack(">I", len(content)) + content


class Refuser:
    """Refuses streams ("refuse"), when their client is done ("late"), or shuts the
    connection to them ("goaway"); or cancels them ("cancel"), or resets ("reset"); or
    ends them with a status of its own ("own"), and health streams too ("all own")."""

    def __init__(self, how: str) -> None:
        self.taken = 0  # frames with a part of a request, of those refused late
        self.refused = 0
        self.writers: list[asyncio.StreamWriter] = []
        self._how = how
        self.address = ""

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.writers.append(writer)
        await reader.readexactly(PREFACE)
        writer.write(frame(SETTINGS, 0, 0))
        calls = set()
        try:
            while True:
                head = await reader.readexactly(9)
                size = int.from_bytes(head[:3], "big")
                kind, flags = head[3], head[4]
                stream = int.from_bytes(head[5:], "big")
                payload = await reader.readexactly(size)
                if kind in (SETTINGS, PING) and not flags & ACK:
                    answer = payload if kind == PING else b""
                    writer.write(frame(kind, ACK, 0, answer))
                elif kind == HEADERS:
                    # gRPC's own encoder writes it out.
                    if WATCH in payload and self._how != "all own":
                        writer.write(frame(HEADERS, END_HEADERS, stream, ANSWER))
                        report = message(SERVING.SerializeToString())
                        writer.write(frame(DATA, 0, stream, report))
                    elif self._how == "late":
                        calls.add(stream)
                    else:
                        writer.write(self._refusal(stream))
                elif kind == DATA and stream in calls:
                    self.taken += size > 0
                    if flags & END_STREAM:
                        writer.write(self._refusal(stream))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _refusal(self, stream: int) -> bytes:
        self.refused += 1
        if self._how == "goaway":
            return frame(GOAWAY, 0, 0, struct.pack(">II", max(0, stream - 2), 0))
        if "own" in self._how:
            return frame(HEADERS, END_HEADERS | END_STREAM, stream, ANSWER + OWN)
        if self._how == "cancel":
            return frame(HEADERS, END_HEADERS | END_STREAM, stream, ANSWER + CANCELLED)
        reason = CANCEL if self._how == "reset" else REFUSED_STREAM
        return frame(RST_STREAM, 0, stream, struct.pack(">I", reason))


@asynccontextmanager
async def refuser(how: str) -> AsyncIterator[Refuser]:
    """A started one, with its address."""
    it = Refuser(how)
    server = await asyncio.start_server(it._serve, "127.0.0.1", 0)
    it.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield it
    finally:
        server.close()
        for writer in it.writers:
            writer.close()
        await server.wait_closed()
