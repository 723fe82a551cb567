"""Call objects that wrap grpc.aio's: of calls that wait or are retried, and of streams.

A unary-unary call that finds a ready backend is grpc.aio's own call object (`direct`).
All others are wrapped. A call that waits for a backend has no call of grpc.aio's yet. A
streaming call that is dropped half-read would never end in grpc.aio, so its wrapper
cancels it when it is collected. Hence nothing that outlives the caller's interest may
hold a wrapper, except the queue until it is the call's turn.

A call that no server has taken is sent again, to another backend if there is one. So
is a call that failed and may be executed twice (`retry`). Its caller does not notice.
"""

import asyncio
from collections.abc import Callable, Generator
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any, NoReturn

import grpc

from lbclient.background.tasks import cancellations
from lbclient.client.backends.backend import Backend
from lbclient.client.balancer import Balancer
from lbclient.client.calls.attempt import Attempt
from lbclient.client.calls.attempts import Attempts, Next, settle_orphan
from lbclient.core.call_hints import CallHints
from lbclient.core.resumable import OnMove
from lbclient.core.uncopied import Uncopied
from lbclient.grpc_seam import (
    CANCELLED,
    Trailers,
    cause_of,
    error_of,
    final_status,
    is_of_a_write,
    is_provisional,
    lacks_headers,
    mark,
    marked,
    was_not_begun,
)
from lbclient.log import Log
from lbclient.wire.local_errors import BackendsFull, DeadlineWhileWaiting, NoBackend

logger = Log(__name__)

# As grpc.aio says it.
CANCELLED_DETAILS = "Locally cancelled by application!"


OK = grpc.StatusCode.OK
PAUSE, PATIENCE = 0.001, 200  # seconds, times: how long a true status may take


class Call(Uncopied):
    """A call whose backend may come later, or change: waiting, started, or over unsent.

    It is waiting (no `_inner` and no `_error`), started (`_inner`), or over without
    having been sent (`_error`). With `error` it is over from the start, as its request
    could not be serialized, for example. `then` is when and where it is sent, if that
    is decided already.
    """

    _lbclient: Attempt  # the last attempt, where `marked` finds it
    _inner: Any = None  # grpc.aio's call; here, as `__del__` reads it after any error
    streams_requests = False
    _context: Context | None = None  # since it waited for the first time
    # Up to 1.82 `close` of a grpcio channel asks this of each call in a loop task.
    # None: the call is not that channel's.
    _channel = None

    def __init__(
        self,
        attempts: Attempts,
        timeout: float | None,
        wait_for_ready: bool | None,
        error: Exception | None = None,
        then: Next | None = None,
    ) -> None:
        balancer = attempts.balancer
        now = balancer.clock() if then is None else then.at
        self.wait_for_ready = bool(wait_for_ready)
        self._balancer = balancer
        self.attempts = attempts
        self.criticality = attempts.criticality
        self.counts = attempts.counts
        self._waits_since = now
        self._deadline = None if timeout is None else now + timeout
        self._error: BaseException | None = None
        self._callbacks: tuple[Callable[[Any], None], ...] = ()
        self._decided: asyncio.Event | None = None
        self._decided_at = now
        self._expiry: asyncio.TimerHandle | None = None
        self._pause: asyncio.TimerHandle | None = None
        if error is not None:
            self._decided = asyncio.Event()
            self._end(error)
        elif then is None:
            self._find_backend(now)
        else:
            self._go_on(then)

    @property
    def hints(self) -> CallHints | None:
        return self.attempts.hints

    @property
    def on_move(self) -> OnMove | None:
        return self.attempts.on_move

    def _find_backend_in(self, delay: float) -> None:
        balancer = self._balancer
        self._decided = asyncio.Event()
        self._waits_since = balancer.clock()
        self._pause = balancer.loop.call_later(delay, self._pause_over)
        balancer.pending.pause(self)

    def _pause_over(self) -> None:
        self._pause = None
        self._balancer.pending.resume(self)
        self._find_backend(self._balancer.clock())

    def _find_backend(self, now: float) -> None:
        self._waits_since = now
        if self._deadline is not None and now >= self._deadline:
            self._expire()
            return
        attempts = self.attempts
        if attempts.tried:
            backend = attempts.pick(now, attempts.tried)
        else:  # what `attempts.pick` does for a first attempt
            backend = self._balancer.pick(now, self.counts, attempts.hints)
        if backend is None:
            self._wait(now)
        else:
            self.start(backend, now)

    def _go_on(self, then: Next) -> None:
        if then.delay:
            self._find_backend_in(then.delay)
        else:
            self._waits_since = then.at
            if then.backend is None:
                self._wait(then.at)
            else:
                self.start(then.backend, then.at)

    def _wait(self, now: float) -> None:
        """Queues the call until a backend can take it, or its deadline."""
        balancer = self._balancer
        self._decided = self._decided or asyncio.Event()
        if self._context is None:  # one without variables is false
            self._context = copy_context()
        balancer.pending.join(self)
        if self._deadline is not None and self._error is None:
            # The wait ends at the deadline even if nobody holds the call.
            left = max(0.0, self._deadline - now)
            self._expiry = balancer.loop.call_later(left, self._expire)

    def start(self, backend: Backend, now: float) -> None:
        """Sends the call to this backend."""
        if self._deadline is not None and now >= self._deadline:
            self._expire()
            return
        left = None if self._deadline is None else self._deadline - now
        attempts, waited = self.attempts, now - self._waits_since
        try:
            attempt, inner, siblings = self._send(backend, left, waited, now)
        except Exception as error:
            if self._decided is None and not attempts.tried:
                raise  # grpc.aio's own complaint about an argument
            self._decided = self._decided or asyncio.Event()
            self._end(error)
            return
        self._lbclient, self._inner = attempt, inner
        balancer = self._balancer
        backend.load.begin()
        if self._decided is not None:
            balancer.counters.begun_after(waited)
            self._decide()
        self._attempt_end = AttemptEnd(balancer, attempt, self._finder(), siblings)
        inner.add_done_callback(self._attempt_end)
        if attempts.on_move is not None:
            self._begun_resumable()

    def _send(self, *arguments: Any) -> Any:
        """Starts an attempt, in the context of who made the call: what ends a wait is
        mostly the end of somebody else's call."""
        start, context = self.attempts.start, self._context
        return start(*arguments) if context is None else context.run(start, *arguments)

    def _begun_resumable(self) -> None:
        backend, hints = self._lbclient.backend, self.attempts.hints
        self._balancer.pickers.streams.begun(self, backend, self._inner, hints)

    def _finder(self) -> "Callable[[], Call | None]":
        """Returns what the inner call finds this one by when it is over. It keeps this
        call alive until then; streams return a weak reference instead."""
        return self._itself

    def _itself(self) -> "Call":
        return self

    def take_back(self) -> None:
        """Forgets the last attempt, which was never sent, and ends the attempts."""
        self.attempts.end()
        tried = self.attempts.tried
        before = tried and self._lbclient._replace(backend=tried[-1], number=len(tried))
        mark(self, before or None)

    def failed(self, code: int, trailers: Trailers) -> Next | None:
        """Handles the failure of the last attempt. Returns when and where the next
        attempt goes, or None if the call has failed."""
        left, is_repeatable = self.time_remaining(), not self._is_committed()
        attempt, inner = self._lbclient, self._inner
        then = self.attempts.failed(attempt, inner, code, trailers, left, is_repeatable)
        if then is None and cause_of(inner):
            self._error, self._inner = self.attempts.give_up(attempt, inner), None
        return then

    def attempt_over(self, then: Next | None) -> None:
        """Starts the next attempt as `then` says; None ends the call."""
        if then is None:
            self._fire()
            return
        self._inner = self._decided = None
        self._go_on(then)

    def _is_committed(self) -> bool:
        """Whether a retry is impossible: the caller has read a response, or written a
        request that was not kept."""
        return False

    def fail(self, error: grpc.aio.AioRpcError) -> None:
        """Ends the call without sending it, or sending it again.

        If there was no backend for another attempt, or no room, the call ends with the
        error of the last attempt. A deadline that has passed is told as in gRPC.
        """
        attempts = self.attempts
        last = attempts.last_error
        if last is not None and isinstance(error, NoBackend | BackendsFull):
            error = last
        was_sent, observed = bool(attempts.tried), attempts.observed
        self._balancer.call_ends.refuse(error, self.counts, was_sent, observed)
        self._end(error)

    def _expire(self) -> None:
        self._decided = self._decided or asyncio.Event()
        balancer = self._balancer
        balancer.pending.leave(self)
        waited = balancer.clock() - self._waits_since
        self.fail(
            DeadlineWhileWaiting.because(
                f"Deadline Exceeded after waiting {waited:.3f} s:"
                f" {balancer.pending.situation()}"
            )
        )

    def _end(self, error: BaseException) -> None:
        self._error = error
        self.attempts.end()
        self._fire()
        self._decide()

    def _fire(self) -> None:
        """Runs the done callbacks, before whoever awaits the call resumes."""
        callbacks, self._callbacks = self._callbacks, ()
        for callback in callbacks:
            try:
                callback(self)
            except Exception as error:
                words = "a done callback of %r failed"
                logger.exception(
                    words, self, channel=self._balancer.label, reason=error
                )

    def _decide(self) -> None:
        if self._pause is not None:
            self._balancer.pending.resume(self)
        for timer in (self._expiry, self._pause):
            if timer is not None:
                timer.cancel()
        self._expiry = self._pause = None
        assert self._decided is not None
        self._decided_at = self._balancer.clock()
        self._decided.set()

    def waited(self) -> float:
        """Seconds that the call has waited for a backend."""
        is_waiting = self._inner is None and self._error is None
        until = self._balancer.clock() if is_waiting else self._decided_at
        return until - self._waits_since

    async def _started(self) -> Any:
        """Waits for the inner call; raises what kept it from being sent.

        If this wait is cancelled, so is the call.
        """
        try:
            return await self._sent()
        except asyncio.CancelledError:
            self.cancel()
            raise

    async def _sent(self) -> Any:
        """Like `_started`, but the call goes on if this wait is cancelled."""
        inner = await self._observed()
        if isinstance(self._error, asyncio.CancelledError):
            raise asyncio.CancelledError
        if self._error is not None:
            self._explain(self._error)
            raise self._error
        return inner

    def _explain(self, error: BaseException) -> None:
        """Adds notes to the error that the caller is about to get, and tells it to the
        request that is served with the call."""
        self.attempts.explain(error, marked(self), self._inner)

    def _raise(self, error: Exception) -> NoReturn:
        """Raises the error that is handled, as it is; or why the attempt failed, if all
        that grpc.aio says is that a write did, or if it says less."""
        told = error
        if is_of_a_write(error) or lacks_headers(error, self._inner):
            told = self._attempt_end.error or error
        self._explain(told)
        try:
            if told is error:
                raise error
            raise told from None
        finally:
            del error, told  # nor a cycle of it and this frame

    async def _observed(self) -> Any:
        """Like `_sent`, but returns None instead of raising an error."""
        while self._inner is None and self._error is None:
            # Again where an attempt has ended before who waits for it went on.
            assert self._decided is not None
            await self._decided.wait()
        return self._inner

    def cancel(self) -> bool:
        if self._inner is not None:
            return bool(self._inner.cancel())
        if self._error is not None:
            return False
        self._balancer.pending.leave(self)
        was_sent = bool(self.attempts.tried)
        self._balancer.call_ends.count(
            grpc.StatusCode.CANCELLED, self.counts, was_sent, self.attempts.observed
        )
        self._end(asyncio.CancelledError())
        return True

    def cancelled(self) -> bool:
        if self._inner is not None:
            return bool(self._inner.cancelled())
        return isinstance(self._error, asyncio.CancelledError)

    def done(self) -> bool:
        if self._inner is not None:
            return self._attempt_end.has_come
        return self._error is not None

    def time_remaining(self) -> float | None:
        if self._inner is not None:
            with suppress(NotImplementedError):  # of calls with interceptors
                remaining: float | None = self._inner.time_remaining()
                return remaining
        if self._deadline is None:
            return None
        return max(0.0, self._deadline - self._balancer.clock())

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        if self.done():
            callback(self)  # what it raises is the caller's own, as in grpc.aio
        else:
            self._callbacks = (*self._callbacks, callback)

    async def _ask(self, question: str) -> Any:
        """What the last attempt answers to `question`, a method of grpc.aio's call;
        None if the call was not sent."""
        while (inner := await self._observed()) is not None:
            answer = await getattr(inner, question)()
            if inner is self._inner:
                return answer
        return None

    async def _ask_of_end(self, question: str) -> Any:
        """Like `_ask`, for a part of the status: grpc.aio tells a provisional status
        while it knows only that a write has failed."""
        answer = await self._ask(question)
        while (inner := self._inner) is not None and is_provisional(inner):
            await self._attempt_end.wait()
            if inner is self._inner:
                end = self._attempt_end
                if end.error is not None:
                    return getattr(end.error, question)()
                # It has ended with OK, and a write failed because of that.
                served = end.served
                return answer if served is None else _part_of_ok(question, served)
            answer = await self._ask(question)
        return answer

    async def initial_metadata(self) -> Any:
        # Does not wait for the end, which may come only once somebody reads.
        metadata = await self._ask("initial_metadata")
        if metadata is None and isinstance(self._error, grpc.aio.AioRpcError):
            metadata = self._error.initial_metadata()  # of a call that we gave up
        return grpc.aio.Metadata() if metadata is None else metadata

    async def trailing_metadata(self) -> Any:
        metadata = await self._ask_of_end("trailing_metadata")
        return grpc.aio.Metadata() if metadata is None else metadata

    async def code(self) -> grpc.StatusCode:
        code: grpc.StatusCode | None = await self._ask_of_end("code")
        error = self._error
        if code is not None:
            error = self._attempt_end.error or error_of(self._inner)
        if error is not None and code is not OK:
            self._explain(error)
        return self._unsent_status()[0] if code is None else code

    async def details(self) -> str:
        details: str | None = await self._ask_of_end("details")
        return self._unsent_status()[1] if self._inner is None else details or ""

    async def debug_error_string(self) -> str | None:
        debug: str | None = await self._ask_of_end("debug_error_string")
        if self._inner is None and not self.cancelled():
            return ""  # as in grpc.aio
        return debug

    async def wait_for_connection(self) -> None:
        await self._on_inner(self._started, "wait_for_connection")

    async def _on_inner(
        self, inner_call: Callable[[], Any], act: str, *arguments: Any
    ) -> Any:
        """Awaits the method `act` of the inner call, and again of the next inner call
        if the attempt has failed and another one has followed."""
        while True:
            inner = self._inner or await inner_call()
            before = cancellations()
            try:
                answer = await getattr(inner, act)(*arguments)
                if self._inner in (inner, None) or act != "read":
                    return answer
            except asyncio.CancelledError:
                if not await self._was_given_up(inner, before):
                    if inner_call == self._started:
                        self.cancel()  # what grpc.aio has not begun, it leaves alone
                    raise
            except Exception as error:
                if not await self._goes_on(inner, error):
                    self._raise(error)

    async def _was_given_up(self, inner: Any, before: int) -> bool:
        """Whether a CancelledError came because this client gave up the attempt, and
        nobody cancelled the awaiting task, whose `cancellations` were `before`."""
        if not cause_of(inner):
            return False
        if cancellations() > before:
            self.cancel()  # what may have followed, too
            return False
        if inner is self._inner:  # beneath interceptors it ends a little later
            await self._attempt_end.wait()
        return True

    async def _goes_on(self, inner: Any, error: Exception) -> bool:
        """Whether another attempt has followed the one that failed."""
        if inner is self._inner and isinstance(error, grpc.aio.AioRpcError):
            await self._attempt_end.wait()
        return inner is not self._inner

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
        end = "was given up" if marked(self) is not None else "was not sent"
        return f'<{name} that {end}: {code}, "{details}">'

    def _abandon(self) -> None:
        """Ends the inner call, from whichever thread collects the wrapper."""
        inner = self._inner
        if inner is None or inner.done():
            return
        # Later, and there: a collection can happen in the midst of anything.
        with suppress(RuntimeError):  # the loop is closed, and so is the call
            self._balancer.loop.call_soon_threadsafe(inner.cancel)
            self._balancer.loop.call_soon_threadsafe(self._fire)


class AttemptEnd:
    """The done callback of one attempt. Acts once, when the status is final.

    `find` returns the attempt's call, if that is still there. While the call has
    another attempt in flight, `leave_to_other` is called first. It returns whether the
    call is left to that one.
    """

    leave_to_other: Callable[["AttemptEnd", Any, int, Trailers], bool] | None = None
    error: grpc.aio.AioRpcError | None = None  # of a stream that may be written to yet
    served: Trailers | None = None  # the trailers, if its status is OK

    def __init__(
        self,
        balancer: Balancer,
        attempt: Attempt,
        find: Callable[[], Call | None],
        siblings: Any,
    ) -> None:
        self.has_come = False
        self._siblings = siblings  # grpc.aio's calls on the same connection
        self._awaited: asyncio.Event | None = None
        self._balancer = balancer
        self.attempt = attempt
        self._find = find
        self._patience = PATIENCE

    async def wait(self) -> None:
        if not self.has_come:
            self._awaited = self._awaited or asyncio.Event()
            await self._awaited.wait()

    def __call__(self, inner: Any) -> None:
        """A done callback of the attempt."""
        if self.has_come:
            return
        self._siblings.discard(inner)
        call = self._find()
        code, trailers = final_status(inner)
        if code and is_provisional(inner) and self._patience:
            self._patience -= 1
            self._balancer.loop.call_later(PAUSE, self, inner)
            return
        self.has_come = True
        if self._awaited is not None:
            self._awaited.set()
        if call is not None and call.streams_requests:
            # A write that fails later has grpc.aio tell another status.
            if code:
                self.error = error_of(inner)
            else:
                self.served = trailers
        del self._find  # or the two would keep each other, and the connection
        leave, self.leave_to_other = self.leave_to_other, None
        if leave is not None and leave(self, inner, code, trailers):
            return
        if code == CANCELLED and was_not_begun(inner):
            self._take_back(call)
        elif call is None:
            settle_orphan(self._balancer, self.attempt, inner, code, trailers)
        elif code:
            call.attempt_over(call.failed(code, trailers))
        else:
            call.attempts.served(self.attempt, trailers)
            call.attempt_over(None)

    def _take_back(self, call: Call | None) -> None:
        tried = self.attempt.number - 1
        self._balancer.forget(self.attempt, tried)
        if call is not None:
            call.take_back()
            call.attempt_over(None)


def _part_of_ok(question: str, trailers: Trailers) -> Any:
    if question == "trailing_metadata":
        return grpc.aio.Metadata(*trailers)
    return OK if question == "code" else ""


class UnaryResponse(Call):
    def __await__(self) -> Generator[Any, None, Any]:
        while True:
            if self._inner is None:
                yield from self._started().__await__()
            inner = self._inner
            # `cancellations`, as in `direct`
            task = asyncio.current_task(self._balancer.loop)
            before = 0 if task is None else task.cancelling()
            try:
                response = yield from inner.__await__()
                if inner is self._inner:  # else we gave it up before: see `failed`
                    return response
            except asyncio.CancelledError:
                if not (yield from self._was_given_up(inner, before).__await__()):
                    raise
            except grpc.aio.AioRpcError as error:
                if not (yield from self._goes_on(inner, error).__await__()):
                    self._raise(error)


class UnaryUnaryCall(UnaryResponse, grpc.aio.UnaryUnaryCall[Any, Any]): ...
