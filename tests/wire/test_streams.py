"""Streams of health and load beyond what a server holds: whoever is refused is told.

And goes on, whether it is a client of ORCA or gRPC's own that checks health.
"""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from grpc import StatusCode

from lbclient import wire
from lbclient.core.model import TaskState
from lbclient.server import Server
from lbclient.server.report.streams import OPENINGS_IF_STRAINED, SLICE, Stream
from lbclient.v1 import compat_pb2, health_pb2, load_pb2
from tests import needs
from tests.held import held_by
from tests.hosts import PATH, Host, Passing
from tests.wire.conftest import ECHO, connect

Eventually = Callable[..., Awaitable[None]]

KINDS = {
    "health": wire.WATCH_METHOD,
    "load": wire.ORCA_METHOD,
    "serving": wire.SERVING_WATCH_METHOD,
}
REQUESTS = {
    wire.WATCH_METHOD: health_pb2.HealthRequest(report_interval=3600.0),
    wire.ORCA_METHOD: compat_pb2.LoadReportRequest(
        report_interval=Duration(seconds=3600)
    ),
    wire.SERVING_WATCH_METHOD: compat_pb2.ServingRequest(),
}


def watch(channel: grpc.aio.Channel, method: str) -> Any:
    follow: Any = channel.unary_stream(method)
    return follow(REQUESTS[method].SerializeToString())


def refused(server: Server) -> dict[str, int]:
    return {why: n for why, n in server.statistics().streams_refused.items() if n}


REFUSALS = {
    "health": StatusCode.RESOURCE_EXHAUSTED,
    "load": StatusCode.RESOURCE_EXHAUSTED,
    "serving": StatusCode.UNIMPLEMENTED,
}


@pytest.mark.parametrize("interceptors", [None, [Passing()]])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_connection_holds_so_many_and_who_is_refused_is_told(
    host: Host, kind: str, interceptors: Any
) -> None:
    server, address, _ = await host(
        ECHO, interceptors=interceptors, max_streams_per_connection=2
    )
    method = KINDS[kind]
    async with connect(address) as one, connect(address) as other:
        held = [watch(one, method) for _ in range(2)]
        for call in held:
            await call.read()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await watch(one, method).read()
        assert caught.value.code() is REFUSALS[kind]
        assert "ServerConfig.max_streams_per_connection" in str(caught.value.details())
        report = wire.find_report(caught.value.trailing_metadata())
        assert report is not None
        assert report.state is TaskState.SERVING
        assert server.statistics().streams[kind] == 2
        assert refused(server) == {"connection": 1}
        held.append(watch(other, method))
        await held[-1].read()
        assert server.statistics().streams[kind] == server.statistics().watchers == 3
        for call in held:
            call.cancel()


@pytest.mark.parametrize("interceptors", [None, [Passing()]])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_holds_so_many_and_answers_all_checks(
    host: Host, kind: str, interceptors: Any, eventually: Eventually
) -> None:
    server, address, _ = await host(ECHO, interceptors=interceptors, max_streams=1)
    method = KINDS[kind]
    async with connect(address) as one, connect(address) as other:
        held = watch(one, method)
        await held.read()
        call = watch(other, method)
        assert await call.code() is REFUSALS[kind]
        assert "ServerConfig.max_streams" in await call.details()
        assert refused(server) == {"server": 1}
        for check in (wire.CHECK_METHOD, wire.SERVING_CHECK_METHOD):
            ask: Any = other.unary_unary(check)
            assert await ask(b"", timeout=10)
        held.cancel()
        await eventually(lambda: server.statistics().watchers == 0)
        assert isinstance(await watch(other, method).read(), bytes)


async def test_a_strained_server_lets_in_few_new_streams_and_answers_all_checks(
    host: Host, eventually: Eventually
) -> None:
    """Not yet overloaded: no request is refused. Health checks of strangers go on."""
    server, address, _ = await host(ECHO, signals={"disk": lambda: 0.9})
    most = int(OPENINGS_IF_STRAINED)
    await eventually(lambda: server._gate.is_strained)
    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(connect(address)) for _ in range(most)
        ]
        calls = [watch(one, wire.WATCH_METHOD) for one in channels * 4]
        codes = [await call.code() for call in calls if await _is_over(call)]
        assert set(codes) == {StatusCode.RESOURCE_EXHAUSTED}
        assert len(codes) == refused(server)["openings"] >= most
        for check in (wire.CHECK_METHOD, wire.SERVING_CHECK_METHOD):
            ask: Any = channels[0].unary_unary(check)
            assert await ask(b"", timeout=10)
        others = [watch(one, wire.SERVING_WATCH_METHOD) for one in channels * 4]
        assert not any([await _is_over(call) for call in others])
        for call in (*calls, *others):
            call.cancel()


async def _is_over(call: Any) -> bool:
    """Rather than a stream that was let in, which says something."""
    try:
        return not isinstance(await call.read(), bytes)
    except grpc.aio.AioRpcError:
        return True


async def test_streams_end_with_their_connection(
    host: Host, eventually: Eventually
) -> None:
    needs.grpcio("1.84", "a stream ends when it is dropped, not with its channel")
    server, address, _ = await host(ECHO)
    channel = connect(address)
    for method in (*KINDS.values(), *KINDS.values()):
        await watch(channel, method).read()
    assert server.statistics().streams == {"health": 2, "load": 2, "serving": 2}
    await channel.close()
    await eventually(lambda: server.statistics().watchers == 0)
    assert held_by(server._streams, Stream) == []


async def test_a_lame_duck_is_told_to_every_stream_of_every_kind(host: Host) -> None:
    """More of them than are woken in a turn of the loop; nobody waits for an hour."""
    server, address, _ = await host(ECHO, max_streams_per_connection=SLICE)
    async with AsyncExitStack() as stack:
        calls = []
        for method in (*KINDS.values(), *KINDS.values()):
            channel = await stack.enter_async_context(connect(address))
            calls += [(watch(channel, method), method) for _ in range(SLICE)]
        for call, _ in calls:
            await call.read()
        server.lame_duck()
        for call, method in calls:
            # A busy machine may have other news before.
            while not tells_of_leaving(await asyncio.wait_for(call.read(), 20), method):
                pass
            call.cancel()


def tells_of_leaving(said: bytes, method: str) -> bool:
    if method == wire.SERVING_WATCH_METHOD:
        status = compat_pb2.ServingReply.FromString(said).status
        return status == compat_pb2.ServingReply.NOT_SERVING
    if method == wire.WATCH_METHOD:
        return health_pb2.HealthReport.FromString(said).state == load_pb2.LAME_DUCK
    return load_pb2.LoadReport.FromString(said).state == load_pb2.LAME_DUCK


class Unread:
    """An HTTP/2 client of a few lines, which takes no data before it is told to."""

    DATA, HEADERS, SETTINGS = 0, 1, 4
    END_STREAM, END_HEADERS, ACK = 1, 4, 1
    INITIAL_WINDOW_SIZE = 4

    def __init__(self) -> None:
        self.data: dict[int, bytes] = {}

    async def connect(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._reader, self._writer = await asyncio.open_connection(host, int(port))
        self._writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self.take(0)

    def take(self, window: int) -> None:
        """So many bytes of each stream, from now on."""
        setting = struct.pack(">HI", self.INITIAL_WINDOW_SIZE, window)
        self._send(self.SETTINGS, 0, 0, setting)

    def open(self, stream: int, method: str, request: bytes) -> None:
        fields = {
            ":method": "POST", ":scheme": "http", ":path": method,
            ":authority": "test", "te": "trailers", "content-type": "application/grpc",
        }  # fmt: skip
        block = b"".join(
            b"\0" + bytes([len(one)]) + one.encode() + bytes([len(two)]) + two.encode()
            for one, two in fields.items()
        )
        self._send(self.HEADERS, self.END_HEADERS, stream, block)
        message = struct.pack(">BI", 0, len(request)) + request
        self._send(self.DATA, self.END_STREAM, stream, message)

    def _send(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        size = len(payload).to_bytes(3, "big")
        head = size + bytes([kind, flags]) + stream.to_bytes(4, "big")
        self._writer.write(head + payload)

    async def read(self) -> None:
        """Takes frames until the connection is closed."""
        while True:
            head = await self._reader.readexactly(9)
            payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
            if head[3] == self.SETTINGS and not head[4] & self.ACK:
                self._send(self.SETTINGS, self.ACK, 0, b"")
            if head[3] == self.DATA:
                stream = int.from_bytes(head[5:9], "big")
                self.data[stream] = self.data.get(stream, b"") + payload

    def messages(self, stream: int) -> list[bytes]:
        data, found = self.data.get(stream, b""), []
        while len(data) >= 5:
            size = int.from_bytes(data[1:5], "big")
            found.append(data[5 : 5 + size])
            data = data[5 + size :]
        return found

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


async def test_who_does_not_read_holds_up_nobody_and_gets_the_latest(
    host: Host, eventually: Eventually
) -> None:
    """Ten reports are due while HTTP/2's window is full; one is kept."""
    server, address, _ = await host(ECHO, report_interval=0.1)
    lazy = Unread()
    await lazy.connect(address)
    reading = asyncio.create_task(lazy.read())
    for stream in (1, 3, 5):
        lazy.open(stream, wire.WATCH_METHOD, b"")
    await eventually(lambda: server.statistics().watchers == 3)
    async with connect(address) as other:
        follow: Any = other.unary_stream(wire.WATCH_METHOD)
        call = follow(b"")
        for _ in range(10):
            await asyncio.wait_for(call.read(), 20)
        assert not lazy.data
        server.lame_duck()
        states = [load_pb2.SERVING]
        while states[-1] != load_pb2.LAME_DUCK:
            message = await asyncio.wait_for(call.read(), 20)
            states.append(health_pb2.HealthReport.FromString(message).state)
        lazy.take(65_535)
        await eventually(lambda: all(len(lazy.messages(n)) >= 2 for n in (1, 3, 5)))
        for stream in (1, 3, 5):
            # The one that was stuck, and the latest.
            first, latest, *_ = map(
                health_pb2.HealthReport.FromString, lazy.messages(stream)
            )
            assert first.state == load_pb2.SERVING
            assert latest.state == load_pb2.LAME_DUCK
        call.cancel()
    reading.cancel()
    await asyncio.wait((reading,))
    await lazy.close()
    await eventually(lambda: server.statistics().watchers == 0)


FOLLOW = (
    '{"loadBalancingConfig": [{"round_robin": {}}],'
    ' "healthCheckConfig": {"serviceName": ""}}'
)


def stranger(address: str, service_config: str) -> grpc.aio.Channel:
    options = [
        ("grpc.service_config", service_config),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    return grpc.aio.insecure_channel(address, options=options)


async def test_a_client_with_gRPCs_health_checks_that_is_refused_is_served(
    host: Host,
) -> None:
    """Any other status would make its channel TRANSIENT_FAILURE."""
    server, address, _ = await host(ECHO, max_streams=1)
    async with connect(address) as other, stranger(address, FOLLOW) as channel:
        held = watch(other, wire.SERVING_WATCH_METHOD)
        await held.read()
        call: Any = channel.unary_unary(PATH)
        for _ in range(5):
            assert await call(b"hello", timeout=20) == b"hello"
        assert channel.get_state() is grpc.ChannelConnectivity.READY
        assert refused(server) == {"server": 1}
        held.cancel()


async def test_a_client_with_gRPCs_health_checks_does_not_come_to_a_lame_duck(
    host: Host, eventually: Eventually
) -> None:
    server, address, _ = await host(ECHO, max_streams=1)
    async with connect(address) as other, stranger(address, FOLLOW) as channel:
        held = watch(other, wire.SERVING_WATCH_METHOD)
        await held.read()
        server.lame_duck()
        channel.get_state(try_to_connect=True)
        await eventually(lambda: refused(server).keys() == {"server"})  # it asks again
        failing = grpc.ChannelConnectivity.TRANSIENT_FAILURE
        await eventually(lambda: channel.get_state() is failing)
        held.cancel()


async def test_weighted_round_robin_that_is_refused_reports_is_served(
    host: Host, eventually: Eventually
) -> None:
    server, address, _ = await host(ECHO, max_streams=1)
    policy = (
        '{"loadBalancingConfig": [{"weighted_round_robin":'
        ' {"enableOobLoadReport": true, "oobReportingPeriod": "1s"}}]}'
    )
    async with connect(address) as other, stranger(address, policy) as channel:
        held = watch(other, wire.WATCH_METHOD)
        await held.read()
        call: Any = channel.unary_unary(PATH)
        assert await call(b"hello", timeout=20) == b"hello"
        await eventually(lambda: refused(server))
        assert await call(b"hello", timeout=20) == b"hello"
        held.cancel()
        await eventually(lambda: server.statistics().streams["load"] == 1)
