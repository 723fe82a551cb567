"""Endpoints from the system's resolver, which is asked again and again.

grpcio looks a name up again only when a connection is lost, so its clients never
find a new replica while the old ones live. Here the interval decides.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import suppress
from random import Random

from lbclient.errors import ResolveError
from lbclient.model import Endpoint, Endpoints
from lbclient.resolvers.listing import join_host, listing

Lookup = Callable[[str, int], Awaitable[Iterable[str]]]
"""The IP addresses of a name; raises OSError when it cannot tell."""

# The shortest pause between two lookups, whatever is hinted: one a second from each
# client is what a name server will bear when a whole job is lost.
MIN_PAUSE = 1.0


class Dns:
    """Watches one name. `interval` is in seconds, jittered by a tenth."""

    def __init__(
        self,
        host: str,
        port: int,
        interval: float,
        rng: Random,
        lookup: Lookup | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.interval = interval
        self._rng = rng
        self._lookup = system_lookup if lookup is None else lookup
        self._hint = asyncio.Event()

    def __repr__(self) -> str:
        return f"<{self.host}:{self.port} looked up every {self.interval:g} s>"

    def refresh(self) -> None:
        """Hints that the answer may have changed: look the name up soon."""
        self._hint.set()

    async def watch(self) -> AsyncGenerator[Endpoints, None]:
        """Yields the first answer and every different one after it.

        Every failed lookup raises ResolveError, which ends this iterator: the
        caller knows at once, and its next `watch()` is the next lookup.
        """
        last: Endpoints | None = None
        while True:
            # Cleared before the lookup: a hint during it may be news to it.
            self._hint.clear()
            endpoints = await self._resolve()
            if endpoints != last:
                last = endpoints
                yield endpoints
            await self._pause()

    async def _resolve(self) -> Endpoints:
        try:
            hosts = await self._lookup(self.host, self.port)
        except (OSError, UnicodeError) as error:
            raise ResolveError(f"no answer for {self.host}: {error}") from error
        return listing(Endpoint(join_host(host, self.port)) for host in hosts)

    async def _pause(self) -> None:
        pause = self.interval * self._rng.uniform(0.9, 1.1)
        shortest = min(MIN_PAUSE, pause)
        await asyncio.sleep(shortest)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause - shortest):
                await self._hint.wait()


async def system_lookup(host: str, port: int) -> list[str]:
    """Asks getaddrinfo, in a thread: a lookup that hangs holds up nobody."""
    loop = asyncio.get_running_loop()
    answers = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(answer[4][0]) for answer in answers]
