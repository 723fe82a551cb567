"""gRPC's interoperability cases, with lbclient on either side or on both.

    python -m benchmarks.grpc_interop            some seconds

Cases are those of `tests_aio/interop` of gRPC's repository that need no credentials of
Google's, by the description in `doc/interop-test-descriptions.md`. Messages are those
of `grpc.testing`, of which only the fields that the cases use are declared here. For
each pair of client and server the share of the cases that hold is told, also for
grpc.aio with itself.
Exit status 1 if a case fails of ours that holds there.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.empty_pb2 import Empty

import lbclient
from benchmarks.harness.figures import table
from benchmarks.harness.measured import Measured
from benchmarks.harness.options import conclude, exit_with, parser_of
from benchmarks.harness.servers import handlers

SERVICE = "/grpc.testing.TestService/"
SIZES = (31415, 9, 2653, 58979)  # of answers
PAYLOADS = (27182, 8, 1828, 45904)  # of requests
LARGE_REQUEST, LARGE_ANSWER = 271828, 314159
INITIAL, TRAILING = "x-grpc-test-echo-initial", "x-grpc-test-echo-trailing-bin"
DETAILS = "test status message"
SPECIAL = (
    "\t\ntest with whitespace\r\nand Unicode BMP \u263a and non-BMP \U0001f608\t\n"
)
UNKNOWN = grpc.StatusCode.UNKNOWN
TIMEOUT = 10.0  # seconds of a case

# Fields by message: number, name, type; a name of a message for a type of its own.
MESSAGES: dict[str, list[tuple[int, str, str]]] = {
    "Payload": [(2, "body", "bytes")],
    "EchoStatus": [(1, "code", "int32"), (2, "message", "string")],
    "SimpleRequest": [
        (2, "response_size", "int32"),
        (3, "payload", "Payload"),
        (7, "response_status", "EchoStatus"),
    ],
    "SimpleResponse": [(1, "payload", "Payload")],
    "StreamingInputCallRequest": [(1, "payload", "Payload")],
    "StreamingInputCallResponse": [(1, "aggregated_payload_size", "int32")],
    "ResponseParameters": [(1, "size", "int32"), (2, "interval_us", "int32")],
    "StreamingOutputCallRequest": [
        (2, "response_parameters", "*ResponseParameters"),
        (3, "payload", "Payload"),
        (7, "response_status", "EchoStatus"),
    ],
    "StreamingOutputCallResponse": [(1, "payload", "Payload")],
}


def declared() -> dict[str, Any]:
    """The messages, in a package of their own: gRPC's may be loaded, too."""
    field = descriptor_pb2.FieldDescriptorProto
    types = {"bytes": field.TYPE_BYTES, "int32": field.TYPE_INT32}
    types["string"] = field.TYPE_STRING
    package = "lbclient.benchmarks.interop"
    file = descriptor_pb2.FileDescriptorProto(
        name="lbclient/benchmarks/interop.proto", package=package, syntax="proto3"
    )
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, label, kind in fields:
            one = message.field.add(name=label, number=number)
            several = kind.startswith("*")
            one.label = field.LABEL_REPEATED if several else field.LABEL_OPTIONAL
            one.type = types.get(kind, field.TYPE_MESSAGE)
            if kind not in types:
                one.type_name = f".{package}.{kind.lstrip('*')}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{package}.{name}")
        )
        for name in MESSAGES
    }


OF = declared()


def payload(size: int) -> Any:
    return OF["Payload"](body=bytes(size))


def said(status: grpc.StatusCode, details: str) -> Any:
    return OF["EchoStatus"](code=status.value[0], message=details)


# --- the server ------------------------------------------------------------------


async def echo_metadata(context: Any) -> None:
    given = dict(context.invocation_metadata())
    if INITIAL in given:
        await context.send_initial_metadata(((INITIAL, given[INITIAL]),))
    if TRAILING in given:
        context.set_trailing_metadata(((TRAILING, given[TRAILING]),))


async def echo_status(request: Any, context: Any) -> None:
    wanted = request.response_status
    if wanted.code:
        code = next(c for c in grpc.StatusCode if c.value[0] == wanted.code)
        await context.abort(code, wanted.message)


async def empty_call(request: Any, context: Any) -> Any:
    return Empty()


async def unary_call(request: Any, context: Any) -> Any:
    await echo_metadata(context)
    await echo_status(request, context)
    return OF["SimpleResponse"](payload=payload(request.response_size))


async def output_call(request: Any, context: Any) -> AsyncIterator[Any]:
    for each in request.response_parameters:
        await asyncio.sleep(each.interval_us / 1e6)
        yield OF["StreamingOutputCallResponse"](payload=payload(each.size))


async def input_call(requests: AsyncIterator[Any], context: Any) -> Any:
    sizes = [len(request.payload.body) async for request in requests]
    return OF["StreamingInputCallResponse"](aggregated_payload_size=sum(sizes))


async def duplex_call(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
    await echo_metadata(context)
    async for request in requests:
        await echo_status(request, context)
        async for response in output_call(request, context):
            yield response


def coded(method: Callable[..., Any], behaviour: Any, request: str) -> Any:
    def write(message: Any) -> bytes:
        data: bytes = message.SerializeToString()
        return data

    return method(behaviour, OF[request].FromString if request else None, write)


METHODS = {
    "EmptyCall": coded(grpc.unary_unary_rpc_method_handler, empty_call, ""),
    "UnaryCall": coded(
        grpc.unary_unary_rpc_method_handler, unary_call, "SimpleRequest"
    ),
    "StreamingOutputCall": coded(
        grpc.unary_stream_rpc_method_handler, output_call, "StreamingOutputCallRequest"
    ),
    "StreamingInputCall": coded(
        grpc.stream_unary_rpc_method_handler, input_call, "StreamingInputCallRequest"
    ),
    "FullDuplexCall": coded(
        grpc.stream_stream_rpc_method_handler, duplex_call, "StreamingOutputCallRequest"
    ),
}


# --- the cases --------------------------------------------------------------------


class Stub:
    """Calls, each with the codec of its answer."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    def _method(self, kind: str, path: str, response: Any) -> Any:
        def write(message: Any) -> bytes:
            data: bytes = message.SerializeToString()
            return data

        return getattr(self._channel, kind)(path, write, response.FromString)

    def empty(self, path: str = SERVICE + "EmptyCall") -> Any:
        return self._method("unary_unary", path, Empty)(Empty(), timeout=TIMEOUT)

    def unary(self, **more: Any) -> Any:
        metadata = more.pop("metadata", None)
        method = self._method(
            "unary_unary", SERVICE + "UnaryCall", OF["SimpleResponse"]
        )
        request = OF["SimpleRequest"](**more)
        return method(request, metadata=metadata, timeout=TIMEOUT)

    def output(self, sizes: tuple[int, ...]) -> Any:
        path, answer = (
            SERVICE + "StreamingOutputCall",
            OF["StreamingOutputCallResponse"],
        )
        method = self._method("unary_stream", path, answer)
        return method(asking(sizes), timeout=TIMEOUT)

    def input(self, requests: Any = None) -> Any:
        path, answer = SERVICE + "StreamingInputCall", OF["StreamingInputCallResponse"]
        return self._method("stream_unary", path, answer)(requests, timeout=TIMEOUT)

    def duplex(self, timeout: float = TIMEOUT, metadata: Any = None) -> Any:
        path, answer = SERVICE + "FullDuplexCall", OF["StreamingOutputCallResponse"]
        method = self._method("stream_stream", path, answer)
        return method(timeout=timeout, metadata=metadata)


def asking(sizes: tuple[int, ...], size: int = 0, **more: Any) -> Any:
    """A request of `size` bytes for answers of these sizes."""
    return OF["StreamingOutputCallRequest"](
        response_parameters=[OF["ResponseParameters"](size=each) for each in sizes],
        payload=payload(size),
        **more,
    )


async def empty_unary(stub: Stub) -> None:
    assert await stub.empty() == Empty()


async def large_unary(stub: Stub) -> None:
    answer = await stub.unary(
        response_size=LARGE_ANSWER, payload=payload(LARGE_REQUEST)
    )
    assert len(answer.payload.body) == LARGE_ANSWER


async def server_streaming(stub: Stub) -> None:
    call = stub.output(SIZES)
    assert [len((await call.read()).payload.body) for _ in SIZES] == [*SIZES]


async def client_streaming(stub: Stub) -> None:
    async def requests() -> AsyncIterator[Any]:
        for size in PAYLOADS:
            yield OF["StreamingInputCallRequest"](payload=payload(size))

    answer = await stub.input(requests())
    assert answer.aggregated_payload_size == sum(PAYLOADS)


async def ping_pong(stub: Stub) -> None:
    call = stub.duplex()
    for size, own in zip(SIZES, PAYLOADS, strict=True):
        await call.write(asking((size,), own))
        assert len((await call.read()).payload.body) == size
    await call.done_writing()
    assert (await call.code(), await call.details()) == (grpc.StatusCode.OK, "")


async def cancel_after_begin(stub: Stub) -> None:
    call = stub.input()
    call.cancel()
    assert call.cancelled()
    assert await call.code() is grpc.StatusCode.CANCELLED


async def cancel_after_first_response(stub: Stub) -> None:
    call = stub.duplex()
    await call.write(asking(SIZES[:1], PAYLOADS[0]))
    await call.read()
    call.cancel()
    try:
        await call.read()
    except asyncio.CancelledError:
        assert await call.code() is grpc.StatusCode.CANCELLED
    else:
        raise AssertionError("it was not cancelled")


async def timeout_on_sleeping_server(stub: Stub) -> None:
    call = stub.duplex(timeout=0.2)
    request = asking((1,), PAYLOADS[0])
    request.response_parameters[0].interval_us = 2_000_000
    with suppress(grpc.aio.AioRpcError):
        await call.write(request)
        await call.done_writing()
        await call.read()
    assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def empty_stream(stub: Stub) -> None:
    call = stub.duplex()
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


async def status_code_and_message(stub: Stub) -> None:
    wanted = said(UNKNOWN, DETAILS)
    unary = stub.unary(response_size=1, payload=payload(1), response_status=wanted)
    assert (await unary.code(), await unary.details()) == (UNKNOWN, DETAILS)
    call = stub.duplex()
    await call.write(asking((1,), 1, response_status=wanted))
    await call.done_writing()
    assert (await call.code(), await call.details()) == (UNKNOWN, DETAILS)


async def special_status_message(stub: Stub) -> None:
    call = stub.unary(response_status=said(UNKNOWN, SPECIAL))
    assert (await call.code(), await call.details()) == (UNKNOWN, SPECIAL)


async def unimplemented_method(stub: Stub) -> None:
    call = stub.empty(SERVICE + "UnimplementedCall")
    assert await call.code() is grpc.StatusCode.UNIMPLEMENTED


async def unimplemented_service(stub: Stub) -> None:
    call = stub.empty("/grpc.testing.UnimplementedService/UnimplementedCall")
    assert await call.code() is grpc.StatusCode.UNIMPLEMENTED


async def custom_metadata(stub: Stub) -> None:
    value, data = "test_initial_metadata_value", b"\x0a\x0b\x0a\x0b\x0a\x0b"
    metadata = ((INITIAL, value), (TRAILING, data))
    unary = stub.unary(response_size=1, payload=payload(1), metadata=metadata)
    call = stub.duplex(metadata=metadata)
    await call.write(asking((1,)))
    await call.read()
    await call.done_writing()
    for each in (unary, call):
        assert (await each.initial_metadata())[INITIAL] == value
        assert (await each.trailing_metadata())[TRAILING] == data


CASES: dict[str, Callable[[Stub], Awaitable[None]]] = {
    case.__name__: case
    for case in (
        empty_unary, large_unary, server_streaming, client_streaming, ping_pong,
        cancel_after_begin, cancel_after_first_response, timeout_on_sleeping_server,
        empty_stream, status_code_and_message, special_status_message,
        unimplemented_method, unimplemented_service, custom_metadata,
    )
}  # fmt: skip
SERVERS: dict[str, Callable[[], Any]] = {
    "lbclient": lbclient.server,
    "grpc.aio": grpc.aio.server,
}
CHANNELS: dict[str, Callable[[str], Any]] = {
    "lbclient": lbclient.insecure_channel,
    "grpc.aio": grpc.aio.insecure_channel,
}


async def pair(client: str, server_kind: str) -> dict[str, str]:
    """Of each case "holds", or what went wrong."""
    server = SERVERS[server_kind]()
    server.add_generic_rpc_handlers(
        handlers({SERVICE + name: method for name, method in METHODS.items()})
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    found = {}
    async with CHANNELS[client](f"127.0.0.1:{port}") as channel:
        for name, case in CASES.items():
            try:
                async with asyncio.timeout(TIMEOUT):
                    await case(Stub(channel))
                found[name] = "holds"
            except Exception as error:
                found[name] = f"{type(error).__name__}: {error}"
    await server.stop(None)
    return found


async def pairs() -> dict[str, dict[str, str]]:
    return {
        f"{client} client, {server} server": await pair(client, server)
        for client in CHANNELS
        for server in SERVERS
    }


def main() -> int:
    given = parser_of("grpc_interop", __doc__).parse_args()
    found = asyncio.run(pairs())
    print(table([["case", *found], *rows(found)]))
    told = [
        Measured(name=f"{name}: cases that hold", value=share, spread=(share, share))
        for name, each in found.items()
        for share in [sum(how == "holds" for how in each.values()) / len(CASES)]
    ]
    stock = found["grpc.aio client, grpc.aio server"]
    broken = [
        f"{name}: {case}: {how}"
        for name, each in found.items()
        for case, how in each.items()
        if how != "holds" and stock[case] == "holds"
    ]
    return conclude(given, found, broken, measured=told)


def rows(found: dict[str, dict[str, str]]) -> list[list[str]]:
    return [[case, *(each[case] for each in found.values())] for case in CASES]


if __name__ == "__main__":
    exit_with(main)
