"""One task of a fleet that is being rolled out: the Search service in a process.

It is `ours`; `tls`, with `server.key` and `server.pem` of a folder; or `standard`,
which knows grpc.health.v1 and nothing of lbclient. A query's text is the time that its
answer takes, and every answer is the process id. It leaves in order at SIGTERM, and at
once when whoever started it is gone.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc

import lbclient
from lbclient import wire
from lbclient.v1 import compat_pb2

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))

import search_pb2 as pb
import search_pb2_grpc as pb_grpc

PAGES = 4  # of a stream, spread over its time, and the first at once
STANDARD_WAIT = 2.5  # seconds; for those who watch or ask to go elsewhere
STANDARD_GRACE = 0.5  # seconds; `stop` waits as long, as watching is a call, too

# A server that shares its port unseen with its predecessor would get calls too early.
OPTIONS = [("grpc.so_reuseport", 0)]


class Search(pb_grpc.SearchServicer):
    async def Search(self, request: pb.Query, context: Any) -> pb.Answer:
        await asyncio.sleep(float(request.text or 0))
        return pb.Answer(text=str(os.getpid()))

    async def Pages(self, request: pb.Query, context: Any) -> AsyncIterator[pb.Answer]:
        for _ in range(PAGES):
            yield pb.Answer(text=str(os.getpid()))
            await asyncio.sleep(float(request.text) / PAGES)


class Health:
    """grpc.health.v1 for the server as a whole: its status now, then every change."""

    def __init__(self) -> None:
        self._status = compat_pb2.ServingReply.SERVING
        self._left = asyncio.Event()

    def leave(self) -> None:
        self._status = compat_pb2.ServingReply.NOT_SERVING
        self._left.set()

    async def _watch(self, request: bytes, context: Any) -> AsyncIterator[Any]:
        yield compat_pb2.ServingReply(status=self._status)
        await self._left.wait()
        yield compat_pb2.ServingReply(status=self._status)
        await asyncio.Event().wait()  # until the server stops

    async def _check(self, request: bytes, context: Any) -> Any:
        return compat_pb2.ServingReply(status=self._status)

    def handler(self) -> grpc.GenericRpcHandler:
        _, service, method = wire.SERVING_WATCH_METHOD.split("/")
        encode = compat_pb2.ServingReply.SerializeToString
        watch: grpc.RpcMethodHandler[Any, Any] = grpc.unary_stream_rpc_method_handler(
            self._watch, response_serializer=encode
        )
        check: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(
            self._check, response_serializer=encode
        )
        handlers = {method: watch, "Check": check}
        return grpc.method_handlers_generic_handler(service, handlers)


async def serve_standard(port: str) -> None:
    """As grpc.aio's users do it: not serving, a while for that to be heard, a stop."""
    server, health = grpc.aio.server(options=OPTIONS), Health()
    pb_grpc.add_SearchServicer_to_server(Search(), server)
    server.add_generic_rpc_handlers((health.handler(),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    await server.start()
    await told.wait()
    health.leave()
    await asyncio.sleep(STANDARD_WAIT)
    await server.stop(STANDARD_GRACE)


async def serve_ours(port: str, certificates: str = "") -> None:
    server = lbclient.server(options=OPTIONS)
    pb_grpc.add_SearchServicer_to_server(Search(), server)
    if certificates:
        folder = Path(certificates)
        pair = [(folder / f"server.{end}").read_bytes() for end in ("key", "pem")]
        credentials = grpc.ssl_server_credentials([(pair[0], pair[1])])
        server.add_secure_port(f"127.0.0.1:{port}", credentials)
    else:
        server.add_insecure_port(f"127.0.0.1:{port}")
    await lbclient.serve(server)


async def serve(parent: Connection, kind: str, *arguments: str) -> None:
    # Nothing is ever sent: it can be read when the other end is closed.
    asyncio.get_running_loop().add_reader(parent.fileno(), os._exit, 1)
    await (serve_standard if kind == "standard" else serve_ours)(*arguments)


def run(parent: Connection, kind: str, *arguments: str) -> None:
    asyncio.run(serve(parent, kind, *arguments))
