"""Metadata that no gRPC library would send, in frames of HTTP/2 written by hand."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from grpc import StatusCode

from benchmarks import frames
from lbclient import wire
from lbclient.core.criticality import current
from tests import needs
from tests.hosts import PATH, Hosted, hosting, unary_unary

NAMES = {code.value[0]: code.name for code in StatusCode}


@pytest.fixture
async def hosted() -> AsyncIterator[Hosted]:
    async def look(_request: bytes, _context: Any) -> bytes:
        return repr(current()).encode()

    async with hosting(unary_unary(look), default_quota=1000.0) as hosted:
        yield hosted


async def ask(port: int, *metadata: tuple[bytes, bytes]) -> tuple[str, bytes]:
    """How a call with such header fields ends, and what its handler said."""
    block = frames.request(PATH, f"127.0.0.1:{port}", "CRITICAL", 20.0)
    key = wire.CRITICALITY_KEY.encode()
    block = block[: block.rindex(key) - 2]  # without what that has of ours
    block += b"".join(frames.literal(*item) for item in metadata)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        frames.PREFACE
        + frames.frame(frames.SETTINGS, 0, 0, frames.WANTS)
        + frames.frame(frames.HEADERS, frames.END_HEADERS, 1, block)
        + frames.frame(frames.DATA, frames.END_STREAM, 1, frames.EMPTY)
    )
    said = b""
    try:
        while True:
            head = await reader.readexactly(9)
            kind, flags = head[3], head[4]
            payload = await reader.readexactly(int.from_bytes(head[:3]))
            if kind == frames.SETTINGS and not flags & frames.ACK:
                writer.write(frames.frame(frames.SETTINGS, frames.ACK, 0))
            elif kind == frames.DATA:
                said += payload[5:]
            elif kind == frames.HEADERS and flags & frames.END_STREAM:
                return NAMES[int(frames.field(payload, frames.STATUS))], said
            elif kind in (frames.RST_STREAM, frames.GOAWAY):
                return f"frame {kind}", said
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def test_a_request_written_by_hand_is_understood(hosted: Hosted) -> None:
    """Or the tests below could not fail."""
    server, port = hosted.server, hosted.port
    criticality = (wire.CRITICALITY_KEY.encode(), b"sheddable")
    customer = (wire.CUSTOMER_KEY.encode(), b"mail")
    assert await ask(port, criticality, customer) == (
        "OK",
        b"<Criticality.SHEDDABLE: 0>",
    )
    assert "mail" in server.statistics().usage
    assert not any(server.statistics().misread.values())


RAW = [
    b"\xff\xfe\xfd",
    b"\x80CRITICAL",
    b"CRITICAL\xc3",
    "CRITICAL\N{NO-BREAK SPACE}".encode(),
    b"\x7f",
    b"",
]


@pytest.mark.parametrize("value", RAW, ids=repr)
@pytest.mark.parametrize("key", [wire.CRITICALITY_KEY, wire.ATTEMPT_KEY])
async def test_bytes_that_are_no_text_count_as_misread(
    hosted: Hosted, key: str, value: bytes
) -> None:
    server, port = hosted.server, hosted.port
    for _ in range(2):
        assert await asyncio.wait_for(ask(port, (key.encode(), value)), 20) == (
            "OK",
            b"None",
        )
    misread = server.statistics().misread
    assert misread == {**dict.fromkeys(misread, 0), key: 2}
    assert server.statistics().active == 0


@pytest.mark.parametrize(
    ("value", "status", "misread"),
    [
        (b"1", "OK", 0),
        (b"100", "OK", 1),
        (b"4294967295", "OK", 1),
        (b"4294967296", "INTERNAL", 0),
        (b"-1", "INTERNAL", 0),
        (b"one", "INTERNAL", 0),
        (b"\xff\xfe", "INTERNAL", 0),
        (b"", "INTERNAL", 0),
    ],
)
async def test_grpc_itself_refuses_a_number_of_its_retries_that_is_none(
    hosted: Hosted, value: bytes, status: str, misread: int
) -> None:
    """Before any code in Python; the next request is served."""
    if status == "INTERNAL":
        needs.grpcio("1.84", "it ends the stream without a status")
    field = (wire.STOCK_ATTEMPT_KEY.encode(), value)
    assert (await asyncio.wait_for(ask(hosted.port, field), 20))[0] == status
    assert hosted.server.statistics().misread[wire.STOCK_ATTEMPT_KEY] == misread
    assert (await asyncio.wait_for(ask(hosted.port), 20))[0] == "OK"


@pytest.mark.parametrize("value", RAW, ids=repr)
async def test_a_customer_whose_name_is_no_text_is_a_customer(
    hosted: Hosted, value: bytes
) -> None:
    server, port = hosted.server, hosted.port
    name = (wire.CUSTOMER_KEY.encode(), value)
    assert (await asyncio.wait_for(ask(port, name), 20))[0] == "OK"
    for customer in server.statistics().usage:
        customer.encode()  # so that a store can be told


@pytest.mark.parametrize("value", [b"\xff\xfe", b"!", b"", b"AA", b"=A=="], ids=repr)
async def test_bytes_that_are_no_base64_harm_nobody(
    hosted: Hosted, value: bytes
) -> None:
    """gRPC may end such a request; the next one is served, on the same server."""
    port = hosted.port
    for key in ("lbclient-load-bin", "lbclient-criticality-bin", "x-bin"):
        await asyncio.wait_for(ask(port, (key.encode(), value)), 20)
        assert (await asyncio.wait_for(ask(port), 20))[0] == "OK"
