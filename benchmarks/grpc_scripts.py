"""gRPC's own benchmarks, with lbclient's channel and server beside grpc.aio's.

    python -m benchmarks.grpc_scripts            about 2 minutes
    python -m benchmarks.grpc_scripts --quick    about 30 s

The script of grpc/grpc#43092: unary calls with 100 at a time, empty messages and no
serializers, client and server in a process each. The issue is about calls a second:
1.83.0 made 0.93 of what 1.75.0 did (pull request 43222, Python 3.11, 5,775 a second).

Scenarios of gRPC's QPS worker (tools/run_tests/performance) for asyncio: unary and
streaming ping-pong with one call or stream, and so many at a time that nothing else
limits them; `protobuf` messages are empty ones, of `generic` no serializer is asked.
The worker's driver wants a build of gRPC; this is a client of its scenarios.

Contenders take turns, as in `benchmarks.overhead`. A message of a stream counts as a
call.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf.empty_pb2 import Empty

import lbclient
from benchmarks.harness.options import conclude, exit_with, parser_of
from benchmarks.harness.processes import running
from benchmarks.harness.servers import serve
from benchmarks.harness.turns import (
    Contender,
    Echo,
    Ratio,
    compare,
    measured_of,
    own_cpu,
    ratio,
    say_absolute,
    say_ratios,
)

UNARY, STREAM = "/benchmark.Script/Unary", "/benchmark.Script/Stream"
SERVERS = {
    "lbclient": lbclient.server,
    "grpc.aio": lambda: grpc.aio.server(options=[("grpc.so_reuseport", 0)]),
}
CHANNELS: dict[str, Any] = {
    "lbclient": lbclient.insecure_channel,
    "grpc.aio": grpc.aio.insecure_channel,
}
# By name: whether it streams, whether messages have serializers, calls at a time, and
# messages of a slice.
SCENARIOS = {
    "grpc#43092's script": (False, False, 100, 300),
    "QPS: protobuf unary ping-pong": (False, True, 1, 60),
    "QPS: protobuf unary, 64 calls": (False, True, 64, 192),
    "QPS: protobuf unary, 512 calls": (False, True, 512, 1024),
    "QPS: generic streaming ping-pong": (True, False, 1, 100),
    "QPS: protobuf streaming ping-pong": (True, True, 1, 100),
    "QPS: protobuf streaming, 64 streams": (True, True, 64, 384),
}
QUICK = (*SCENARIOS,)[:3] + (*SCENARIOS,)[4:5] + (*SCENARIOS,)[6:]
SECONDS = 10.0  # of a scenario


async def answer(request: bytes, context: Any) -> bytes:
    return b""


async def answer_each(
    requests: AsyncIterator[bytes], context: Any
) -> AsyncIterator[bytes]:
    async for _ in requests:
        yield b""


async def be_server(kind: str) -> None:
    methods: dict[str, Any] = {
        UNARY: grpc.unary_unary_rpc_method_handler(answer),
        STREAM: grpc.stream_stream_rpc_method_handler(answer_each),
    }
    await serve(SERVERS[kind](), methods)


class Streams:
    """One more whenever all are busy; a message and its answer are one call."""

    def __init__(self, method: Any, message: Any) -> None:
        self._method, self._message = method, message
        self._idle: list[Any] = []

    async def ping_pong(self) -> None:
        call = self._idle.pop() if self._idle else self._method()
        await call.write(self._message)
        await call.read()
        self._idle.append(call)


def stub(channel: grpc.aio.Channel, *, streams: bool, serializes: bool) -> Echo:
    message: Any = Empty() if serializes else b""
    codec = (Empty.SerializeToString, Empty.FromString) if serializes else (None, None)
    if streams:
        return Streams(channel.stream_stream(STREAM, *codec), message).ping_pong
    method: Any = channel.unary_unary(UNARY, *codec)
    return lambda: method(message)


async def measure(names: tuple[str, ...], seconds: float) -> list[Ratio]:
    """Ours over grpc.aio's, with the same server; and all ours over all theirs."""
    ratios: list[Ratio] = []
    async with contextlib.AsyncExitStack() as stack:
        ports = {}
        for kind in SERVERS:
            server = await stack.enter_async_context(running(be_server, kind))
            ports[kind] = await server.hear()
        channels = {
            (client, server): await stack.enter_async_context(
                CHANNELS[client](f"127.0.0.1:{ports[server]}")
            )
            for client in CHANNELS
            for server in SERVERS
        }
        for name in names:
            streams, serializes, concurrency, calls = SCENARIOS[name]
            contenders = {
                (client, server): Contender(
                    f"{client} on {server} server",
                    stub(channel, streams=streams, serializes=serializes),
                    own_cpu,
                )
                for (client, server), channel in channels.items()
            }
            everyone = [*contenders.values()]
            await compare(everyone, concurrency, calls, seconds)
            say_absolute(name, everyone, concurrency)
            theirs = contenders["grpc.aio", "grpc.aio"]
            ratios += [
                ratio(name, contenders["lbclient", server], theirs, concurrency)
                for server in ("grpc.aio", "lbclient")
            ]
    return ratios


def main() -> int:
    parser = parser_of("grpc_scripts", __doc__, quick="five, for a quarter of the time")
    given = parser.parse_args()
    names = QUICK if given.quick else (*SCENARIOS,)
    ratios = asyncio.run(measure(names, SECONDS / 4 if given.quick else SECONDS))
    say_ratios(ratios)
    return conclude(given, ratios, None, measured=measured_of(ratios))


if __name__ == "__main__":
    exit_with(main)
