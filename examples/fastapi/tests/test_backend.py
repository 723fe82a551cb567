"""The backend over loopback: its token, whom a call is for, and one trace of all."""

from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
from conftest import OF_BOB, TOKEN
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from shop import telemetry
from shop.app import api
from shop.backend import make_server
from shop.catalog import Catalog, of_worker

import lbclient
from lbclient.metrics import opentelemetry


class Seen(grpc.aio.ServerInterceptor):
    """Keeps the metadata of each request."""

    def __init__(self) -> None:
        self.metadata: list[dict[str, Any]] = []

    async def intercept_service(
        self, continuation: Any, handler_call_details: Any
    ) -> Any:
        self.metadata.append(dict(handler_call_details.invocation_metadata))
        return await continuation(handler_call_details)


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
async def channel(seen: Seen) -> AsyncIterator[lbclient.Channel]:
    server = make_server(TOKEN, seen)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with lbclient.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(None)


async def test_a_call_without_the_token_is_refused(channel: lbclient.Channel) -> None:
    assert await Catalog(channel, TOKEN).search("oak", 5.0) == ["oak table"]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await Catalog(channel, "another").search("oak", 5.0)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    # Health checks need no token: the channel sees the backend leave, for example.
    [backend] = channel.statistics().backends
    assert (backend.state, backend.health_refused) == ("ready", "")


async def test_the_backend_knows_whom_it_serves_and_is_in_the_trace(
    channel: lbclient.Channel, seen: Seen, shop: httpx.AsyncClient
) -> None:
    provider, spans = telemetry.start("shop"), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    opentelemetry.trace(channel)
    api.dependency_overrides[of_worker] = lambda: Catalog(channel, TOKEN)
    await shop.get("/search?text=oak", headers=OF_BOB)

    assert seen.metadata[-1]["lbclient-customer"] == "web"
    assert seen.metadata[-1]["lbclient-criticality"] == "CRITICAL_PLUS"

    found = {span.name: span for span in spans.get_finished_spans()}
    chain = (
        "GET /search",
        "Sent.shop.Catalog.Search",
        "Attempt.shop.Catalog.Search",
        "/shop.Catalog/Search",
    )
    for above, below in pairwise(chain):
        parent, context = found[below].parent, found[above].context
        assert parent is not None
        assert context is not None
        assert parent.span_id == context.span_id
