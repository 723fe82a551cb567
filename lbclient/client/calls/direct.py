"""The call object of the hot path: grpc.aio's own, which can be sent again.

It is on a ready backend from the start, so it costs no wrapper and no task but
grpc.aio's. Should no server take it, a wrapped call carries on, and answers for it.
Imported with the first such call, for not every grpcio has all that it takes.
"""

from asyncio import CancelledError, current_task
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import grpc

from lbclient.background.tasks import cancellations
from lbclient.client.calls.attempt import Attempt
from lbclient.client.calls.attempts import Attempts, Method
from lbclient.client.calls.decline_marks import unmarked
from lbclient.grpc_seam import (
    CANCELLED,
    UNAVAILABLE,
    Trailers,
    asks_itself,
    cause_of,
    error_of,
    mark,
    was_not_begun,
)
from lbclient.grpc_seam.own_call import (
    UnaryUnaryCall,
    deadline_after,
    inner_of,
    metadata_of,
    request_of,
    status_of,
)
from lbclient.log import Log
from lbclient.wire import find_report, propagation

if TYPE_CHECKING:
    from lbclient.client.balancer import Balancer

OK = grpc.StatusCode.OK

logger = Log(__name__)


class DirectCall(UnaryUnaryCall):  # type: ignore[type-arg]  # generic since 1.81
    """A call on grpc.aio's own call object, and its one attempt. `later` is the call
    that carries on, if there is one, or that says why we gave this one up."""

    later: "grpc.aio.UnaryUnaryCall[Any, Any] | None" = None
    attempts: Attempts | None = None  # once this one has failed
    _callbacks: tuple[Callable[[Any], object], ...] = ()
    _lbclient_cause = ""  # as `cause_of` has it

    message = property(request_of)
    metadata = property(metadata_of)  # as it was sent

    def __init__(
        self,
        balancer: "Balancer",
        attempt: Attempt,
        method: Method,
        message: bytes,
        timeout: float | None,
        metadata: Any,
        credentials: grpc.CallCredentials | None,
        wait_for_ready: bool | None,
        siblings: Any,
        arguments: tuple[Any, ...],
    ) -> None:
        deadline = deadline_after(timeout)
        # This backend fails fast: to wait for it is no use while there are others.
        super().__init__(message, deadline, metadata, credentials, None, *arguments)
        self._timeout = timeout
        self.credentials = credentials
        self.wait_for_ready = wait_for_ready
        self.attempt = self._lbclient = attempt
        self.balancer = balancer
        self._method = method
        self._siblings = siblings
        siblings.add(self)
        attempt.backend.load.begin()
        inner_of(self).add_done_callback(self._attempt_over)

    def _attempt_over(self) -> None:
        self._siblings.discard(self)
        status = status_of(self)
        code, trailers = status.code(), status.trailing_metadata() or ()
        if code:
            self._failed(code, trailers)
        else:
            self.balancer.settle_served(self.attempt, find_report(trailers))
        if self._callbacks and self.later is None:
            self._tell(self)
        del self._method  # it keeps the channel

    def _failed(self, code: int, trailers: Trailers) -> None:
        balancer, attempt, timeout = self.balancer, self.attempt, self._timeout
        if cause := self._lbclient_cause:
            code, trailers = UNAVAILABLE, ()
        elif code == CANCELLED and was_not_begun(self):
            mark(self, None)
            balancer.forget(attempt, tried=0)
            return
        observed = None
        if attempt.observed is not None:
            observed = attempt.observed.of_one(attempt.sent_at)
            self.attempt = self._lbclient = attempt._replace(observed=observed)
            attempt = self.attempt
        metadata = self.metadata  # with the compression by now
        if balancer.decline_marks is not None:
            metadata = unmarked(metadata)
        options = {
            "metadata": metadata,
            "credentials": self.credentials,
        }
        method, request, error = self._method, self.message, None
        attempts = self.attempts = Attempts(
            balancer,
            method,
            request,
            attempt.criticality,
            options,
            attempt.counts,
            observed,
            attempt.hints,
        )
        deadline = None if timeout is None else attempt.sent_at + timeout
        then = attempts.failed(attempt, self, code, trailers, deadline)
        if then is None:
            if not cause:
                return
            error = attempts.give_up(attempt, self)
        now = balancer.clock() if then is None else then.at
        left = None if deadline is None else deadline - now
        later = method.wrapper(attempts, left, self.wait_for_ready, error, then)
        self.later = later
        later.add_done_callback(self._tell)

    def _was_given_up(self, before: int) -> bool:
        """As in `calls.sending`."""
        if not cause_of(self):
            return False
        if cancellations() > before:
            self.cancel()
            return False
        return True

    def _tell(self, _: object) -> None:
        callbacks, self._callbacks = self._callbacks, ()
        for callback in callbacks:
            try:
                callback(self)
            except Exception as error:
                words = "a done callback of %r failed"
                logger.exception(words, self, channel=self.balancer.label, reason=error)

    # --- grpc.aio's interface, where a later attempt may answer -----------------

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        if self.done():
            callback(self)
        else:
            self._callbacks = (*self._callbacks, callback)

    def __await__(self) -> Generator[Any, None, Any]:
        if self.later is None:
            # `cancellations`, written out: this is the hot path. It names the loop, or
            # asyncio looks for it by a system call.
            task = current_task(self.balancer.loop)
            before = 0 if task is None else task.cancelling()
            try:
                return (yield from super().__await__())
            except grpc.aio.AioRpcError as error:
                if self.later is None:
                    if self.attempts is not None:
                        self.attempts.explain(error, self.attempt, self)
                    raise
            except CancelledError:
                if not self._was_given_up(before):
                    raise
        assert self.later is not None  # set as it failed: whoever waits is told later
        return (yield from self.later.__await__())

    def cancel(self) -> bool:
        return super().cancel() if self.later is None else self.later.cancel()

    def cancelled(self) -> bool:
        # grpc.aio's own task, which a call that is given up ends, asks of this attempt.
        if self.later is None or asks_itself(self):
            return super().cancelled()
        return self.later.cancelled()

    def done(self) -> bool:
        return super().done() if self.later is None else self.later.done()

    def time_remaining(self) -> float | None:
        later = self.later
        return super().time_remaining() if later is None else later.time_remaining()

    async def initial_metadata(self) -> Any:
        metadata = await super().initial_metadata()
        return metadata if self.later is None else await self.later.initial_metadata()

    async def trailing_metadata(self) -> Any:
        metadata = await super().trailing_metadata()
        return metadata if self.later is None else await self.later.trailing_metadata()

    async def code(self) -> grpc.StatusCode:
        code = await super().code()
        if self.later is not None:
            return await self.later.code()
        if code is not OK:
            propagation.learn(error_of(self))
        return code

    async def details(self) -> str:
        details = await super().details()
        return details if self.later is None else await self.later.details()

    async def debug_error_string(self) -> str:
        said = await super().debug_error_string()
        if self.later is not None:
            return await self.later.debug_error_string() or ""  # type: ignore[attr-defined]
        return said

    async def wait_for_connection(self) -> None:
        before = cancellations()
        try:
            await super().wait_for_connection()
        except grpc.aio.AioRpcError:
            if self.later is None:
                raise
        except CancelledError:
            if not self._was_given_up(before):
                self.cancel()  # what grpc.aio has not begun, it leaves alone
                raise
        else:  # grpc.aio looks whether the call is done, which the later one is not
            if cause_of(self) and not self._was_given_up(before):
                raise CancelledError
        if self.later is not None:
            await self.later.wait_for_connection()

    def __repr__(self) -> str:
        return super().__repr__() if self.later is None else repr(self.later)

    __str__ = __repr__
