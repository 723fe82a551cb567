"""Sizes of messages, as gRFCs A66 and A72 have them, for who exports or traces."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

import lbclient
from lbclient import metrics
from lbclient.metrics import opentelemetry
from tests.hosts import PATH, Host, method_handler, unary_unary
from tests.waiting import eventually
from tests.wire.test_grpc_metrics import IDEMPOTENT, Seen, provider_to
from tests.wire.test_sync_server import sync_hosting

ARITIES = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
PATHS = {arity: f"/test.Sizes/{arity}" for arity in ARITIES}
REQUEST, REQUESTS = b"12345", (b"1", b"22", b"333")
SENT = {"unary": 5, "stream": 6}  # bytes of requests
RECEIVED = {"unary": 7, "stream": 12}  # bytes of responses
RESPONSE, RESPONSES = b"7777777", (b"4444", b"88888888", b"")

# By the name of a metric and the method.
EXPECTED = {
    (f"grpc.{side}_total_compressed_message_size", PATHS[arity][1:]): sizes[kind]
    for arity in ARITIES
    for request, response in [arity.split("_")]
    for side, sizes, kind in (
        ("client.attempt.sent", SENT, request),
        ("client.attempt.rcvd", RECEIVED, response),
        ("server.call.rcvd", SENT, request),
        ("server.call.sent", RECEIVED, response),
    )
}


class Async:
    async def unary_unary(self, _request: bytes, _context: Any) -> bytes:
        return RESPONSE

    async def unary_stream(
        self, _request: bytes, _context: Any
    ) -> AsyncIterator[bytes]:
        for response in RESPONSES:
            yield response

    async def stream_unary(self, requests: Any, _context: Any) -> bytes:
        assert tuple([request async for request in requests]) == REQUESTS
        return RESPONSE

    async def stream_stream(self, requests: Any, context: Any) -> None:
        assert tuple([request async for request in requests]) == REQUESTS
        for response in RESPONSES:
            await context.write(response)


class Sync:
    def unary_unary(self, _request: bytes, _context: Any) -> bytes:
        return RESPONSE

    def unary_stream(self, _request: bytes, _context: Any) -> Iterator[bytes]:
        yield from RESPONSES

    def stream_unary(self, requests: Any, _context: Any) -> bytes:
        assert tuple(requests) == REQUESTS
        return RESPONSE

    def stream_stream(self, requests: Any, _context: Any) -> Iterator[bytes]:
        assert tuple(requests) == REQUESTS
        yield from RESPONSES


def methods_of(servicer: object) -> dict[str, Any]:
    return {
        PATHS[arity]: method_handler(arity, getattr(servicer, arity))
        for arity in ARITIES
    }


def sizes(seen: Seen) -> dict[tuple[str, str], int]:
    return {
        (name, str(point.attributes["grpc.method"])): point.sum
        for name, points in seen.points().items()
        for point in points
        if name.endswith("_message_size")
    }


def ended(server: Any) -> int:
    return sum(server.statistics().requests.values())


async def until_ended(server: Any, requests: int) -> None:
    await eventually(lambda: ended(server) >= requests)


async def call_each(channel: grpc.aio.Channel, server: Any) -> None:
    """Streams are read after their end: a status must not overtake what is not read."""
    method: Any
    for arity, path in PATHS.items():
        method = getattr(channel, arity)(path)
        request, response = arity.split("_")
        before = ended(server)
        call = method(iter(REQUESTS) if request == "stream" else REQUEST)
        if response == "unary":
            assert await call == RESPONSE
        else:
            await until_ended(server, before + 1)
            assert [one async for one in call] == list(RESPONSES)


@pytest.mark.parametrize("servicer", [Async(), Sync()])
async def test_both_sides_have_the_sizes_of_all_four_kinds_of_calls(
    host: Host, servicer: object
) -> None:
    server, address, _ = await host(methods_of(servicer))
    seen = Seen()
    async with lbclient.insecure_channel(address) as channel:
        await call_each(channel, server)  # what is wrapped now is wrapped again
        opentelemetry.export(server, seen.provider)
        opentelemetry.export(channel, seen.provider)
        await call_each(channel, server)
        await eventually(lambda: sizes(seen) == EXPECTED, seen=lambda: sizes(seen))


async def test_a_synchronous_server_has_sizes_too() -> None:
    seen = Seen()
    with sync_hosting(methods_of(Sync())) as (server, address):
        opentelemetry.export(server, seen.provider)
        async with grpc.aio.insecure_channel(address) as channel:
            await call_each(channel, server)
        expected = {key: size for key, size in EXPECTED.items() if "server" in key[0]}
        await eventually(lambda: sizes(seen) == expected, seen=lambda: sizes(seen))


async def test_each_attempt_has_events_of_its_messages(host: Host) -> None:
    asked: list[bytes] = []

    async def second_time(request: bytes, context: Any) -> bytes:
        asked.append(request)
        if len(asked) == 1:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not yet")
        return RESPONSE

    _, address, _ = await host(unary_unary(second_time))
    spans, seen = InMemorySpanExporter(), Seen()
    async with lbclient.insecure_channel(address, config=IDEMPOTENT) as channel:
        opentelemetry.trace(channel, provider_to(spans))
        opentelemetry.export(channel, seen.provider)
        await channel.unary_unary(PATH)(REQUEST)
        counts = seen.counts()
    first, second, _ = spans.get_finished_spans()
    events = [
        [(event.name, dict(event.attributes or {})) for event in span.events]
        for span in (first, second)
    ]
    sent = ("Outbound message", {"sequence-number": 0, "message-size": 5})
    received = ("Inbound message", {"sequence-number": 0, "message-size": 7})
    assert events[0][-1] == sent
    assert events[1][-2:] == [sent, received]
    name = "grpc.client.attempt.sent_total_compressed_message_size"
    method = PATH.removeprefix("/")
    assert counts[name, method, "OK"] == counts[name, method, "UNAVAILABLE"] == 1
    name = "grpc.client.attempt.duration"
    assert counts[name, method, "OK"] == counts[name, method, "UNAVAILABLE"] == 1


async def test_a_traced_channel_may_be_exported_to_prometheus(host: Host) -> None:
    """Which counts durations, and no sizes."""
    server, address, _ = await host(methods_of(Async()))
    spans, registry = InMemorySpanExporter(), CollectorRegistry()
    async with lbclient.insecure_channel(address) as channel:
        metrics.export(channel, registry)
        opentelemetry.trace(channel, provider_to(spans))
        await call_each(channel, server)
        labels = {"target": address, "grpc_service": "test.Sizes", "grpc_code": "OK"}
        for arity in ARITIES:
            count = "lbclient_call_duration_seconds_count"
            found = {**labels, "grpc_method": arity}
            assert registry.get_sample_value(count, found) == 1
    assert len(spans.get_finished_spans()) == 2 * len(ARITIES)


async def test_a_stream_has_an_event_for_each_message(host: Host) -> None:
    _, address, _ = await host(methods_of(Async()))
    spans = InMemorySpanExporter()
    async with lbclient.insecure_channel(address) as channel:
        opentelemetry.trace(channel, provider_to(spans))
        method: Any = channel.stream_stream(PATHS["stream_stream"])
        assert [one async for one in method(iter(REQUESTS))] == list(RESPONSES)
    attempt, _ = spans.get_finished_spans()
    told = [
        (event.name.split()[0], *(event.attributes or {}).values())
        for event in attempt.events
        if event.name.endswith("message")
    ]
    assert [one for one in told if one[0] == "Outbound"] == [
        ("Outbound", number, len(request)) for number, request in enumerate(REQUESTS)
    ]
    assert [one for one in told if one[0] == "Inbound"] == [
        ("Inbound", number, len(response)) for number, response in enumerate(RESPONSES)
    ]
