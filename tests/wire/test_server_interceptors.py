"""Interceptors of a server's user are not asked about the server's own health."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from opentelemetry.instrumentation.grpc import (
    GrpcAioInstrumentorServer,
    aio_server_interceptor,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sentry_sdk.integrations.grpc import _wrap_async_server
from sentry_sdk.integrations.grpc.aio.server import ServerInterceptor as Sentry

import lbclient
from lbclient import wire
from lbclient.core.model import State
from lbclient.grpc_seam import intake
from lbclient.v1 import compat_pb2, health_pb2
from tests.hosts import (
    Host,
    see_drain,
    stream_stream,
    stream_unary,
    unary_stream,
    unary_unary,
)

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


class Passed(grpc.aio.ServerInterceptor):
    """Keeps the methods that it was asked about."""

    def __init__(self) -> None:
        self.methods: list[str] = []

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        self.methods.append(details.method)
        return await continuation(details)


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


@contextmanager
def instrumented(order: int = 1) -> Iterator[InMemorySpanExporter]:
    """OpenTelemetry and Sentry replace `grpc.aio.server`; the spans of the former."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor: Any = GrpcAioInstrumentorServer()  # type: ignore[no-untyped-call]
    with pytest.MonkeyPatch.context() as patch:

        def by_sentry() -> None:
            patch.setattr(grpc.aio, "server", _wrap_async_server(grpc.aio.server))

        def by_opentelemetry() -> None:
            patch.setattr(grpc.aio, "server", grpc.aio.server)  # to be put back
            instrumentor.instrument(tracer_provider=provider)

        for instrument in (by_sentry, by_opentelemetry)[::order]:
            instrument()
        try:
            yield exporter
        finally:
            instrumentor.uninstrument()


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("brought", [[], [Denying()]], ids=["none", "denies all"])
async def test_health_passes_by_what_instruments_grpc_aio_server(
    host: Host, order: int, brought: list[Any]
) -> None:
    """They put their interceptors before those of the program."""
    with instrumented(order) as exporter:
        server, address, channel = await host(METHODS, interceptors=brought)
    assert await call_all(channel) == ANSWERS
    await see_drain(server, address)
    names = [span.name for span in exporter.get_finished_spans()]
    assert sorted(names) == sorted(METHODS)


@pytest.mark.parametrize("brought", [(), (Denying(),)], ids=["none", "denies all"])
async def test_instrumentation_may_insert_into_the_interceptors(
    host: Host, monkeypatch: pytest.MonkeyPatch, brought: tuple[Any, ...]
) -> None:
    """As Elastic's does, which takes them for a list."""
    make, passed = grpc.aio.server, Passed()

    def instrumented(**arguments: Any) -> grpc.aio.Server:
        arguments["interceptors"].insert(0, passed)
        return make(**arguments)

    monkeypatch.setattr(grpc.aio, "server", instrumented)
    server, address, channel = await host(METHODS, interceptors=brought)
    assert await call_all(channel) == ANSWERS
    await see_drain(server, address)
    assert sorted(passed.methods) == sorted(METHODS)


async def test_refusals_pass_by_what_instruments_grpc_aio_server(host: Host) -> None:
    with instrumented():
        server, _, channel = await host(METHODS, maximum_concurrent_rpcs=1)
    unknown: Any = channel.unary_stream("/a.B/Unknown")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await unknown(b"", timeout=20).read()
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    open_stream: Any = channel.stream_stream("/a.B/StreamStream")
    first = open_stream(timeout=20)
    await first.write(b"x")
    assert await first.read() == b"x"
    twice: Any = channel.unary_stream("/a.B/UnaryStream")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await twice(b"x", timeout=20).read()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert wire.find_report(caught.value.trailing_metadata()) is not None
    await first.done_writing()
    assert await first.read() is grpc.aio.EOF
    assert server.statistics().refused


@pytest.mark.parametrize("asks", [True, False], ids=["as set", "in such a grpcio"])
async def test_health_streams_pass_through_what_instruments_grpc_aio_server(
    host: Host, eventually: Any, monkeypatch: pytest.MonkeyPatch, asks: bool
) -> None:
    """By the setting, and in a grpcio where ours cannot be put first."""
    if not asks:
        monkeypatch.setattr(intake, "_subclass", lambda: None)
    with instrumented() as exporter:
        server, address, channel = await host(METHODS, intercept_health=asks)
    assert await call_all(channel) == ANSWERS
    await see_drain(server, address)
    # A stream's span ends some time after its client has left.
    await eventually(
        lambda: {span.name for span in exporter.get_finished_spans()} > set(METHODS)
    )
