"""Traces, where the standard variables of OpenTelemetry say to send them.

OTEL_EXPORTER_OTLP_ENDPOINT names a collector; OTEL_TRACES_EXPORTER=console prints.
"""

import os

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    ConsoleSpanExporter,
    SimpleSpanProcessor,
)


def start(service: str) -> TracerProvider:
    """In each worker, after the fork: the exporter has a thread.

    Whoever starts it shuts it down, so that the last spans are sent.
    """
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    if os.environ.get("OTEL_TRACES_EXPORTER") == "console":
        provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
    elif os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider
