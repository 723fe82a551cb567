"""OpenTelemetry as gRPC defines it: its names, attributes, counts, and spans."""

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry import propagate, trace
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.metrics import Counter as CounterInstrument
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    InMemoryMetricReader,
)
from opentelemetry.sdk.metrics.view import DropAggregation, View
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics import exposition

import lbclient
from lbclient import metrics
from lbclient.core.statistics.call_times import BOUNDS
from lbclient.metrics import opentelemetry
from lbclient.wire.codes import STATUS_OF_NUMBER
from tests import needs
from tests.hosts import PATH, Host, unary_stream, unary_unary

DELTA = AggregationTemporality.DELTA
WORKLOAD = (0, 0, 0, 5, 0, 14, 13)  # the numbers of the statuses that are asked for
METHOD = PATH.removeprefix("/")
LIST = f"{PATH}s"
IDEMPOTENT = lbclient.ChannelConfig(idempotent=(PATH,), throttle=0)

Counts = dict[tuple[str, ...], int]
"""By the metric's name and the values of grpc.method and grpc.status."""


async def as_asked(request: bytes, context: Any) -> bytes:
    code = STATUS_OF_NUMBER[int(request)]
    if code is not grpc.StatusCode.OK:
        await context.abort(code, "as asked for")
    return request


async def call_all(channel: Any, workload: tuple[int, ...] = WORKLOAD) -> None:
    method = channel.unary_unary(PATH)
    for number in workload:
        call = method(str(number).encode())
        assert (await call.code()).value[0] == number


class Seen:
    def __init__(self, views: Sequence[View] = (), **reader: Any) -> None:
        self._reader = InMemoryMetricReader(**reader)
        self.provider = MeterProvider(
            [self._reader], shutdown_on_exit=False, views=views
        )

    def points(self) -> dict[str, list[Any]]:
        data = self._reader.get_metrics_data()
        if data is None:
            return {}
        scopes = data.resource_metrics[0].scope_metrics
        found = [metric for scope in scopes for metric in scope.metrics]
        assert len({metric.name for metric in found}) == len(found)
        return {metric.name: list(metric.data.data_points) for metric in found}

    def _grpcs(self) -> Iterator[tuple[tuple[str, ...], Any]]:
        for name, points in self.points().items():
            for point in points if name.startswith("grpc.") else ():
                of = [point.attributes.get(f"grpc.{it}") for it in ("method", "status")]
                yield (name, *(one for one in of if one)), point

    def counts(self) -> Counts:
        return {
            key: getattr(point, "count", None) or point.value
            for key, point in self._grpcs()
        }

    def sizes(self) -> Counts:
        """Bytes of messages."""
        return {
            key: point.sum
            for key, point in self._grpcs()
            if key[0].endswith("message_size")
        }


async def workload(host: Host) -> tuple[Seen, str]:
    """Calls all, on an exported server and channel; and the server's address."""
    server, address, _ = await host(unary_unary(as_asked))
    seen = Seen()
    opentelemetry.export(server, seen.provider)
    async with lbclient.insecure_channel(address) as channel:
        opentelemetry.export(channel, seen.provider)
        await call_all(channel)
        seen.points()  # what is read last outlives the channel
    return seen, address


# What gRFC A66 makes of the workload.
EXPECTED: Counts = {
    ("grpc.client.attempt.started", METHOD): len(WORKLOAD),
    ("grpc.server.call.started", METHOD): len(WORKLOAD),
    **{
        (f"grpc.{name}.duration", METHOD, STATUS_OF_NUMBER[number].name): count
        for number, count in Counter(WORKLOAD).items()
        for name in ("client.attempt", "client.call", "server.call")
    },
    **{
        (
            f"grpc.{name}_total_compressed_message_size",
            METHOD,
            STATUS_OF_NUMBER[number].name,
        ): count
        for number, count in Counter(WORKLOAD).items()
        for name in (
            *("client.attempt.sent", "client.attempt.rcvd"),
            *("server.call.sent", "server.call.rcvd"),
        )
    },
}


async def test_calls_attempts_and_requests_have_grpcs_names_and_counts(
    host: Host,
) -> None:
    seen, address = await workload(host)
    assert seen.counts() == EXPECTED
    points = seen.points()
    for point in points["grpc.client.call.duration"]:
        assert point.explicit_bounds == BOUNDS
        assert len(point.bucket_counts) == len(BOUNDS) + 1
        assert point.attributes["grpc.target"] == f"dns:///{address}"
        assert 0.0 < point.min <= point.sum <= point.max * point.count
    for point in points["grpc.server.call.duration"]:
        assert "grpc.target" not in point.attributes


async def test_the_counts_are_those_of_grpcs_own_plugin(host: Host) -> None:
    """Of its sync client and server, in a process of their own: it is for all of one.

    It pins the version of grpcio, so it is not among what the tests install.
    """
    if find_spec("grpc_observability") is None:
        needs.skip("pip install grpcio-observability==<the version of grpcio>")
    program = Path(__file__).parent / "plugin_counts.py"
    told = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, str(program), PATH, json.dumps(WORKLOAD)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert told.returncode == 0, told.stderr
    theirs = {tuple(key): count for key, *count in json.loads(told.stdout)}
    seen, _ = await workload(host)
    bytes_of = seen.sizes()
    assert theirs == {
        key: [count, bytes_of.get(key)]
        for key, count in seen.counts().items()
        if "client.call" not in key[0]
    }


async def test_a_retried_call_has_one_duration_and_two_attempts(host: Host) -> None:
    asked: list[bytes] = []

    async def second_time(request: bytes, context: Any) -> bytes:
        asked.append(request)
        if len(asked) == 1:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not yet")
        return request

    _, address, _ = await host(unary_unary(second_time))
    seen, registry = Seen(), CollectorRegistry()
    async with lbclient.insecure_channel(address, config=IDEMPOTENT) as channel:
        opentelemetry.export(channel, seen.provider)
        metrics.export(channel, registry)
        await channel.unary_unary(PATH)(b"")
        counts = seen.counts()
        labels = {"target": address, "grpc_service": METHOD.split("/")[0]}
        labels |= {"grpc_method": METHOD.split("/")[1]}
        shown = {
            (what, code): registry.get_sample_value(
                f"lbclient_{what}_duration_seconds_count", {**labels, "grpc_code": code}
            )
            for what in ("call", "attempt")
            for code in ("OK", "Unavailable")
        }
    assert counts["grpc.client.call.duration", METHOD, "OK"] == 1
    assert counts["grpc.client.attempt.duration", METHOD, "UNAVAILABLE"] == 1
    assert counts["grpc.client.attempt.duration", METHOD, "OK"] == 1
    assert counts["grpc.client.call.retries", METHOD] == 1
    assert counts["grpc.client.call.retry_delay", METHOD] == 1
    assert shown == {
        ("call", "OK"): 1,
        ("call", "Unavailable"): None,
        ("attempt", "OK"): 1,
        ("attempt", "Unavailable"): 1,
    }


async def test_a_reader_of_differences_gets_what_was_new(host: Host) -> None:
    _, address, _ = await host(unary_unary(as_asked))
    seen = Seen(preferred_temporality={Histogram: DELTA, CounterInstrument: DELTA})
    async with lbclient.insecure_channel(address) as channel:
        opentelemetry.export(channel, seen.provider)
        for count in (2, 3):
            await call_all(channel, (0,) * count)
            assert seen.counts()["grpc.client.call.duration", METHOD, "OK"] == count
        assert ("grpc.client.call.duration", METHOD, "OK") not in seen.counts()


DROP = DropAggregation()


@pytest.mark.parametrize(
    ("views", "durations", "sizes"),
    [
        ((View(instrument_name="grpc.*_message_size", aggregation=DROP),), True, False),
        ((View(meter_name="lbclient", aggregation=DROP),), False, False),
        (
            (
                View(instrument_name="*", aggregation=DROP),
                View(instrument_name="grpc.client.call.duration"),
            ),
            True,
            False,
        ),
        ((View(instrument_type=CounterInstrument, aggregation=DROP),), True, True),
    ],
)
async def test_a_view_that_drops_a_histogram_is_heeded(
    host: Host, views: tuple[View, ...], durations: bool, sizes: bool
) -> None:
    _, address, _ = await host(unary_unary(as_asked))
    seen = Seen(views=views)
    async with lbclient.insecure_channel(address) as channel:
        opentelemetry.export(channel, seen.provider)
        await call_all(channel, (0,))
        names = seen.points().keys()
    assert ("grpc.client.call.duration" in names) is durations
    size = "grpc.client.attempt.sent_total_compressed_message_size"
    assert (size in names) is sizes


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


def provider_to(exporter: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


async def test_each_attempt_has_a_span_with_backend_number_wait_and_reason(
    host: Host, spans: InMemorySpanExporter
) -> None:
    headers: list[str] = []

    async def second_time(request: bytes, context: Any) -> bytes:
        found = [v for k, v in context.invocation_metadata() if k == "traceparent"]
        headers.extend(found)
        if len(headers) == 1:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not yet")
        return request

    _, address, _ = await host(unary_unary(second_time))
    provider = provider_to(spans)
    async with lbclient.insecure_channel(address, config=IDEMPOTENT) as channel:
        opentelemetry.trace(channel, provider)
        opentelemetry.trace(channel, provider)  # once more is never too much
        with provider.get_tracer("test").start_as_current_span("page") as page:
            await channel.unary_unary(PATH)(b"")
    first, second, sent, _ = spans.get_finished_spans()
    name = METHOD.replace("/", ".")
    assert [one.name for one in (first, sent)] == [f"Attempt.{name}", f"Sent.{name}"]
    assert sent.parent == page.get_span_context()
    assert first.parent == second.parent == sent.context
    ids = [f"{one.context.span_id:016x}" for one in (first, second)]
    assert [header.split("-")[2] for header in headers] == ids
    assert first.attributes is not None
    assert second.attributes is not None
    assert first.attributes["lbclient.backend"] == address
    assert first.attributes["lbclient.wait"] > 0.0  # type: ignore[operator]  # a float
    told = [dict(one.attributes or {}) for one in (first, second)]
    numbers = [one["lbclient.attempt"] for one in told]
    before = [one["previous-rpc-attempts"] for one in told]
    assert (numbers, before) == ([1, 2], [0, 1])
    assert str(second.attributes["lbclient.reason"]).startswith("attempt 2 of 3")
    assert str(first.status.description).startswith("UNAVAILABLE, attempt 2 of 3")
    assert sent.status.status_code is trace.StatusCode.OK


class Broken(SpanProcessor):
    def on_end(self, span: object) -> None:
        raise ValueError("no room")


async def test_a_span_processor_that_raises_costs_no_call(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    _, address, _ = await host(unary_unary(as_asked))
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Broken())
    async with lbclient.insecure_channel(address) as channel:
        opentelemetry.trace(channel, provider)
        await call_all(channel)
        assert channel.statistics().in_flight == 0
    assert "a span processor failed" in caplog.text


class Capitals(TextMapPropagator):
    """Has a key as X-Ray's, and one that gRPC cannot send."""

    fields = {"X-Amzn-Trace-Id", "baggage ü", "baggage-list"}  # noqa: RUF012  # as declared there

    def inject(self, carrier: Any, context: Any = None, setter: Any = None) -> None:
        span = trace.get_current_span(context).get_span_context()
        carrier["X-Amzn-Trace-Id"] = f"Root=1;Parent={span.span_id:016x}"
        carrier["baggage ü"] = "of a peer"
        carrier["baggage-list"] = ["no text"]

    def extract(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


@pytest.fixture
def capitals() -> Iterator[None]:
    before = propagate.get_global_textmap()
    propagate.set_global_textmap(Capitals())
    yield
    propagate.set_global_textmap(before)


@pytest.mark.usefixtures("capitals")
async def test_a_propagators_keys_are_sent_in_lower_case_and_illegal_ones_left_out(
    host: Host, spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    """The core refused the batch: unary calls raised, but were in flight for ever, and
    streams hung."""
    seen: list[list[str]] = []

    async def second_time(request: bytes, context: Any) -> bytes:
        pairs = context.invocation_metadata()
        assert not [key for key, _ in pairs if key.startswith("baggage")]
        seen.append([value for key, value in pairs if key == "x-amzn-trace-id"])
        if len(seen) == 1:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not yet")
        return request

    async def messages(request: bytes, context: Any) -> Any:
        yield await second_time(request, context)

    _, address, _ = await host(
        {PATH: unary_unary(second_time), LIST: unary_stream(messages)}
    )
    async with lbclient.insecure_channel(address, config=IDEMPOTENT) as channel:
        opentelemetry.trace(channel, provider_to(spans))
        assert await channel.unary_unary(PATH)(b"a", timeout=20) == b"a"
        stream = channel.unary_stream(LIST)(b"b", timeout=20)
        assert [message async for message in stream] == [b"b"]
        assert channel.statistics().in_flight == 0
    attempts = [
        one for one in spans.get_finished_spans() if one.name.startswith("Attempt")
    ]
    ids = [f"Root=1;Parent={one.context.span_id:016x}" for one in attempts]
    assert seen == [[each] for each in ids]
    [line] = [one for one in caplog.messages if "baggage" in one]
    assert "gRPC does not allow" in line


async def test_a_sampled_trace_is_an_exemplar_of_its_bucket(
    host: Host, spans: InMemorySpanExporter
) -> None:
    _, address, _ = await host(unary_unary(as_asked))
    provider, registry, seen = provider_to(spans), CollectorRegistry(), Seen()
    async with lbclient.insecure_channel(address) as channel:
        metrics.export(channel, registry)
        opentelemetry.export(channel, seen.provider)
        with provider.get_tracer("test").start_as_current_span("page") as page:
            await call_all(channel, (0,))
        text = exposition.generate_latest(registry).decode()  # type: ignore[no-untyped-call]
        (point,) = seen.points()["grpc.client.call.duration"]
    trace_id = page.get_span_context().trace_id
    lines = [line for line in text.splitlines() if f"{trace_id:032x}" in line]
    assert len(lines) == 2  # of the call and of the attempt
    assert all("_duration_seconds_bucket" in line for line in lines)
    assert [one.trace_id for one in point.exemplars] == [trace_id]


async def test_the_scheduler_of_weighted_round_robin_has_grpcs_names(
    host: Host,
) -> None:
    _, address, _ = await host(unary_unary(as_asked))
    config = lbclient.ChannelConfig(picker="weighted_round_robin")
    seen = Seen()
    async with lbclient.insecure_channel(address, config=config) as channel:
        opentelemetry.export(channel, seen.provider)
        await call_all(channel, (0,))
        found = {key[0]: n for key, n in seen.counts().items() if ".lb." in key[0]}
    assert found["grpc.lb.wrr.rr_fallback"] >= 1
    assert found["grpc.lb.wrr.endpoint_weights"] >= 1
    assert found["grpc.lb.wrr.endpoint_weight_not_yet_usable"] >= 1
    assert found["grpc.lb.wrr.endpoint_weight_stale"] == 0
