"""A call that is sent to one backend after the other, and how its caller awaits that.

A call that no server has taken is sent again, to another backend if there is one. So
is a call that failed and may be executed twice (`retry`). Its caller does not notice.
"""

import asyncio
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, NoReturn

import grpc

from lbclient import wire
from lbclient.background.tasks import cancellations
from lbclient.client.backends.backend import Backend
from lbclient.client.balancer import Balancer
from lbclient.client.calls.attempt import Attempt
from lbclient.client.calls.attempt_outcome import outcome_of_failed
from lbclient.client.calls.attempts import Attempts, Next
from lbclient.client.calls.waiting import WaitingCall
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
from lbclient.wire.local_errors import BackendsFull, NoBackend

logger = Log(__name__)

PAUSE, PATIENCE = 0.001, 200  # seconds, times: how long a true status may take
OK = grpc.StatusCode.OK


class SendingCall(WaitingCall):
    """A call whose backend may come later, or change.

    It was sent if it has `_inner`, grpc.aio's call of its last attempt. If it has
    `_error`, it is over, and no call of grpc.aio's says how. It never has both.

    With `error` it is over from the start, as its request could not be serialized, for
    example. `then` is when and where it is sent, if that is decided already.
    """

    _lbclient: Attempt  # the last attempt, where `marked` finds it
    streams_requests = False
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
        self._callbacks: tuple[Callable[[Any], None], ...] = ()
        self._waited_until = now
        if error is not None:
            self._wait_over = asyncio.Event()
            self._end(error)
        elif then is None:
            self._find_backend(now)
        else:
            self._go_on(then)

    # --- its attempts ---------------------------------------------------------------

    def _go_on(self, then: Next) -> None:
        if then.delay:
            self._find_backend_in(then.delay)
        else:
            self._waits_since = then.at
            if then.backend is None:
                self._wait(then.at)
            else:
                self.start(then.backend, then.at)

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
            if self._wait_over is None and not attempts.tried:
                raise  # grpc.aio's own complaint about an argument
            self._wait_over = self._wait_over or asyncio.Event()
            self._end(error)
            return
        self._lbclient, self._inner = attempt, inner
        balancer = self._balancer
        backend.load.begin()
        if self._wait_over is not None:
            balancer.counters.begun_after(waited)
            self._end_wait()
        self._attempt_end = AttemptEnd(balancer, attempt, self._finder(), siblings)
        inner.add_done_callback(self._attempt_end)
        if attempts.on_move is not None:
            self._note_resumable()

    def _send(self, *arguments: Any) -> Any:
        """Starts an attempt, in the context of who made the call: what ends a wait is
        mostly the end of somebody else's call."""
        start, context = self.attempts.start, self._context
        return start(*arguments) if context is None else context.run(start, *arguments)

    def _note_resumable(self) -> None:
        backend, hints = self._lbclient.backend, self.attempts.hints
        self._balancer.pickers.streams.begun(self, backend, self._inner, hints)

    def _finder(self) -> "Callable[[], SendingCall | None]":
        """Returns what the inner call finds this one by when it is over. It keeps this
        call alive until then; streams return a weak reference instead."""
        return self._itself

    def _itself(self) -> "SendingCall":
        return self

    def failed(self, code: int, trailers: Trailers) -> Next | None:
        """Handles the failure of the last attempt. Returns when and where the next
        attempt goes, or None if the call has failed."""
        attempt, inner, deadline = self._lbclient, self._inner, self._deadline
        is_repeatable = not self._is_committed()
        then = self.attempts.failed(
            attempt, inner, code, trailers, deadline, is_repeatable
        )
        if then is None and cause_of(inner):
            self._error, self._inner = self.attempts.give_up(attempt, inner), None
        return then

    def _is_committed(self) -> bool:
        """Whether a retry is impossible: the caller has read a response, or written a
        request that was not kept."""
        return False

    def attempt_over(self, then: Next | None) -> None:
        """Starts the next attempt as `then` says; None ends the call."""
        if then is None:
            self._run_callbacks()
            return
        self._inner = self._wait_over = None
        self._go_on(then)

    def take_back(self) -> None:
        """Forgets the last attempt, which was never sent, and ends the attempts."""
        self.attempts.end()
        tried = self.attempts.tried
        before = tried and self._lbclient._replace(backend=tried[-1], number=len(tried))
        mark(self, before or None)

    # --- its end --------------------------------------------------------------------

    def done(self) -> bool:
        if self._inner is not None:
            return self._attempt_end.has_come
        return self._error is not None

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        if self.done():
            callback(self)  # what it raises is the caller's own, as in grpc.aio
        else:
            self._callbacks = (*self._callbacks, callback)

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

    def _end(self, error: BaseException) -> None:
        self._error = error
        self.attempts.end()
        self._run_callbacks()
        self._end_wait()

    def _run_callbacks(self) -> None:
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

    def _abandon(self) -> None:
        """Ends the inner call, from whichever thread collects the wrapper."""
        inner = self._inner
        if inner is None or inner.done():
            return
        # Later, and there: a collection can happen in the midst of anything.
        with suppress(RuntimeError):  # the loop is closed, and so is the call
            self._balancer.loop.call_soon_threadsafe(inner.cancel)
            self._balancer.loop.call_soon_threadsafe(self._run_callbacks)

    def time_remaining(self) -> float | None:
        if self._inner is not None:
            with suppress(NotImplementedError):  # of calls with interceptors
                remaining: float | None = self._inner.time_remaining()
                return remaining
        if self._deadline is None:
            return None
        return max(0.0, self._deadline - self._balancer.clock())

    # --- awaiting it ------------------------------------------------------------------

    async def _until_sent(self) -> Any:
        """Waits until the call is sent, or over. Returns the inner call; None: over."""
        while self._inner is None and self._error is None:
            # Again where an attempt has ended before who waits for it went on.
            assert self._wait_over is not None
            await self._wait_over.wait()
        return self._inner

    async def _sent(self) -> Any:
        """Waits for the inner call; raises what kept it from being sent."""
        inner = await self._until_sent()
        if isinstance(self._error, asyncio.CancelledError):
            raise asyncio.CancelledError
        if self._error is not None:
            self._explain(self._error)
            raise self._error
        return inner

    async def _sent_or_cancelled(self) -> Any:
        """Like `_sent`. If this wait is cancelled, so is the call."""
        try:
            return await self._sent()
        except asyncio.CancelledError:
            self.cancel()
            raise

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
        find: Callable[[], SendingCall | None],
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

    def answer_to(self, question: str, provisional: Any) -> Any:
        """A part of the status. grpc.aio's own is `provisional`, where it tells of a
        failed write instead."""
        if self.error is not None:
            return getattr(self.error, question)()
        if self.served is None:
            return provisional
        # It has ended with OK, and a write failed because of that.
        if question == "trailing_metadata":
            return grpc.aio.Metadata(*self.served)
        return OK if question == "code" else ""

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
            _settle_dropped(self._balancer, self.attempt, inner, code, trailers)
        elif code:
            call.attempt_over(call.failed(code, trailers))
        else:
            call.attempts.served(self.attempt, trailers)
            call.attempt_over(None)

    def _take_back(self, call: SendingCall | None) -> None:
        tried = self.attempt.number - 1
        self._balancer.forget(self.attempt, tried)
        if call is not None:
            call.take_back()
            call.attempt_over(None)


def _settle_dropped(
    balancer: Balancer, attempt: Attempt, call: Any, code: int, trailers: Trailers
) -> None:
    """Settles an attempt that ended after its call was dropped, and so is the last."""
    if not code:
        balancer.settle_served(attempt, wire.find_report(trailers))
        return
    now = balancer.clock()
    _, outcome = outcome_of_failed(attempt, call, code, trailers, now)
    balancer.settle(attempt, outcome, code, None, now)


class UnaryResponse(SendingCall):
    def __await__(self) -> Generator[Any, None, Any]:
        while True:
            if self._inner is None:
                yield from self._sent_or_cancelled().__await__()
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
