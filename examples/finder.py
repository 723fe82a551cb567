"""A service's own client of search. How it is tested: test_finder.py."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import grpc
from grpc.aio import AioRpcError
from search_pb2 import Answer, Query
from search_pb2_grpc import SearchStub

import lbclient

PAUSES = (0.5, 2.0, 8.0)  # seconds between attempts while search is down


class Finder:
    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._search = SearchStub(channel)

    async def find(self, text: str) -> str | None:
        """Returns the answer, None if there is none; tries for up to 31 s."""
        for pause in PAUSES:
            try:
                return await self._ask(text)
            except AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                trailers = dict(tuple(error.trailing_metadata() or ()))
            await asyncio.sleep(float(trailers.get("retry-after", pause)))
        return await self._ask(text)

    async def _ask(self, text: str) -> str | None:
        metadata = (("tenant", "shop"),)
        try:
            answer = await self._search.Search(
                Query(text=text), timeout=5.0, metadata=metadata
            )
        except AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return None
            raise
        return str(answer.text)

    async def pages(self, text: str) -> list[str]:
        """Returns the pages that came before the stream ended or failed."""
        pages: list[str] = []
        with suppress(AioRpcError):
            async for page in self._search.Pages(Query(text=text), timeout=5.0):
                pages.append(page.text)  # noqa: PERF401
        return pages

    def follow(self, text: str) -> AsyncIterator[Answer]:
        """Iterates over pages for as long as there are any, though the stream moves."""

        def after(last: Answer | None) -> Any:
            wanted = text if last is None else f"{text} after {last.text}"
            return self._search.Pages(Query(text=wanted))

        return lbclient.resumed(after)
