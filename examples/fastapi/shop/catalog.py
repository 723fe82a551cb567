"""The catalog as the web application sees it: one stub, one channel."""

from typing import Annotated

import grpc.aio
from fastapi import Depends, Request

from shop.catalog_pb2 import SearchReply, SearchRequest
from shop.catalog_pb2_grpc import CatalogStub


class Catalog:
    def __init__(self, channel: grpc.aio.Channel, token: str) -> None:
        self._stub = CatalogStub(channel)
        self._metadata = (("authorization", f"Bearer {token}"),)

    async def search(self, text: str, timeout: float) -> list[str]:
        reply: SearchReply = await self._stub.Search(
            SearchRequest(text=text), timeout=timeout, metadata=self._metadata
        )
        return list(reply.items)


def of_worker(request: Request) -> Catalog:
    """The one that the lifespan has made. Tests put another in its place."""
    catalog: Catalog = request.app.state.catalog
    return catalog


TheCatalog = Annotated[Catalog, Depends(of_worker)]
