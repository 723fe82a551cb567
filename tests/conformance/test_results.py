"""What calls of all kinds answer, and how they fail."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from tests.conformance.both import (
    NEVER,
    Side,
    answered,
    each_kind,
    each_sender,
    each_stream,
    end_of,
    on_both,
    once,
    outcome,
    responses,
)
from tests.conformance.script import KINDS

LONG = b"x" * 20_000
LARGE = b"x" * (5 << 20)  # over the 4 MB that grpc allows unasked
UNLIMITED = (("grpc.max_receive_message_length", -1),)
WAYS = [
    (kind, sending, receiving)
    for kind in KINDS
    for sending in (
        ("single",)
        if kind.startswith("unary")
        else ("iterator", "async iterator", "write")
    )
    for receiving in (("await",) if kind.endswith("unary") else ("read", "iterate"))
]


@on_both
@pytest.mark.parametrize(("kind", "sending", "receiving"), WAYS)
async def test_a_call_is_answered(
    side: Side, kind: str, sending: str, receiving: str
) -> Any:
    call = await side.begin(kind, sending=sending)
    before = (call.done(), call.cancelled(), call.time_remaining())
    written = []
    if sending == "write":
        written = [await call.write(part) for part in (b"a", b"b")]
        written.append(await call.done_writing())
    seen = await responses(call, receiving)
    return before, written, seen, await end_of(call)


@on_both
@each_kind
async def test_an_empty_message_is_a_message(side: Side, kind: str) -> Any:
    return await answered(await side.begin(kind, [b""]), kind)


@on_both
@each_sender
@pytest.mark.parametrize("sending", ["iterator", "async iterator", "write"])
async def test_a_stream_may_be_empty(side: Side, kind: str, sending: str) -> Any:
    call = await side.begin(kind, [], sending)
    if sending == "write":
        await call.done_writing()
    return await answered(call, kind), await end_of(call)


@on_both
@once
@each_kind
async def test_a_large_message_arrives_where_options_allow_it(
    side: Side, kind: str
) -> Any:
    channel = await side.open(options=UNLIMITED)
    return await answered(await side.begin(kind, [LARGE], on=channel), kind)


@on_both
@each_kind
async def test_a_message_over_the_limit_is_an_error(side: Side, kind: str) -> Any:
    call = await side.begin(kind, [LARGE])
    return await answered(call, kind), await end_of(call)


@on_both
@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream", "stream_unary"])
async def test_a_request_over_the_limit_is_not_sent(side: Side, kind: str) -> Any:
    channel = await side.open(options=(("grpc.max_send_message_length", 10),))
    call = await side.begin(kind, [b"x" * 11], on=channel)
    return await answered(call, kind), await end_of(call)


@on_both
async def test_a_request_over_the_limit_in_a_stream_says_so(side: Side) -> Any:
    channel = await side.open(options=(("grpc.max_send_message_length", 10),))
    call = await side.begin("stream_stream", [b"x" * 11], on=channel)
    await answered(call, "stream_stream")
    return await call.code(), "larger than max" in await call.details()


@on_both
@each_kind
async def test_metadata_arrives(side: Side, kind: str) -> Any:
    call = await side.begin(kind, do="initial trailing")
    return await answered(call, kind), await end_of(call)


@on_both
@each_kind
async def test_initial_metadata_comes_before_the_answer(side: Side, kind: str) -> Any:
    call = await side.begin(kind, do="initial", then="nap")
    initial = await call.initial_metadata()
    return initial, call.done(), await answered(call, kind)


@on_both
@each_kind
async def test_a_key_may_come_twice(side: Side, kind: str) -> Any:
    call = await side.begin(kind, do="repeated")
    await answered(call, kind)
    trailing = await call.trailing_metadata()
    return trailing, trailing["again"], trailing.get_all("again"), len(trailing)


SENT: dict[str, Any] = {
    "text": (("seen", "1"),),
    "twice": (("seen", "1"), ("seen", "2")),
    "binary": (("seen-bin", b"\0\xff"),),
    "Metadata": grpc.aio.Metadata(("seen", "1"), ("seen-bin", b"\0")),
    "list": [("seen", "1")],
    "generator": "made in the case, for it can be read but once",
}


@on_both
@each_kind
async def test_metadata_of_any_form_is_sent(side: Side, kind: str) -> Any:
    return {form: await _sent(side, kind, form) for form in SENT}


async def _sent(side: Side, kind: str, form: str) -> Any:
    sent = SENT[form]
    told: Any = (*sent, ("do", "seen")) if form != "generator" else ()
    if form == "Metadata":
        told = grpc.aio.Metadata(*told)
    elif form == "list":
        told = list(told)
    elif form == "generator":
        told = (pair for pair in (("do", "seen"), ("seen", "1")))
    call = await _given(side, kind, told)
    return await answered(call, kind), await end_of(call)


@on_both
@each_kind
async def test_metadata_is_sent_as_it_was_when_the_call_was_made(
    side: Side, kind: str
) -> Any:
    channel = await side.channel()
    metadata = grpc.aio.Metadata(("do", "seen"), ("seen", "0"))
    calls = []
    for number in "123":
        metadata["seen"] = number
        method: Any = getattr(channel, kind)(f"/conformance.Script/{kind}")
        request: Any = b"a" if kind.startswith("unary") else iter([b"a"])
        calls.append(method(request, metadata=metadata))
    metadata["seen"] = "4"
    return [(await answered(call, kind), await end_of(call)) for call in calls]


BAD_METADATA: dict[str, Any] = {
    "a dict": {"a": "b"},
    "upper case": (("Seen", "1"),),
    "a number": (("seen", 1),),
    "bytes in a text key": (("seen", b"\xff\0"),),
    "text in a binary key": (("seen-bin", "text"),),
    "a space in a key": (("se en", "1"),),
    "a line break": (("seen", "1\n2"),),
    "not ASCII": (("seen", "☃"),),
    "an empty key": (("", "1"),),
    "triples": (("seen", "1", "2"),),
    "a number alone": 7,
}
# With characters that gRPC does not allow.
NOT_ALLOWED = (
    *("upper case", "bytes in a text key", "a space in a key", "a line break"),
    *("not ASCII", "an empty key"),
)


@on_both
@each_kind
async def test_metadata_that_cannot_be_sent_is_an_error(side: Side, kind: str) -> Any:
    """But see `test_a_unary_call_with_characters_that_are_not_allowed_says_so`."""
    is_unary = kind == "unary_unary"
    forms = [one for one in BAD_METADATA if not (is_unary and one in NOT_ALLOWED)]
    return await _errors(side, kind, forms)


@on_both
async def test_a_unary_call_with_characters_that_are_not_allowed_says_so(
    side: Side,
) -> Any:
    errors = await _errors(side, "unary_unary", NOT_ALLOWED)
    [seen] = {tuple(error) for error in errors.values()}
    return list(seen)


async def _errors(side: Side, kind: str, forms: Iterable[str]) -> Any:
    seen = {}
    for form in forms:
        metadata = BAD_METADATA[form]
        call = await outcome(_given(side, kind, metadata))
        if isinstance(call, Exception):
            seen[form] = ["at once", type(call).__name__]
        else:
            answers = await outcome(answered(call, kind), 1.0)
            seen[form] = ["later", type(answers[-1]).__name__]
    return seen


async def _given(side: Side, kind: str, metadata: Any) -> Any:
    method: Any = getattr(await side.channel(), kind)(f"/conformance.Script/{kind}")
    return method(b"a" if kind.startswith("unary") else iter([b"a"]), metadata=metadata)


@on_both
@each_kind
async def test_an_error_is_told_as_it_is(side: Side, kind: str) -> Any:
    errors = ("abort", "trailing abort", "refuse", "cancel", "status", "fail")
    seen = {}
    for do in (*errors, "unusual"):
        # An iterator would go on writing, of which grpc.aio sometimes tells instead.
        sending = "iterator" if do == "status" else "write"
        call = await side.begin(kind, sending=sending, do=do)
        seen[do] = await answered(call, kind), await end_of(call)
    return seen


@on_both
@each_stream
@pytest.mark.parametrize("receiving", ["read", "iterate"])
async def test_a_stream_ends_in_its_midst(side: Side, kind: str, receiving: str) -> Any:
    """With one request: a write that meets the end gives grpc.aio another status."""
    seen = []
    for then in ("abort", "fail", "trailing"):
        call = await side.begin(kind, sending="write", then=then)
        if kind.startswith("stream"):
            await call.write(b"a")
            if then == "trailing":
                await call.done_writing()
        seen.append((await responses(call, receiving), await end_of(call)))
    return seen


@on_both
@each_kind
async def test_a_method_that_is_not_there_is_unimplemented(
    side: Side, kind: str
) -> Any:
    method: Any = getattr(await side.channel(), kind)("/conformance.Script/Nothing")
    call = method(b"a") if kind.startswith("unary") else method()
    return await answered(call, kind), await end_of(call)


@on_both
@each_kind
async def test_a_path_that_is_none_is_an_error(side: Side, kind: str) -> Any:
    make: Any = getattr(await side.channel(), kind)
    methods = [make(name) for name in ("no slash", "", "/", "/a", "/ä/b")]
    is_unary = kind.startswith("unary")
    calls = [method(b"a") if is_unary else method() for method in methods]
    return [await answered(call, kind) for call in calls]


def broken(_: Any) -> Any:
    raise KeyError("no form")


@on_both
@each_kind
async def test_serializers_make_and_read_the_bytes(side: Side, kind: str) -> Any:
    channel = await side.channel()
    method: Any = getattr(channel, kind)(
        f"/conformance.Script/{kind}",
        request_serializer=lambda text: text.encode(),
        response_deserializer=lambda data: data.decode().upper(),
    )
    call = method("a" if kind.startswith("unary") else iter(["a", "b"]))
    return await answered(call, kind)


@on_both
@each_kind
async def test_a_response_that_cannot_be_read_is_an_error(
    side: Side, kind: str, caplog: pytest.LogCaptureFixture
) -> Any:
    channel = await side.channel()
    method: Any = getattr(channel, kind)(
        f"/conformance.Script/{kind}", response_deserializer=broken
    )
    call = method(b"a" if kind.startswith("unary") else iter([b"a"]))
    return await answered(call, kind)


@on_both
@each_stream
@pytest.mark.parametrize("receiving", ["read", "iterate"])
async def test_a_stream_goes_on_after_a_response_that_cannot_be_read(
    side: Side, kind: str, receiving: str, caplog: pytest.LogCaptureFixture
) -> Any:
    def number(data: bytes) -> int:
        return int(data)

    channel = await side.channel()
    method: Any = getattr(channel, kind)(
        f"/conformance.Script/{kind}", response_deserializer=number
    )
    parts = [b"1", b"two", b"3"]
    call = method(b",".join(parts) if kind.startswith("unary") else iter(parts))
    first = await responses(call, receiving)
    return first, await responses(call, receiving), await end_of(call)


@on_both
@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream"])
async def test_a_request_that_cannot_be_serialized_is_an_error(
    side: Side, kind: str, caplog: pytest.LogCaptureFixture
) -> Any:
    channel = await side.channel()
    method: Any = getattr(channel, kind)(
        f"/conformance.Script/{kind}", request_serializer=broken
    )
    call = method(b"a" if kind.startswith("unary") else iter([b"a"]))
    return await answered(call, kind)


@on_both
@each_sender
async def test_requests_of_which_one_cannot_be_serialized(
    side: Side, kind: str, caplog: pytest.LogCaptureFixture
) -> Any:
    channel = await side.channel()
    method: Any = getattr(channel, kind)(
        f"/conformance.Script/{kind}", request_serializer=broken
    )
    call = method([b"a"])
    return await answered(call, kind), await end_of(call)


@on_both
@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream"])
async def test_a_call_that_could_not_be_serialized_is_over(
    side: Side, kind: str, caplog: pytest.LogCaptureFixture
) -> Any:
    channel = await side.channel()
    method: Any = getattr(channel, kind)(
        f"/conformance.Script/{kind}", request_serializer=broken
    )
    call = method(b"a")
    await answered(call, kind)
    code = await outcome(call.code(), NEVER)
    return call.done(), call.cancelled(), code, call.cancel()


@on_both
@each_kind
async def test_a_request_that_is_not_bytes_is_an_error(side: Side, kind: str) -> Any:
    method: Any = getattr(await side.channel(), kind)(f"/conformance.Script/{kind}")
    call = method("text" if kind.startswith("unary") else iter(["text"]))
    return type((await answered(call, kind))[-1]).__name__


@on_both
@each_sender
async def test_a_write_that_cannot_be_serialized_is_an_error(
    side: Side, kind: str, caplog: pytest.LogCaptureFixture
) -> Any:
    channel = await side.channel()
    method: Any = getattr(channel, kind)(
        f"/conformance.Script/{kind}", request_serializer=broken
    )
    call = method()
    seen = await outcome(call.write(b"a"))
    done = call.done()
    await call.done_writing()
    return seen, done, await answered(call, kind)


@on_both
@each_kind
async def test_a_deadline_is_told_to_the_server(side: Side, kind: str) -> Any:
    seen = []
    for timeout in (None, 30, 7.4):
        call = await side.begin(kind, do="deadline", timeout=timeout)
        await answered(call, kind)
        seen.append(await call.trailing_metadata())
    return seen


@on_both
@each_kind
@pytest.mark.parametrize("level", ["call", "channel"])
async def test_a_call_is_compressed(side: Side, kind: str, level: str) -> Any:
    """By the bytes that pass on the wire, of a message that is easy to compress."""
    seen = []
    for compression in grpc.Compression:
        on_channel = compression if level == "channel" else None
        on_call = compression if level == "call" else None
        async with counting(side.address) as (address, count):
            channel = side.insecure(address, compression=on_channel)
            await channel.channel_ready()
            before = count()
            call = await side.begin(
                kind, [LONG], on=channel, do="compress", compression=on_call
            )
            answers = await answered(call, kind)
            is_small = count() - before < len(LONG)
            seen.append((compression, answers, is_small, await end_of(call)))
            await channel.close()
    return seen


@asynccontextmanager
async def counting(address: str) -> AsyncIterator[tuple[str, Callable[[], int]]]:
    """A proxy before a server, and how many bytes clients have sent through it."""
    count = 0
    pumps = []

    async def pump(reader: Any, writer: Any, is_client: bool) -> None:
        nonlocal count
        try:
            while data := await reader.read(1 << 16):
                count += len(data) if is_client else 0
                writer.write(data)
        finally:
            writer.close()

    async def connected(reader: Any, writer: Any) -> None:
        from_server, to_server = await asyncio.open_connection(*address.split(":"))
        pumps.append(asyncio.create_task(pump(reader, to_server, True)))
        pumps.append(asyncio.create_task(pump(from_server, writer, False)))

    proxy = await asyncio.start_server(connected, "127.0.0.1", 0)
    port = proxy.sockets[0].getsockname()[1]
    try:
        yield f"127.0.0.1:{port}", lambda: count
    finally:
        proxy.close()
        for task in pumps:
            task.cancel()  # a closed channel's connection lives as long as its calls
        await asyncio.gather(*pumps, return_exceptions=True)
