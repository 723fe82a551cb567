"""The requests that a streaming call takes from its caller's iterator, in order.

A second attempt gets them from the first on, as long as few were taken: a server
that refuses a stream does so at its beginning.
"""

import asyncio
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
)
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lbclient.grpc_seam.calls import TakenRequests

KEPT = 16  # requests; few, as each may be as large as a message can be


class Requests:
    """Keeps the first requests of a streaming call, so that a second attempt can send
    them again. Owned by the call, used on its loop. Attempts may overlap; one takes at
    a time.

    A call of our own kind takes the requests of a first attempt without a generator, as
    `TakenRequests` says.
    """

    following: Callable[[], Awaitable[Any]] | None = None

    def __init__(self, source: AsyncIterable[Any] | Iterable[Any]) -> None:
        self._source = source
        self._context = copy_context()
        self._iterator: Any = None
        self._attempts = 0
        self._kept: list[Any] = []
        self.is_taken = False  # an attempt is taking the next request
        self._free: asyncio.Event | None = None  # set once it is not; None: none waits
        self.are_repeatable = True

    def begin(
        self, begin: Callable[..., Any], timeout: float | None, options: dict[str, Any]
    ) -> Any:
        """Begins an attempt, and so the task that iterates, in the caller's context.

        One that waited is begun by whatever made a backend ready, or by a timer.
        """
        return self._context.run(begin, self.attempt(), timeout=timeout, **options)

    def attempt(self) -> Any:
        """An iterator for one more attempt, asynchronous if the caller's is.

        What cannot be iterated over is handed on: grpc.aio says what is wrong with it.
        """
        self._attempts += 1
        if isinstance(self._source, AsyncIterable):
            self._iterator = self._iterator or aiter(self._source)
            if self._attempts == 1:
                self.following = self._iterator.__anext__
                taken: TakenRequests = self
                return taken
            return self.in_turn(self._attempts)
        if isinstance(self._source, Iterable):
            self._iterator = self._iterator or iter(self._source)
            return self._synchronously(self._attempts)
        return self._source

    def drop(self) -> None:
        """The call is over."""
        self.are_repeatable = False
        self._source = ()
        self._iterator = iter(())
        self.following = None
        self._kept.clear()

    # --- what is taken --------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Any]:
        """The first attempt's, where grpc.aio iterates."""
        return self.in_turn(1)

    def took(self, request: Any) -> None:
        if self.are_repeatable:  # `_keep`, written out: this is the hot path
            if self._attempts > 1 or len(self._kept) < KEPT:
                self._kept.append(request)
            else:
                self.are_repeatable = False
                self._kept.clear()
        self.is_taken = False
        if self._free is not None:
            self.left()

    def left(self) -> None:
        self.is_taken = False
        if self._free is not None:
            self._free.set()
            self._free = None

    def _keep(self, request: Any, attempt: int) -> None:
        if not self.are_repeatable:
            return
        if attempt == self._attempts and len(self._kept) >= KEPT:
            self.are_repeatable = False
            self._kept.clear()  # this attempt has sent them all
        else:
            self._kept.append(request)  # also if taken by an attempt that is over

    def _synchronously(self, attempt: int) -> Iterator[Any]:
        yield from tuple(self._kept)
        while True:
            try:
                request = next(self._iterator)
            except StopIteration:
                return
            self._keep(request, attempt)
            yield request

    async def in_turn(self, attempt: int) -> AsyncIterator[Any]:
        given, kept = 0, self._kept
        while True:
            if given < len(kept):
                request = kept[given]
            elif self.is_taken:  # by an attempt that is over, and keeps it
                self._free = self._free or asyncio.Event()
                await self._free.wait()
                continue
            else:
                self.is_taken = True
                try:
                    request = await self._iterator.__anext__()
                    self._keep(request, attempt)
                except StopAsyncIteration:
                    return
                finally:
                    self.left()
            given += 1
            yield request
