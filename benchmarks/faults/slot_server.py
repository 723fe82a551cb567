"""A server in which streams of health or load take what calls need.

    python -m benchmarks.faults.slot_server aio|ours|sync SIZE OFFERS PORT

SIZE is MAX_CONCURRENT_STREAMS, or of a sync server the number of threads. OFFERS is
"plain", "health" (grpc.health.v1, whose Watch holds its stream open), "orca", "both",
or "late": a Watch of a sync server that looks once a second whether its client left.
Prints "ready". Ends when its standard input does.
"""

import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

import lbclient
from benchmarks.faults.task import SERVICE
from lbclient.v1 import compat_pb2, load_pb2

SERVING = compat_pb2.ServingReply(
    status=compat_pb2.ServingReply.SERVING
).SerializeToString()
LOAD = load_pb2.LoadReport(application_utilization=0.5).SerializeToString()
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


def services(kind: str, offers: str) -> list[grpc.GenericRpcHandler]:
    unary: Any = grpc.unary_unary_rpc_method_handler
    stream: Any = grpc.unary_stream_rpc_method_handler
    made: dict[str, dict[str, Any]] = {SERVICE: {"Echo": unary(echo)}}
    if kind == "sync":
        watching = watch_lately if offers == "late" else watch_in_thread
        made[SERVICE] = {"Echo": unary(echo_in_thread)}
        made["grpc.health.v1.Health"] = {
            "Check": unary(check_in_thread),
            "Watch": stream(watching),
        }
    elif offers in ("health", "both"):
        made["grpc.health.v1.Health"] = {"Check": unary(check), "Watch": stream(watch)}
    if offers in ("orca", "both"):
        orca = {"StreamCoreMetrics": stream(report)}
        made["xds.service.orca.v3.OpenRcaService"] = orca
    return [
        grpc.method_handlers_generic_handler(name, handlers)
        for name, handlers in made.items()
    ]


def ends() -> None:
    sys.stdin.read()
    os._exit(0)


async def main(kind: str, size: str, offers: str, port: str) -> None:
    handlers = services(kind, offers)
    if kind == "sync":
        sync = grpc.server(ThreadPoolExecutor(int(size)), handlers=handlers)
        sync.add_insecure_port(f"127.0.0.1:{port}")
        sync.start()
    else:
        make: Any = lbclient.server if kind == "ours" else grpc.aio.server
        options = [("grpc.max_concurrent_streams", int(size))]
        server = make(handlers=handlers, options=options)
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
    print("ready", flush=True)
    threading.Thread(target=ends, daemon=True).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
