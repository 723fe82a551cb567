"""The backend: python -m shop.backend [ADDRESS [METRICS_PORT]]"""

import asyncio
import sys

import grpc.aio
from opentelemetry.instrumentation.grpc import aio_server_interceptor
from prometheus_client import start_http_server

import lbclient
from lbclient import metrics
from shop import telemetry
from shop.catalog_pb2 import SearchReply, SearchRequest
from shop.catalog_pb2_grpc import CatalogServicer, add_CatalogServicer_to_server
from shop.service_token import TokenRequired
from shop.settings import Settings

ITEMS = ("alder chair", "ash table", "beech chair", "larch shelf", "oak table")


class Catalog(CatalogServicer):
    async def Search(self, request: SearchRequest, context: object) -> SearchReply:
        return SearchReply(items=[item for item in ITEMS if request.text in item])


def make_server(token: str, *more: grpc.aio.ServerInterceptor) -> grpc.aio.Server:
    """The first interceptor is the outer one: refused requests have spans, too."""
    server = lbclient.server(
        interceptors=[aio_server_interceptor(), TokenRequired(token), *more]
    )
    add_CatalogServicer_to_server(Catalog(), server)
    return server


async def main(address: str = "127.0.0.1:50051", metrics_port: str = "") -> None:
    provider = telemetry.start("catalog")
    server = make_server(Settings().catalog_token)
    server.add_insecure_port(address)
    metrics.export(server)
    if metrics_port:
        start_http_server(int(metrics_port))
    await lbclient.serve(server)  # until SIGTERM: a lame duck, then drained
    provider.shutdown()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
