"""A server in which streams of health or load take what calls need.

Its kind is "aio", "ours" or "sync". `size` is MAX_CONCURRENT_STREAMS, or of a sync
server the number of threads. `offers` is "plain", "health" (grpc.health.v1, whose Watch
holds its stream open), "orca", "both", or "late": a Watch of a sync server that looks
once a second whether its client left.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

import lbclient
from benchmarks.faults.task import METHOD
from benchmarks.harness import servers
from benchmarks.harness.processes import orders, say
from benchmarks.harness.servers import handlers
from lbclient import wire
from lbclient.v1 import compat_pb2, load_pb2

SERVING = compat_pb2.ServingReply(
    status=compat_pb2.ServingReply.SERVING
).SerializeToString()
LOAD = load_pb2.LoadReport(application_utilization=0.5).SerializeToString()
CHECK = "/grpc.health.v1.Health/Check"
LATENCY = 0.01  # seconds; of a call


async def echo(request: bytes, _: Any) -> bytes:
    await asyncio.sleep(LATENCY)
    return request


async def check(_request: bytes, _context: Any) -> bytes:
    return SERVING


async def watch(_request: bytes, _context: Any) -> AsyncIterator[bytes]:
    yield SERVING
    await asyncio.Event().wait()


async def report(_request: bytes, _context: Any) -> AsyncIterator[bytes]:
    while True:
        yield LOAD
        await asyncio.sleep(1.0)


def echo_in_thread(request: bytes, _: Any) -> bytes:
    time.sleep(LATENCY)
    return request


def check_in_thread(_request: bytes, _context: Any) -> bytes:
    return SERVING


def watch_in_thread(_request: bytes, context: Any) -> Iterator[bytes]:
    """As grpcio-health-checking's, which holds its thread until the client leaves."""
    left = threading.Event()
    context.add_callback(left.set)
    yield SERVING
    left.wait()


def watch_lately(_request: bytes, context: Any) -> Iterator[bytes]:
    yield SERVING
    while context.is_active():
        time.sleep(1.0)


def methods(kind: str, offers: str) -> dict[str, Any]:
    """By path."""
    stream: Any = grpc.unary_stream_rpc_method_handler
    if kind == "sync":
        watching = watch_lately if offers == "late" else watch_in_thread
        return {
            METHOD: echo_in_thread,
            CHECK: check_in_thread,
            wire.SERVING_WATCH_METHOD: stream(watching),
        }
    made: dict[str, Any] = {METHOD: echo}
    if offers in ("health", "both"):
        made |= {CHECK: check, wire.SERVING_WATCH_METHOD: stream(watch)}
    if offers in ("orca", "both"):
        made[wire.ORCA_METHOD] = stream(report)
    return made


async def serve(kind: str, size: int, offers: str) -> None:
    """Says its port."""
    if kind == "sync":
        made = handlers(methods(kind, offers))
        sync = grpc.server(ThreadPoolExecutor(size), handlers=list(made))
        say(sync.add_insecure_port("127.0.0.1:0"))
        sync.start()
        async for _ in orders():
            pass
    make: Any = lbclient.server if kind == "ours" else grpc.aio.server
    server = make(options=[("grpc.max_concurrent_streams", size)])
    await servers.serve(server, methods(kind, offers))
