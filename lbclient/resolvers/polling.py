"""Polls a source that does not announce changes, such as DNS.

grpcio looks a name up again only when a connection is lost, so its clients never find
a new replica while the old ones live. Here the name is looked up again when the last
answer expires, or after the interval if the answer has no time to live.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import NamedTuple

from lbclient.core.model import Endpoints

# Of the time that an answer holds, so that within all of it a new backend is known,
# connected and has calls.
SOONER = (0.8, 0.9)

# The same, where a cache would only repeat what it has until that expires.
LATER = (1.0, 1.1)

# The shortest pause between two questions, whatever is hinted: one a second from each
# client is what a name server will bear when a whole job is lost.
MIN_PAUSE = 1.0


class Resolution(NamedTuple):
    """Endpoints, and for how many seconds they are valid; 0.0 means unknown.

    A TTL of 0 forbids caching an answer. It does not mean that the next answer differs,
    so it counts as unknown.
    """

    endpoints: Endpoints
    ttl: float = 0.0


class Hinted:
    """A pause that a hint shortens, but never below `MIN_PAUSE`."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def __repr__(self) -> str:
        return "<a hint>" if self._event.is_set() else "<no hint>"

    def hint(self) -> None:
        self._event.set()

    def forget(self) -> None:
        self._event.clear()

    async def pause(self, seconds: float) -> None:
        shortest = min(MIN_PAUSE, seconds)
        await asyncio.sleep(shortest)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds - shortest):
                await self._event.wait()
        self._event.clear()


class Polling:
    """Decides when a resolver asks its source.

    A change takes effect within `interval` seconds, or within the answer's time to live
    if it is shorter.
    """

    def __init__(
        self, ask: Callable[[], Awaitable[Resolution]], interval: float, rng: Random
    ) -> None:
        self.interval = interval
        self._ask = ask
        self._rng = rng
        self._hinted = Hinted()
        self._ttl = 0.0  # of the last answer
        self._is_cached = False  # as far as is known

    def __repr__(self) -> str:
        who = "a cache" if self._is_cached else "a name server"
        ttl = f"last told {self._ttl:g} s by {who}" if self._ttl else "no time to live"
        return f"<asked every {self.interval:g} s, {ttl}>"

    def refresh(self) -> None:
        """Hints that the answer may have changed: ask again soon."""
        self._hinted.hint()

    async def watch(self) -> AsyncGenerator[Endpoints, None]:
        """Yields the first answer and every different one after it.

        Passes on the ResolveError of a question that failed, which ends this
        iterator: its caller knows at once, and its next `watch()` asks again.
        """
        last: Endpoints | None = None
        while True:
            # Cleared before the question: a hint during it may be news to it.
            self._hinted.forget()
            endpoints, ttl = await self._ask()
            if endpoints != last:
                last = endpoints
                yield endpoints
            await self._hinted.pause(self._until_next(ttl))

    def _until_next(self, ttl: float) -> float:
        """Nine tenths of the interval at most, less where the answer expires sooner."""
        before, self._ttl = self._ttl, ttl
        pause = self.interval * self._rng.uniform(*SOONER)
        shortest = MIN_PAUSE * self._rng.uniform(*LATER)
        if not ttl:
            # Unknown; or, where it was known, the last second of what a cache has.
            return min(pause, shortest) if before else pause
        # A name server tells the same each time, a cache what is left of it.
        self._is_cached = self._is_cached or ttl < before
        spread = LATER if self._is_cached else SOONER
        return min(pause, max(shortest, ttl * self._rng.uniform(*spread)))
