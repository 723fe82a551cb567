"""What others make of a channel: generated code, instrumentation, other loops."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

import lbclient
from tests import needs
from tests.conformance.both import (
    Side,
    answered,
    comes_true,
    each_kind,
    on_both,
    once,
    outcome,
)
from tests.conformance.script import KINDS, Script, path
from tests.hosts import PATH, hosting, unary_unary
from tests.waiting import eventually

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import search_pb2 as pb
import search_pb2_grpc as pb_grpc


class Search(pb_grpc.SearchServicer):
    async def Search(self, request: Any, context: Any) -> Any:
        return pb.Answer(text=request.text)

    async def Pages(self, request: Any, context: Any) -> AsyncIterator[Any]:
        for letter in request.text:
            yield pb.Answer(text=letter)

    async def Index(self, request_iterator: Any, context: Any) -> Any:
        return pb.Answer(text="".join([query.text async for query in request_iterator]))

    async def Chat(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:
        async for query in request_iterator:
            yield pb.Answer(text=query.text)


class Client:
    """As some generators write it: over a channel, which it insists upon."""

    def __init__(self, channel: object) -> None:
        if not isinstance(channel, grpc.aio.Channel):
            raise TypeError(f"not a channel of grpc.aio: {channel!r}")
        self.stub = pb_grpc.SearchStub(channel)

    async def call_all(self) -> list[str]:
        queries = [pb.Query(text=letter) for letter in "ab"]
        one = pb.Query(text="ab")
        return [
            (await self.stub.Search(one)).text,
            *[answer.text async for answer in self.stub.Pages(one)],
            (await self.stub.Index(iter(queries))).text,
            *[answer.text async for answer in self.stub.Chat(iter(queries))],
        ]


@pytest.fixture(params=["grpc.aio", "lbclient"])
async def search_address(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """Of a server of either library: ours adds trailers, and tells of its health."""
    server = (grpc.aio if request.param == "grpc.aio" else lbclient).server()
    pb_grpc.add_SearchServicer_to_server(Search(), server)
    async with hosting(server=server) as (_, address, _):
        yield address


@on_both
@once
async def test_a_generated_client_takes_the_channel(
    side: Side, search_address: str
) -> Any:
    channel = side.insecure(search_address)
    first = await Client(channel).call_all()
    return first, await Client(channel).call_all()


@on_both
async def test_a_message_of_another_type_is_refused(
    side: Side, caplog: pytest.LogCaptureFixture
) -> Any:
    """By grpc.aio it is sent as an empty message."""
    channel = await side.channel()
    method: Any = channel.unary_unary(
        path("unary_unary"), request_serializer=pb.Query.SerializeToString
    )
    return type(await outcome(method("a text"))).__name__


TELEMETRY = "opentelemetry.instrumentation.grpc"


@pytest.fixture
def spans() -> Iterator[Any]:
    """What OpenTelemetry's instrumentation notes of clients' calls."""
    instrumentation = needs.module(TELEMETRY)
    trace = needs.module("opentelemetry.sdk.trace")
    export = needs.module("opentelemetry.sdk.trace.export")
    memory = needs.module("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    exporter = memory.InMemorySpanExporter()
    provider = trace.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    instrumentor = instrumentation.GrpcAioInstrumentorClient()
    instrumentor.instrument(tracer_provider=provider)
    yield exporter
    instrumentor.uninstrument()
    provider.shutdown()


def _told(exporter: Any, kind: str) -> list[Any]:
    """Of the calls, not of what a channel of ours asks of a server's health."""
    return [
        (span.name, span.kind, span.status.status_code, _attributes(span))
        for span in exporter.get_finished_spans()
        if span.name.endswith(kind)
    ]


def _attributes(span: Any) -> dict[str, str]:
    return {key: str(value) for key, value in (span.attributes or {}).items()}


@on_both
@each_kind
@pytest.mark.parametrize("do", ["", "abort"])
async def test_opentelemetry_sees_a_call(
    side: Side, kind: str, do: str, spans: Any
) -> Any:
    spans.clear()
    sending = "write" if do and not kind.startswith("unary") else "iterator"
    call = await side.begin(kind, sending=sending, do=do)
    seen = await answered(call, kind)
    if sending == "write":
        await outcome(call.done_writing())
    await comes_true(lambda: _told(spans, kind), turns=100)
    return seen, _told(spans, kind)


@on_both
@once
async def test_opentelemetry_hands_its_context_on(side: Side, spans: Any) -> Any:
    """The header goes with the call, after the caller's own metadata."""
    headers: list[list[str]] = []

    async def tell(request: bytes, context: Any) -> bytes:
        headers.append([key for key, _ in context.invocation_metadata()])
        return request

    async with hosting(unary_unary(tell), server=grpc.aio.server()) as (_, address, _):
        channel = side.insecure(address)
        method: Any = channel.unary_unary(PATH)
        seen = await method(b"a", metadata=(("mine", "1"),), timeout=5)
        await channel.close()
    return seen, headers


async def test_opentelemetry_sees_one_span_for_each_of_our_attempts(
    spans: Any, address: str, script: Script
) -> None:
    async with lbclient.insecure_channel(address) as channel:
        for _ in range(3):
            method: Any = channel.unary_unary(path("unary_unary"))
            assert await method(b"a", timeout=5) == b"a"
        assert len(_told(spans, "unary_unary")) == 3
        assert channel.statistics().attempts["served"] == 3


@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream"])
async def test_opentelemetry_sees_who_made_a_call_that_waited(
    kind: str, spans: Any
) -> None:
    """It was sent in the context of what ended its wait: of the connection, or of the
    call that it waited for, which is part of another trace."""
    trace = needs.module("opentelemetry.trace")
    ends = asyncio.Event()

    async def echo(request: bytes, _: Any) -> bytes:
        await ends.wait()
        return request

    async def echo_as_stream(request: bytes, context: Any) -> Any:
        yield await echo(request, context)

    make: Any = getattr(grpc, f"{kind}_rpc_method_handler")
    handler = make(echo if kind == "unary_unary" else echo_as_stream)
    config = lbclient.ChannelConfig(active_limit=1)
    async with (
        hosting(handler, server=grpc.aio.server()) as (_, address, _),
        lbclient.insecure_channel(address, config=config) as channel,
    ):
        caller = trace.NonRecordingSpan
        calls = []
        for number in (1, 2):  # the first waits for a connection, the other for a place
            parent = trace.SpanContext(number, number, False, trace.TraceFlags(1))
            with trace.use_span(caller(parent)):
                calls.append(getattr(channel, kind)(PATH)(b"a", timeout=60))
        waiting = [asyncio.ensure_future(answered(call, kind)) for call in calls]
        await eventually(
            lambda: [b.in_flight for b in channel.statistics().backends] == [1]
        )
        assert channel.statistics().waiting == 1
        ends.set()
        await asyncio.gather(*waiting)
        await eventually(lambda: len(_told(spans, PATH)) == 2)
    seen = [span.parent.span_id for span in spans.get_finished_spans() if span.parent]
    assert seen == [1, 2]


@pytest.mark.parametrize("has_health", [False, True])
async def test_opentelemetry_sees_nothing_of_our_health_checks(
    has_health: bool, spans: Any
) -> None:
    """A server without them has an error in each, and one with them two a second."""
    health = "/grpc.health.v1.Health/Check"
    asked: list[str] = []

    class Noting(grpc.aio.ServerInterceptor):
        async def intercept_service(self, continuation: Any, details: Any) -> Any:
            asked.append(details.method)
            return await continuation(details)

    async def serve(_request: bytes, _: Any) -> bytes:
        return b"\x08\x01"  # SERVING

    async def echo(request: bytes, _: Any) -> bytes:
        return request

    methods = {PATH: unary_unary(echo)}
    if has_health:
        methods[health] = unary_unary(serve)
    server = grpc.aio.server(interceptors=[Noting()])
    async with (
        hosting(methods, server=server) as (_, address, _),
        lbclient.insecure_channel(address) as channel,
    ):
        call: Any = channel.unary_unary(PATH)
        assert await call(b"a", timeout=30) == b"a"
        await eventually(lambda: health in asked)
    assert [span.name for span in spans.get_finished_spans()] == [PATH]


ENDS = ["DEADLINE_EXCEEDED", "CANCELLED at once", "CANCELLED"]


@each_kind
@pytest.mark.parametrize("end", ENDS)
async def test_a_call_that_ends_here_is_counted_beneath_opentelemetry_too(
    end: str, kind: str, spans: Any
) -> None:
    """Calls with interceptors do not tell what time is left, nor have trailers if they
    were cancelled: their attempts stayed in flight for ever."""
    begun = asyncio.Event()

    async def hang(*_: Any) -> Any:
        begun.set()
        await asyncio.Event().wait()

    async def hang_as_stream(*_: Any) -> Any:
        await hang()
        yield b""

    handler: Any = getattr(grpc, f"{kind}_rpc_method_handler")(
        hang if kind.endswith("unary") else hang_as_stream
    )
    async with (
        hosting(handler, server=grpc.aio.server()) as (_, address, _),
        lbclient.insecure_channel(address) as channel,
    ):
        await asyncio.wait_for(channel.channel_ready(), 30)
        request: Any = b"a" if kind.startswith("unary") else iter([b"a"])
        timeout = 0.2 if end == "DEADLINE_EXCEEDED" else 60
        call: Any = getattr(channel, kind)(PATH)(request, timeout=timeout)
        if end != "DEADLINE_EXCEEDED":
            if end == "CANCELLED":
                await asyncio.wait_for(begun.wait(), 30)
            call.cancel()
        await answered(call, kind)
        code = end.partition(" ")[0]
        await eventually(lambda: channel.statistics().calls == {code: 1})
        [backend] = channel.statistics().backends
        assert backend.in_flight == 0


UVLOOP = """
import asyncio, importlib, sys, uvloop
library, address = importlib.import_module(sys.argv[1]), sys.argv[2]
path = "/conformance.Script/"

async def calls():
    async with library.insecure_channel(address) as channel:
        await channel.channel_ready()
        slow = (("do", "nap"),)
        one = channel.unary_unary(path + "unary_unary")(b"a", timeout=9, metadata=slow)
        many = channel.unary_stream(path + "unary_stream")(b"a,b", timeout=9)
        sent = channel.stream_unary(path + "stream_unary")(iter([b"a", b"b"]))
        both = channel.stream_stream(path + "stream_stream")(iter([b"a", b"b"]))
        left = 8 < one.time_remaining() <= 9
        print(await one, [m async for m in many], await sent, [m async for m in both])
        late = (("do", "initial hang"),)
        unary = channel.unary_unary(path + "unary_unary")
        call = unary(b"a", timeout=0.05, metadata=late)
        print(left, await call.code(), call.done(), call.cancel())
        call = channel.unary_stream(path + "unary_stream")(b"a", metadata=late)
        await call.initial_metadata()
        print(call.cancel(), call.cancelled(), await call.code())

uvloop.run(calls())
"""


@on_both
@once
async def test_calls_are_the_same_on_uvloop(side: Side) -> Any:
    needs.module("uvloop")
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", UVLOOP, side.name, side.address),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await child.communicate()
    lines = said.decode().splitlines()
    return child.returncode, [line for line in lines if not line.startswith("I")]


@on_both
@once
@pytest.mark.parametrize("kind", KINDS)
async def test_calls_are_the_same_on_a_server_of_ours(
    side: Side, kind: str, script: Script
) -> Any:
    async with hosting(script.methods()) as (_, address, _):
        channel = side.insecure(address)
        seen = []
        for do in ("", "initial trailing", "status", "repeated"):
            call = await side.begin(kind, on=channel, do=do)
            answers = await answered(call, kind)
            if answers and isinstance(answers[-1], grpc.aio.AioRpcError):
                answers[-1] = (answers[-1].code(), answers[-1].details())
            trailing = [
                pair for pair in await call.trailing_metadata() if "load" not in pair[0]
            ]
            seen.append((answers, await call.initial_metadata(), trailing))
        await channel.close()
    return seen
