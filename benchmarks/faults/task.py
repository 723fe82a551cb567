"""One backend task in a process of its own, which does as it is told.

Its kind is "ours", "stock" or "404". Each order is a dictionary, the new behaviour:
`latency` in seconds, `burn`, CPU seconds of a call, then `status`, the name of the
status with which all calls end ("OK" is the default), and `share`, of the calls, that
end so; `registered`, whether it has the service. It ends in order at SIGTERM. With
several ports it is a backend on each, and they all go at once.

404 is no gRPC server: it answers every request of HTTP/2 with that, and nothing else.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from random import Random
from time import thread_time
from typing import Any

import grpc

import lbclient
from benchmarks.harness.processes import orders, say
from benchmarks.harness.servers import handlers

SERVICE = "lbclient.faults.Echo"
METHOD = f"/{SERVICE}/Echo"  # what was sent comes back
STREAM = f"/{SERVICE}/Stream"  # of answers, one each `latency`, for ever
TASK_KEY = "task"  # a trailer with the port of who answered

OPTIONS = [("grpc.so_reuseport", 0)]


class Echo:
    def __init__(self, port: str) -> None:
        self.port = port
        self.behaviour: dict[str, Any] = {}
        self._rng = Random(port)

    async def echo(self, request: bytes, context: Any) -> bytes:
        now = self.behaviour
        if latency := now.get("latency", 0.0):
            await asyncio.sleep(latency)
        until = thread_time() + now.get("burn", 0.0)
        while thread_time() < until:
            pass
        trailers = ((TASK_KEY, self.port),)
        status = now.get("status", "OK")
        if status != "OK" and self._rng.random() < now.get("share", 1.0):
            await context.abort(grpc.StatusCode[status], "as it was told", trailers)
        context.set_trailing_metadata(trailers)
        return request

    async def stream(self, request: bytes, _: Any) -> AsyncIterator[bytes]:
        while True:
            yield request
            await asyncio.sleep(self.behaviour.get("latency", 0.1))

    def handler(self) -> grpc.GenericRpcHandler:
        return Registered(self._handler(), self)

    def _handler(self) -> grpc.GenericRpcHandler:
        stream: grpc.RpcMethodHandler[Any, Any]
        stream = grpc.unary_stream_rpc_method_handler(self.stream)
        [service] = handlers({METHOD: self.echo, STREAM: stream})
        return service


class Registered(grpc.GenericRpcHandler):
    """A service that is there only while its behaviour says so."""

    def __init__(self, generic: grpc.GenericRpcHandler, echo: Echo) -> None:
        self._generic = generic
        self._echo = echo

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        if not self._echo.behaviour.get("registered", True):
            return None
        return self._generic.service(handler_call_details)


HEADERS, SETTINGS, PING = 1, 4, 6  # types of frames, RFC 9113
ACK, END = 0x1, 0x5  # END_STREAM and END_HEADERS
NOT_FOUND = b"\x8d"  # `:status: 404`, number 13 of HPACK's table


async def answer_404(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    def send(kind: int, flags: int, stream: int, payload: bytes = b"") -> None:
        head = len(payload).to_bytes(3, "big") + bytes((kind, flags))
        writer.write(head + stream.to_bytes(4, "big") + payload)

    with suppress(OSError, asyncio.IncompleteReadError):
        await reader.readexactly(24)  # the client's preface
        send(SETTINGS, 0, 0)
        while True:
            head = await reader.readexactly(9)
            payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
            if kind == HEADERS:
                send(HEADERS, END, stream, NOT_FOUND)
            elif kind in (SETTINGS, PING) and not flags & ACK:
                send(kind, ACK, 0, payload if kind == PING else b"")


async def obey(echo: Echo) -> None:
    async for [echo.behaviour] in orders():
        say("done")


async def serve(kind: str, port: str, host: str) -> None:
    """On several ports, with commas between them."""
    echo = Echo(port)
    if kind == "404":
        server_of_404 = await asyncio.start_server(answer_404, host, int(port))
        say("ready")
        await obey(echo)
        server_of_404.close()
    is_ours = kind == "ours"
    server: Any = (lbclient.server if is_ours else grpc.aio.server)(options=OPTIONS)
    server.add_generic_rpc_handlers((echo.handler(),))
    for each in port.split(","):
        server.add_insecure_port(f"{host}:{each}")
    obeying = asyncio.create_task(obey(echo))
    say("ready")
    if is_ours:
        await lbclient.serve(server)
    else:
        told = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
        await server.start()
        await told.wait()
        await server.stop(10)
    obeying.cancel()
    os._exit(0)  # a thread waits for standard input
