"""Endpoints that are known beforehand and never change."""

import asyncio
from collections.abc import AsyncGenerator, Iterable

from lbclient.core.model import Endpoint, Endpoints, snapshot


class Static:
    """Yields its endpoints once, then waits until it is closed."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self.endpoints = snapshot(list(endpoints))

    def __repr__(self) -> str:
        count = len(self.endpoints)
        return f"<{count} fixed {'endpoint' if count == 1 else 'endpoints'}>"

    async def watch(self) -> AsyncGenerator[Endpoints, None]:
        yield self.endpoints
        await asyncio.get_running_loop().create_future()
