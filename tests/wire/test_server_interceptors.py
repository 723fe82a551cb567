"""Interceptors of a server's user are not asked about the server's own health."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from opentelemetry.instrumentation.grpc import aio_server_interceptor
from sentry_sdk.integrations.grpc.aio.server import ServerInterceptor as Sentry

import lbclient
from lbclient import wire
from lbclient.core.model import State
from lbclient.v1 import compat_pb2, health_pb2
from tests.hosts import Host, stream_stream, stream_unary, unary_stream, unary_unary

SERVING = compat_pb2.ServingReply.SERVING


class Denying(grpc.aio.ServerInterceptor):
    """Nobody may call anything without this token."""

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        metadata = dict(details.invocation_metadata)
        if metadata.get("authorization") == "token":
            return await continuation(details)

        async def deny(_request: Any, context: Any) -> None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")

        return unary_unary(deny)


class Buffering(grpc.aio.ServerInterceptor):
    """Takes every handler for one that streams, and awaits its first response."""

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler = await continuation(details)

        async def respond(request: Any, context: Any) -> Any:
            async for response in handler.unary_stream(request, context):
                return response

        return unary_unary(respond)


KINDS: dict[str, Callable[[], Any]] = {
    "denies all": Denying,
    "breaks streams": Buffering,
    "OpenTelemetry": aio_server_interceptor,
    "Sentry": Sentry,
}


async def echo(request: bytes, _context: Any) -> bytes:
    return request


async def echo_all(requests: AsyncIterator[bytes], _context: Any) -> bytes:
    return b"".join([request async for request in requests])


async def twice(request: bytes, _context: Any) -> AsyncIterator[bytes]:
    yield request
    yield request


async def each(requests: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


METHODS = {
    "/a.B/UnaryUnary": unary_unary(echo),
    "/a.B/UnaryStream": unary_stream(twice),
    "/a.B/StreamUnary": stream_unary(echo_all),
    "/a.B/StreamStream": stream_stream(each),
}


async def call_all(channel: grpc.aio.Channel) -> list[Any]:
    token: Any = {"metadata": (("authorization", "token"),), "timeout": 20}
    unary: Any = channel.unary_unary("/a.B/UnaryUnary")
    stream: Any = channel.unary_stream("/a.B/UnaryStream")
    whole: Any = channel.stream_unary("/a.B/StreamUnary")
    chat: Any = channel.stream_stream("/a.B/StreamStream")
    return [
        await unary(b"x", **token),
        [answer async for answer in stream(b"x", **token)],
        await whole(iter((b"x", b"x")), **token),
        [answer async for answer in chat(iter((b"x", b"x")), **token)],
    ]


ANSWERS = [b"x", [b"x", b"x"], b"xx", [b"x", b"x"]]


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    "names",
    [("OpenTelemetry",), ("Sentry",), ("denies all",), (*KINDS,)],
    ids=lambda names: "all" if len(names) > 1 else names[0],
)
async def test_a_drain_is_seen_through_any_interceptors(
    host: Host, eventually: Any, names: tuple[str, ...], order: int
) -> None:
    interceptors = [KINDS[name]() for name in names][::order]
    server, address, _ = await host(METHODS, interceptors=interceptors)
    async with lbclient.insecure_channel(f"ipv4:{address}") as channel:
        if "breaks streams" not in names:
            assert await call_all(channel) == ANSWERS
        await channel.channel_ready()
        [backend] = channel.balancer().pool.ready
        await eventually(lambda: backend.reported.is_ours)
        server.lame_duck()
        await eventually(lambda: backend.state is State.LAME_DUCK)


@pytest.mark.parametrize("name", KINDS)
async def test_every_health_service_passes_by(host: Host, name: str) -> None:
    _, _, channel = await host(METHODS, interceptors=[KINDS[name]()])
    said = []
    for method in (wire.SERVING_CHECK_METHOD, wire.CHECK_METHOD):
        check: Any = channel.unary_unary(method)
        said.append(await check(b"", timeout=20))
    assert compat_pb2.ServingReply.FromString(said[0]).status == SERVING
    health_pb2.HealthReport.FromString(said[1])
    for method in (wire.SERVING_WATCH_METHOD, wire.WATCH_METHOD, wire.ORCA_METHOD):
        watch: Any = channel.unary_stream(method)
        call = watch(b"", timeout=20)
        assert await call.read() is not grpc.aio.EOF
        call.cancel()


async def test_interceptors_are_asked_where_the_setting_says_so(host: Host) -> None:
    _, _, channel = await host(METHODS, interceptors=[Denying()], intercept_health=True)
    check: Any = channel.unary_unary(wire.SERVING_CHECK_METHOD)
    with pytest.raises(grpc.aio.AioRpcError, match="no token"):
        await check(b"", timeout=20)
    assert await check(b"", timeout=20, metadata=(("authorization", "token"),))


@pytest.mark.parametrize("registers", [False, True])
async def test_a_health_service_of_the_users_own_is_intercepted(
    host: Host, registers: bool
) -> None:
    async def respond(_request: bytes, _context: Any) -> bytes:
        return b"mine"

    handler = unary_unary(respond)
    server, _, channel = await host(interceptors=[Denying()], starts=False)
    service, _, method = wire.SERVING_CHECK_METHOD[1:].partition("/")
    if registers:
        server.add_registered_method_handlers(service, {method: handler})
    else:
        generic = grpc.method_handlers_generic_handler(service, {method: handler})
        server.add_generic_rpc_handlers((generic,))
    await server.start()
    check: Any = channel.unary_unary(wire.SERVING_CHECK_METHOD)
    with pytest.raises(grpc.aio.AioRpcError, match="no token"):
        await check(b"", timeout=20)
    assert await check(b"", metadata=(("authorization", "token"),)) == b"mine"
    other: Any = channel.unary_unary(wire.CHECK_METHOD)
    await asyncio.wait_for(other(b""), 20)
