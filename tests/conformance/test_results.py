"""What calls of all kinds answer, and how they fail."""

from typing import Any

import grpc
import pytest

from tests.conformance.both import (
    Side,
    answered,
    attempted,
    each_kind,
    each_sender,
    each_stream,
    end_of,
    on_both,
    outcome,
    receiving,
    responses,
)
from tests.conformance.script import KINDS

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
@each_kind
async def test_a_request_over_the_limit_is_not_sent(side: Side, kind: str) -> Any:
    channel = await side.open(options=(("grpc.max_send_message_length", 10),))
    call = await side.begin(kind, [b"x" * 11], on=channel)
    return await answered(call, kind), await end_of(call)


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
@pytest.mark.parametrize("form", SENT)
async def test_metadata_of_any_form_is_sent(side: Side, kind: str, form: str) -> Any:
    sent = SENT[form]
    told = (*sent, ("do", "seen")) if form != "generator" else ()
    if form == "Metadata":
        told = grpc.aio.Metadata(*told)
    elif form == "list":
        told = list(told)
    elif form == "generator":
        told = (pair for pair in (("do", "seen"), ("seen", "1")))
    call = await _given(side, kind, told)
    return await answered(call, kind), await end_of(call)


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


@on_both
@each_kind
@pytest.mark.parametrize("form", BAD_METADATA)
async def test_metadata_that_cannot_be_sent_is_an_error(
    side: Side, kind: str, form: str
) -> Any:
    try:
        call = await _given(side, kind, BAD_METADATA[form])
    except Exception as error:
        return "at once", type(error).__name__
    seen = await outcome(_first(call, kind), 0.3)
    return type(seen).__name__


async def _first(call: Any, kind: str) -> Any:
    return (await responses(call, receiving(kind)))[-1]


async def _given(side: Side, kind: str, metadata: Any) -> Any:
    method: Any = getattr(await side.channel(), kind)(f"/conformance.Script/{kind}")
    return method(b"a" if kind.startswith("unary") else iter([b"a"]), metadata=metadata)


@on_both
@each_kind
@pytest.mark.parametrize(
    "do", ["abort", "trailing abort", "refuse", "cancel", "status", "fail", "unusual"]
)
async def test_an_error_is_told_as_it_is(side: Side, kind: str, do: str) -> Any:
    # An iterator would go on writing, and grpc.aio sometimes tells of that instead.
    call = await side.begin(kind, sending="iterator" if do == "status" else "write", do=do)
    return await answered(call, kind), await end_of(call)


@on_both
@each_stream
@pytest.mark.parametrize("receiving", ["read", "iterate"])
@pytest.mark.parametrize("then", ["abort", "fail", "trailing"])
async def test_a_stream_ends_in_its_midst(
    side: Side, kind: str, receiving: str, then: str
) -> Any:
    call = await side.begin(kind, then=then)
    return await responses(call, receiving), await end_of(call)


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
@pytest.mark.parametrize("name", ["no slash", "", "/", "/a", "/ä/b"])
async def test_a_path_that_is_none_is_an_error(
    side: Side, kind: str, name: str
) -> Any:
    method = attempted(getattr(await side.channel(), kind), name)
    if isinstance(method, Exception):
        return method
    call = method(b"a" if kind.startswith("unary") else iter([b"a"]))
    return await answered(call, kind)


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
@each_kind
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
    code = await outcome(call.code(), 0.3)
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
@pytest.mark.parametrize("compression", list(grpc.Compression), ids=lambda c: c.name)
async def test_a_compressed_call_is_answered(
    side: Side, kind: str, level: str, compression: Any
) -> Any:
    on_channel = compression if level == "channel" else None
    on_call = compression if level == "call" else None
    channel = await side.open(compression=on_channel)
    call = await side.begin(
        kind, [b"x" * 5000], on=channel, do="compress", compression=on_call
    )
    return await answered(call, kind), await end_of(call)
