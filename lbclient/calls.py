"""Call objects that look like grpc.aio's where grpc.aio's own will not do.

A unary-unary call that finds a ready backend is the bare grpc.aio call. All others
are wrapped: one that waits for a backend has no call yet, and a streaming call
dropped half-read would never end in grpc.aio, so its wrapper cancels it when it is
collected. Hence nothing that outlives the caller's interest may hold a wrapper,
except the queue, until it is the call's turn.
"""

import asyncio
import logging
import weakref
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import suppress
from functools import partial
from typing import Any

import grpc

from lbclient.attempt import watch
from lbclient.backend import Backend
from lbclient.balancer import Balancer
from lbclient.grpc_seam import (
    DeadlineWhileWaiting,
    LocalRpcError,
    awaits_writes,
    channel_of,
    is_half_closed,
    mark,
    marked,
)

logger = logging.getLogger(__name__)

# As grpc.aio says it.
CANCELLED_DETAILS = "Locally cancelled by application!"
FINISHED_DETAILS = "RPC already finished."
MIXED_DETAILS = "The iterator and read/write APIs may not be mixed on a single RPC."

Invoke = Callable[[Backend, float | None], Any]
"""Starts a grpc.aio call on a backend, with so many seconds left."""


class Call:
    """What all wrapped calls share. Either waiting, started, or over unsent.

    With `error` it is over from the start: what could not even be serialized. A call
    that is fed has its requests from an iterator.
    """

    def __init__(
        self,
        balancer: Balancer,
        invoke: Invoke,
        timeout: float | None,
        wait_for_ready: bool | None,
        error: Exception | None = None,
        is_fed: bool = False,
    ) -> None:
        now = balancer.clock()
        self.wait_for_ready = bool(wait_for_ready)
        self._balancer = balancer
        self._invoke: Invoke | None = invoke  # until it is over: it keeps the request
        self._is_fed = is_fed
        self._created_at = now
        self._deadline = None if timeout is None else now + timeout
        self._inner: Any = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Any], None]] = []
        self._decided: asyncio.Event | None = None
        self._decided_at = now
        self._expiry: asyncio.TimerHandle | None = None

        backend = balancer.pick(now) if error is None else None
        if backend is not None:
            self.start(backend, now)
            return
        self._decided = asyncio.Event()
        if error is not None:
            self._end(error)
            return
        balancer.waiting.join(self)
        if timeout is not None and self._error is None:
            # The wait is over at the deadline even if nobody holds the call.
            self._expiry = balancer.loop.call_later(max(0.0, timeout), self._expire)

    def start(self, backend: Backend, now: float) -> None:
        """The call has its backend: from here on it is grpc.aio's."""
        waited = now - self._created_at
        left = None if self._deadline is None else self._deadline - now
        invoke, self._invoke = self._invoke, None
        assert invoke is not None
        try:
            self._inner = invoke(backend, left)
        except Exception as error:
            if self._decided is None:
                raise  # grpc.aio's own complaint about an argument
            self._end(error)
            return
        balancer = self._balancer
        balancer.pool.begin(backend)
        watch(self._inner, balancer, backend, now, waited)
        mark(self, marked(self._inner))
        if self._decided is not None:
            balancer.waited += 1
            balancer.waited_seconds += waited
            self._decide()
        self._inner.add_done_callback(self._when_done())

    def _when_done(self) -> Callable[[Any], None]:
        return lambda _: self._fire()

    def fail(self, error: LocalRpcError) -> None:
        """The call ends without having been sent."""
        self._balancer.count(error.code())
        self._end(error)

    def _expire(self) -> None:
        balancer = self._balancer
        balancer.waiting.leave(self)
        waited = balancer.clock() - self._created_at
        self.fail(
            DeadlineWhileWaiting.because(
                f"Deadline Exceeded after waiting {waited:.3f} s: {balancer.pool!r}"
            )
        )

    def _end(self, error: BaseException) -> None:
        self._error = error
        self._invoke = None
        self._fire()
        self._decide()

    def _fire(self) -> None:
        """Runs the done callbacks, before whoever awaits the call resumes."""
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(self)
            except Exception:
                logger.exception("a done callback of %r failed", self)

    def _decide(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        assert self._decided is not None
        self._decided_at = self._balancer.clock()
        self._decided.set()

    def waited(self) -> float:
        """The time without a backend, so far."""
        is_waiting = self._inner is None and self._error is None
        until = self._balancer.clock() if is_waiting else self._decided_at
        return until - self._created_at

    @property
    def _channel(self) -> object:
        """Up to 1.82 grpcio's `close` asks whatever a task of the loop runs."""
        return channel_of(self._inner)

    async def _started(self) -> Any:
        """The inner call, once there is one; raises what kept it from being sent.

        To give up this wait is to cancel the call.
        """
        try:
            return await self._sent()
        except asyncio.CancelledError:
            self.cancel()
            raise

    async def _sent(self) -> Any:
        """Like `_started`, but who gives up this wait leaves the call alone."""
        inner = await self._observed()
        if isinstance(self._error, asyncio.CancelledError):
            raise asyncio.CancelledError
        if self._error is not None:
            raise self._error
        return inner

    async def _observed(self) -> Any:
        """Like `_sent`, but an error is an answer (None), not an exception."""
        if self._inner is None and self._error is None:
            assert self._decided is not None
            await self._decided.wait()
        return self._inner

    def cancel(self) -> bool:
        if self._inner is not None:
            return bool(self._inner.cancel())
        if self._error is not None:
            return False
        self._balancer.waiting.leave(self)
        self._balancer.count(grpc.StatusCode.CANCELLED)
        self._end(asyncio.CancelledError())
        return True

    def cancelled(self) -> bool:
        if self._inner is not None:
            return bool(self._inner.cancelled())
        return isinstance(self._error, asyncio.CancelledError)

    def done(self) -> bool:
        if self._inner is not None:
            return bool(self._inner.done())
        return self._error is not None

    def time_remaining(self) -> float | None:
        if self._inner is not None:
            remaining: float | None = self._inner.time_remaining()
            return remaining
        if self._deadline is None:
            return None
        return max(0.0, self._deadline - self._balancer.clock())

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        if self.done():
            callback(self)  # what it raises is the caller's own, as in grpc.aio
        else:
            self._callbacks.append(callback)

    async def initial_metadata(self) -> Any:
        inner = await self._observed()
        return grpc.aio.Metadata() if inner is None else await inner.initial_metadata()

    async def trailing_metadata(self) -> Any:
        inner = await self._observed()
        return grpc.aio.Metadata() if inner is None else await inner.trailing_metadata()

    async def code(self) -> grpc.StatusCode:
        inner = await self._observed()
        if inner is not None:
            code: grpc.StatusCode = await inner.code()
            return code
        return self._unsent_status()[0]

    async def details(self) -> str:
        inner = await self._observed()
        return self._unsent_status()[1] if inner is None else await inner.details()

    async def debug_error_string(self) -> str | None:
        if (inner := await self._observed()) is not None:
            debug: str | None = await inner.debug_error_string()
            return debug
        return None if self.cancelled() else ""  # as in grpc.aio

    async def wait_for_connection(self) -> None:
        inner = await self._started()
        await inner.wait_for_connection()

    def _unsent_status(self) -> tuple[grpc.StatusCode, str]:
        error = self._error
        if isinstance(error, grpc.aio.AioRpcError):
            return error.code(), error.details() or ""
        if isinstance(error, asyncio.CancelledError):
            return grpc.StatusCode.CANCELLED, CANCELLED_DETAILS
        return grpc.StatusCode.INTERNAL, str(error)

    def __repr__(self) -> str:
        if self._inner is not None:
            return repr(self._inner)
        name = type(self).__name__
        if self._error is None:
            return f"<{name} waiting for a backend: {self._balancer.pool!r}>"
        code, details = self._unsent_status()
        return f'<{name} that was not sent: {code}, "{details}">'

    def _abandon(self) -> None:
        """Ends the inner call, from whichever thread collects the wrapper."""
        inner = self.__dict__.get("_inner")
        if inner is None or inner.done():
            return
        # Later, and there: a collection can happen in the midst of anything.
        with suppress(RuntimeError):  # the loop is closed, and so is the call
            self._balancer.loop.call_soon_threadsafe(inner.cancel)
            self._balancer.loop.call_soon_threadsafe(self._fire)


def _fire_if_alive(call: "weakref.ref[Call]", _: Any) -> None:
    if (alive := call()) is not None:
        alive._fire()


class _UnaryResponse(Call):
    def __await__(self) -> Generator[Any, None, Any]:
        if self._inner is None:
            yield from self._started().__await__()
        return (yield from self._inner.__await__())


class _StreamResponse(Call):
    _responses: "weakref.ref[_Responses] | None" = None
    _style = ""

    def _settle_on(self, style: str) -> None:
        """Reads or iterates, for good; grpc.aio's own call may come too late to say."""
        if self._style not in ("", style):
            raise grpc.aio.UsageError(MIXED_DETAILS)
        self._style = style

    def _when_done(self) -> Callable[[Any], None]:
        return partial(_fire_if_alive, weakref.ref(self))

    def __aiter__(self) -> AsyncIterator[Any]:
        self._settle_on("iterate")
        # Weakly, for the iterator keeps the call.
        responses = None if self._responses is None else self._responses()
        if responses is None:
            responses = _Responses(self)
            self._responses = weakref.ref(responses)
        return responses

    async def read(self) -> Any:
        if not self.done():
            self._settle_on("read")
        inner = self._inner or await self._started()
        try:
            return await inner.read()
        except Exception as error:
            self._release(error)
            raise

    def _release(self, error: Exception) -> None:
        """Ends a call that grpc.aio could not begin, for its metadata perhaps.

        It would wait for its status for ever, and the error's traceback keeps us.
        """
        if not isinstance(error, grpc.aio.AioRpcError | grpc.aio.UsageError):
            self._inner.cancel()

    def __del__(self) -> None:
        self._abandon()


class _Responses:
    """Iterates over a call and keeps it: who iterates is still interested."""

    def __init__(self, call: _StreamResponse) -> None:
        self._call = call
        self._iterator: AsyncIterator[Any] | None = None
        if call._inner is not None:
            self._iterator = call._inner.__aiter__()

    def __aiter__(self) -> "_Responses":
        return self

    async def __anext__(self) -> Any:
        if self._iterator is None:
            self._iterator = (await self._call._started()).__aiter__()
        try:
            return await self._iterator.__anext__()
        except StopAsyncIteration:
            raise
        except Exception as error:
            self._call._release(error)
            raise


class _StreamRequest(Call):
    """Who gives up waiting to write does not cancel the call, nor in grpc.aio."""

    async def write(self, request: Any) -> None:
        self._refuse_if_fed()
        if self._is_unsent():
            raise asyncio.InvalidStateError(FINISHED_DETAILS)
        inner = self._inner or await self._sent()
        await inner.write(request)

    async def done_writing(self) -> None:
        self._refuse_if_fed()
        if self._is_unsent():
            return
        inner = self._inner or await self._started()
        await inner.done_writing()

    async def wait_for_connection(self) -> None:
        inner = await self._sent()
        await inner.wait_for_connection()

    def _refuse_if_fed(self) -> None:
        if self._is_fed:
            raise grpc.aio.UsageError(MIXED_DETAILS)

    def _is_unsent(self) -> bool:
        return self._inner is None and self._error is not None

    @property
    def _done_writing_flag(self) -> bool:
        """grpc.aio's interceptors look at it."""
        return is_half_closed(self._inner)


class UnaryUnaryCall(_UnaryResponse, grpc.aio.UnaryUnaryCall[Any, Any]): ...


class UnaryStreamCall(_StreamResponse, grpc.aio.UnaryStreamCall[Any, Any]): ...


class StreamUnaryCall(
    _StreamRequest, _UnaryResponse, grpc.aio.StreamUnaryCall[Any, Any]
):
    """Runs to its end when dropped, unless it waits for writes that cannot come."""

    def __del__(self) -> None:
        inner = self.__dict__.get("_inner")
        if inner is not None and awaits_writes(inner):
            self._abandon()


class StreamStreamCall(
    _StreamRequest, _StreamResponse, grpc.aio.StreamStreamCall[Any, Any]
): ...
