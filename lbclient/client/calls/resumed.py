"""A response stream that moves to another backend when it is asked to: `resumed`."""

import asyncio
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import Any, Generic, TypeVar

from lbclient.background.tasks import cancellations
from lbclient.core.errors import ConfigError
from lbclient.core.resumable import resumable

M = TypeVar("M")


class ResumedStream(AsyncIterator[M], Generic[M]):
    """Iterates over the messages of one stream after another. `call` is the one that is
    open, None before the first; `moved` counts how often another followed."""

    def __init__(self, open_after: Callable[[Any], AsyncIterable[M]]) -> None:
        self.call: Any = None
        self.moved = 0
        self._open_after = open_after
        self._last: M | None = None
        self._iterator: AsyncIterator[M] | None = None
        self._should_move = self._is_waiting = False
        self._end: type[BaseException] | None = None  # no other one is opened

    def __aiter__(self) -> "ResumedStream[M]":
        return self

    async def __anext__(self) -> M:
        while True:
            if self._iterator is None or self._should_move:
                self._open()
            assert self._iterator is not None
            before = cancellations()
            self._is_waiting = True
            try:
                self._last = message = await self._iterator.__anext__()
            except BaseException as error:
                is_ours = isinstance(error, asyncio.CancelledError)
                if not (is_ours and self._should_move and cancellations() == before):
                    self._ends_by(StopAsyncIteration)
                    raise
            else:
                return message
            finally:
                self._is_waiting = False

    def _open(self) -> None:
        """Opens the first stream, or one that goes on where the last one was."""
        if self._end is not None:
            raise self._end
        before, self._iterator, self._should_move = self.call, None, False
        if before is not None:
            before.cancel()
        this = weakref.ref(self)  # else the two would keep each other
        try:
            with resumable(lambda: _move(this)):
                self.call = _checked(self._open_after(self._last))
        except BaseException:
            self._ends_by(StopAsyncIteration)
            raise
        self._iterator = self.call.__aiter__()
        self.moved += before is not None

    def _ends_by(self, end: type[BaseException]) -> None:
        self._end = self._end or end
        self._should_move = False

    def move(self) -> None:
        """Moves before the next message is read; at once if that is waited for."""
        self._should_move = self.call is not None and self._end is None
        if self._should_move and self._is_waiting:
            self.call.cancel()

    def cancel(self) -> None:
        """Ends the stream that is open, as `call.cancel()` of grpc.aio does. No other
        one follows."""
        self._ends_by(asyncio.CancelledError)
        if self.call is not None:
            self.call.cancel()

    def __repr__(self) -> str:
        return f"<stream that has moved {self.moved} times: {self.call!r}>"


def _checked(call: Any) -> Any:
    """A generator is not cancelled by others, nor is what it calls seen here."""
    if not (
        isinstance(call, AsyncIterable) and callable(getattr(call, "cancel", None))
    ):
        want = "a function that returns the call of a stub, not a generator around it"
        raise ConfigError("open_after", call, want)
    return call


def _move(this: "weakref.ref[ResumedStream[Any]]") -> None:
    stream = this()
    if stream is not None:
        stream.move()


def resumed(open_after: Callable[[Any], AsyncIterable[M]]) -> ResumedStream[M]:
    """Iterates over a stream of responses that moves when its backend has too many of
    them, or leaves.

    `open_after(last)` opens a stream that goes on after the message `last`, or begins
    at the beginning if that is None: it calls a method of a stub. A stream that moves
    is cancelled between two messages and opened again, on a backend that is picked
    anew. What the old one had sent beyond `last` is not delivered, so the new one has
    to send it. Errors are raised as by the stream itself, and end the iteration. Raises
    ConfigError for what cannot be called, and at the first read for a function that
    returns something else than such a call.
    """
    if not callable(open_after):
        want = "a function of the last message"
        raise ConfigError("open_after", open_after, want)
    return ResumedStream(open_after)
