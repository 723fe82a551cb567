"""Opens streams on connections of its own, in a process of its own, and counts.

Opens so many streams of the method, `rate` a second (0: all at once), each asking for
a report every `interval` seconds. If it churns, a stream that has said something, or
was refused, is closed and opened again. For every order it says what it has seen.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration

from benchmarks.harness.processes import orders, say
from lbclient import wire
from lbclient.v1 import compat_pb2, health_pb2, load_pb2

OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
NOT_SERVING = compat_pb2.ServingReply.NOT_SERVING


@dataclass
class Seen:
    """`ended` is by status; `words` are those of the last refusal; `leaving` streams
    were told that the task is a lame duck."""

    opened: int = 0
    held: int = 0
    reports: int = 0
    leaving: int = 0
    ended: dict[str, int] = field(default_factory=dict)
    words: str = ""

    def settled(self) -> int:
        """Streams of which something was heard."""
        return self.held + sum(self.ended.values())


def request_of(method: str, interval: float) -> bytes:
    if method == wire.WATCH_METHOD:
        return health_pb2.HealthRequest(report_interval=interval).SerializeToString()
    if method == wire.ORCA_METHOD:
        nanos = Duration(nanos=int(interval * 1e9) % 10**9, seconds=int(interval))
        asked = compat_pb2.LoadReportRequest(report_interval=nanos)
        return asked.SerializeToString()
    return b""


def is_leaving(method: str, message: bytes) -> bool:
    if method == wire.SERVING_WATCH_METHOD:
        return compat_pb2.ServingReply.FromString(message).status == NOT_SERVING
    if method == wire.ORCA_METHOD:
        return load_pb2.LoadReport.FromString(message).state == load_pb2.LAME_DUCK
    if method == wire.WATCH_METHOD:
        return health_pb2.HealthReport.FromString(message).state == load_pb2.LAME_DUCK
    return False


class Flooder:
    def __init__(self, method: str, interval: float, is_churning: bool) -> None:
        self.seen = Seen()
        self._method = method
        self._request = request_of(method, interval)
        self._is_churning = is_churning

    async def hold(self, channel: grpc.aio.Channel) -> None:
        while True:
            await self._once(channel)
            if not self._is_churning:
                return

    async def _once(self, channel: grpc.aio.Channel) -> None:
        seen = self.seen
        seen.opened += 1
        watch: Any = channel.unary_stream(self._method)
        call = watch(self._request)
        is_open = is_told = False
        try:
            while isinstance(message := await call.read(), bytes):
                seen.reports += 1
                seen.held += not is_open
                is_open = True
                if not is_told and is_leaving(self._method, message):
                    is_told = True
                    seen.leaving += 1
                if self._is_churning:
                    break
            else:
                self._end("OK")
        except grpc.aio.AioRpcError as error:
            self._end(error.code().name)
            seen.words = error.details() or ""
        finally:
            seen.held -= is_open
            call.cancel()

    def _end(self, status: str) -> None:
        self.seen.ended[status] = self.seen.ended.get(status, 0) + 1


async def flood(
    port: int,
    method: str,
    streams: int,
    connections: int,
    rate: float,
    interval: float,
    churns: bool,
) -> None:
    flooder = Flooder(method, interval, churns)
    channels = [
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OWN_CONNECTION)
        for _ in range(connections)
    ]
    await asyncio.gather(*(channel.channel_ready() for channel in channels))
    say("ready")
    holding = asyncio.create_task(begin(channels, streams, rate, flooder))
    async for _ in orders():
        say(flooder.seen)
    holding.cancel()


async def begin(
    channels: list[grpc.aio.Channel], streams: int, rate: float, flooder: Flooder
) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(streams):
            group.create_task(flooder.hold(channels[number % len(channels)]))
            if rate:
                await asyncio.sleep(1 / rate)
