"""Call objects that look like grpc.aio's where grpc.aio's own will not do.

A unary-unary call that finds a ready backend is the bare grpc.aio call. All others
are wrapped: one that waits for a backend has no call yet, and a streaming call
dropped half-read would never end in grpc.aio, so its wrapper cancels it when it is
collected. Hence nothing that outlives the caller's interest may hold a wrapper,
except the queue, until it is the call's turn.

A call that no server has taken is sent again, to another backend where there is one,
and its caller does not notice (gRFC A6 calls that a transparent retry).
"""

import asyncio
import logging
import weakref
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import suppress
from functools import partial
from typing import Any

import grpc

from lbclient.attempt import Attempt, new_attempt, settle
from lbclient.backend import Backend
from lbclient.balancer import Balancer
from lbclient.grpc_seam import (
    UNAVAILABLE,
    DeadlineWhileWaiting,
    LocalRpcError,
    awaits_writes,
    channel_of,
    final_status,
    is_half_closed,
    mark,
    was_not_sent,
)
from lbclient.requests import Requests

logger = logging.getLogger(__name__)

# As grpc.aio says it.
CANCELLED_DETAILS = "Locally cancelled by application!"
FINISHED_DETAILS = "RPC already finished."
MIXED_DETAILS = "The iterator and read/write APIs may not be mixed on a single RPC."

Invoke = Callable[[Backend, float | None], Any]
"""Starts a grpc.aio call on a backend, with so many seconds left."""

MOST_ATTEMPTS = 5  # a call; more would be a flood where all servers refuse


class Call:
    """What all wrapped calls share. Either waiting, started, or over unsent.

    With `error` it is over from the start: what could not even be serialized. With
    `requests` it has these from an iterator. `tried` are the backends that were sent
    it and did not take it.
    """

    _lbclient: Attempt  # the last one, as `mark` leaves it

    def __init__(
        self,
        balancer: Balancer,
        invoke: Invoke,
        timeout: float | None,
        wait_for_ready: bool | None,
        error: Exception | None = None,
        requests: Requests | None = None,
        tried: tuple[Backend, ...] = (),
    ) -> None:
        now = balancer.clock()
        self.wait_for_ready = bool(wait_for_ready)
        self._balancer = balancer
        self._invoke: Invoke | None = invoke  # until it is over: it keeps the request
        self._requests = requests
        self._waits_since = now
        self._deadline = None if timeout is None else now + timeout
        self._inner: Any = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Any], None]] = []
        self._decided: asyncio.Event | None = None
        self._decided_at = now
        self._expiry: asyncio.TimerHandle | None = None
        self._tried = tried
        if error is None:
            self._find_backend(now)
        else:
            self._decided = asyncio.Event()
            self._end(error)

    def _find_backend(self, now: float) -> None:
        self._waits_since = now
        balancer, tried = self._balancer, self._tried
        backend = balancer.pick_another(tried, now) if tried else balancer.pick(now)
        if backend is not None:
            self.start(backend, now)
            return
        self._decided = asyncio.Event()
        balancer.waiting.join(self)
        if self._deadline is not None and self._error is None:
            # The wait is over at the deadline even if nobody holds the call.
            left = max(0.0, self._deadline - now)
            self._expiry = balancer.loop.call_later(left, self._expire)

    def start(self, backend: Backend, now: float) -> None:
        """The call has its backend: from here on it is grpc.aio's."""
        left = None if self._deadline is None else self._deadline - now
        assert self._invoke is not None
        try:
            inner = self._invoke(backend, left)
        except Exception as error:
            if self._decided is None and not self._tried:
                raise  # grpc.aio's own complaint about an argument
            self._decided = self._decided or asyncio.Event()
            self._end(error)
            return
        waited = now - self._waits_since
        attempt = new_attempt((backend, waited, len(self._tried) + 1, now))
        mark(self, attempt)
        self._inner = inner
        balancer = self._balancer
        balancer.pool.begin(backend)
        if self._decided is not None:
            balancer.waited += 1
            balancer.waited_seconds += waited
            self._decide()
        inner.add_done_callback(
            partial(_attempt_over, balancer, attempt, self._finder())
        )

    def _finder(self) -> "Callable[[], Call | None]":
        """How the inner call finds us when it is over. As this keeps us, we stay."""
        return lambda: self

    def attempt_over(self, is_last: bool) -> None:
        if is_last:
            self._let_go()
            self._fire()
        else:
            self._tried = (*self._tried, self._lbclient.backend)
            self._inner = self._decided = None
            self._find_backend(self._balancer.clock())

    def may_go_again(self, inner: Any) -> bool:
        """Whether an attempt that is over can be repeated without anybody's harm."""
        return (
            not self._balancer.is_stopped
            and len(self._tried) + 1 < MOST_ATTEMPTS
            and was_not_sent(inner, self._lbclient.backend.channel)
        )

    def fail(self, error: LocalRpcError) -> None:
        """The call ends without having been sent."""
        self._balancer.count(error.code())
        self._end(error)

    def _expire(self) -> None:
        balancer = self._balancer
        balancer.waiting.leave(self)
        waited = balancer.clock() - self._waits_since
        self.fail(
            DeadlineWhileWaiting.because(
                f"Deadline Exceeded after waiting {waited:.3f} s: {balancer.pool!r}"
            )
        )

    def _end(self, error: BaseException) -> None:
        self._error = error
        self._let_go()
        self._fire()
        self._decide()

    def _let_go(self) -> None:
        """Of what only an attempt needs: above all the requests."""
        self._invoke = None
        if self._requests is not None:
            self._requests.drop()

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
        return until - self._waits_since

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

    async def _ask(self, question: str) -> Any:
        """The answer of the attempt that counts; None if the call was not sent."""
        while (inner := await self._observed()) is not None:
            answer = await getattr(inner, question)()
            if inner is self._inner:
                return answer
        return None

    async def initial_metadata(self) -> Any:
        metadata = await self._ask("initial_metadata")
        return grpc.aio.Metadata() if metadata is None else metadata

    async def trailing_metadata(self) -> Any:
        metadata = await self._ask("trailing_metadata")
        return grpc.aio.Metadata() if metadata is None else metadata

    async def code(self) -> grpc.StatusCode:
        code: grpc.StatusCode | None = await self._ask("code")
        return self._unsent_status()[0] if code is None else code

    async def details(self) -> str:
        details: str | None = await self._ask("details")
        return self._unsent_status()[1] if self._inner is None else details or ""

    async def debug_error_string(self) -> str | None:
        debug: str | None = await self._ask("debug_error_string")
        if self._inner is None and not self.cancelled():
            return ""  # as in grpc.aio
        return debug

    async def wait_for_connection(self) -> None:
        await self._on_inner(self._started, "wait_for_connection")

    async def _on_inner(
        self, inner_call: Callable[[], Any], act: str, *arguments: Any
    ) -> Any:
        """Does it on the inner call, and again on the next if that took its place."""
        while True:
            inner = self._inner or await inner_call()
            try:
                return await getattr(inner, act)(*arguments)
            except Exception:
                if inner is self._inner:
                    raise

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


def _attempt_over(
    balancer: Balancer,
    attempt: Attempt,
    find: Callable[[], Call | None],
    inner: Any,
) -> None:
    code, trailers = final_status(inner)
    call = find()
    again = code == UNAVAILABLE and call is not None and call.may_go_again(inner)
    settle(balancer, attempt, code, trailers, not again)
    if call is not None:
        call.attempt_over(is_last=not again)


class _UnaryResponse(Call):
    def __await__(self) -> Generator[Any, None, Any]:
        while True:
            if self._inner is None:
                yield from self._started().__await__()
            inner = self._inner
            try:
                return (yield from inner.__await__())
            except grpc.aio.AioRpcError:
                if inner is self._inner:
                    raise


class _StreamResponse(Call):
    _responses: "weakref.ref[_Responses] | None" = None
    _style = ""

    def _settle_on(self, style: str) -> None:
        """Reads or iterates, for good; grpc.aio's own call may come too late to say."""
        if self._style not in ("", style):
            raise grpc.aio.UsageError(MIXED_DETAILS)
        self._style = style

    def _finder(self) -> Callable[[], Call | None]:
        return weakref.ref(self)

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
        try:
            return await self._on_inner(self._started, "read")
        except Exception as error:
            self._release(error)
            raise

    def _release(self, error: Exception) -> None:
        """Ends a call that grpc.aio could not begin, for its metadata perhaps.

        It would wait for its status for ever, and the error's traceback keeps us.
        """
        known = isinstance(error, grpc.aio.AioRpcError | grpc.aio.UsageError)
        if not known and self._inner is not None:
            self._inner.cancel()

    def __del__(self) -> None:
        self._abandon()


class _Responses:
    """Iterates over a call and keeps it: who iterates is still interested."""

    def __init__(self, call: _StreamResponse) -> None:
        self._call = call
        self._inner = call._inner
        self._iterator: AsyncIterator[Any] | None = None
        if self._inner is not None:
            self._iterator = self._inner.__aiter__()

    def __aiter__(self) -> "_Responses":
        return self

    async def __anext__(self) -> Any:
        while True:
            if self._iterator is None:
                self._inner = await self._call._started()
                self._iterator = self._inner.__aiter__()
            try:
                return await self._iterator.__anext__()
            except StopAsyncIteration:
                raise
            except Exception as error:
                if self._inner is self._call._inner:
                    self._call._release(error)
                    raise
                self._iterator = None  # the call was sent again


class _StreamRequest(Call):
    """Who gives up waiting to write does not cancel the call, nor in grpc.aio."""

    _has_written = False  # what is written is not kept

    async def write(self, request: Any) -> None:
        self._refuse_if_fed()
        if self._is_unsent():
            raise asyncio.InvalidStateError(FINISHED_DETAILS)
        await self._on_inner(self._sent, "write", request)
        self._has_written = True

    async def done_writing(self) -> None:
        self._refuse_if_fed()
        if self._is_unsent():
            return
        await self._on_inner(self._started, "done_writing")
        self._has_written = True

    async def wait_for_connection(self) -> None:
        await self._on_inner(self._sent, "wait_for_connection")

    def may_go_again(self, inner: Any) -> bool:
        if self._requests is None:
            are_there = not self._has_written
        else:
            are_there = self._requests.are_repeatable
        return are_there and super().may_go_again(inner)

    def _refuse_if_fed(self) -> None:
        if self._requests is not None:
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
