"""The context of a handler in the thread pool."""

from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from time import thread_time
from typing import Any, Never, TypeVar

import grpc
import grpc.aio
from grpc import StatusCode

from lbclient.core.criticality import current_or_default
from lbclient.core.overload.concurrency import RequestOutcome
from lbclient.core.report.load_monitor import Sizes
from lbclient.server.overload.adaptive import note_outcome
from lbclient.server.overload.refusal_status import OVERTAKEN_STATUS, RefusalStatus
from lbclient.server.quotas.cpu_timing import account, run_timed
from lbclient.server.report.reporter import Trailers
from lbclient.server.requests import raised
from lbclient.server.requests.context import (
    ContextlessRequest,
    RequestContext,
    not_ok,
    stands_for,
    status_of,
)
from lbclient.server.requests.messages import measured
from lbclient.server.requests.served_method import ServedMethod
from lbclient.wire import propagation

T = TypeVar("T")

_OK = StatusCode.OK


class Aborted(grpc.aio.AbortError):
    """A handler that yields in a thread aborted: its client is told in order."""


class ClientHasLeft(grpc.aio.AbortError):
    """A handler in a thread aborted a request whose client no longer waits for it."""


class ThreadContext(RequestContext):
    """The context of a handler in the thread pool.

    It begins and ends on the loop's thread; nothing is counted in other threads.
    """

    __slots__ = (
        "_answered",
        "_began_at",
        "_context",
        "_cpu",
        "_request",
        "_threads",
        "has_aborted",
        "lost_to",
    )

    ending_process: tuple[type[BaseException], ...] = (KeyboardInterrupt, SystemExit)

    def __init__(self, method: ServedMethod, inner: Any) -> None:
        super().__init__(method, inner)
        self._answered: StatusCode | None = None
        self.has_aborted = False  # and the client is to be told; see YieldingContext
        # In threads, as the loop hears of these too late: CPU seconds, and when the
        # work that runs began, 0.0 if none does.
        self._cpu = self._began_at = 0.0
        self._request = ContextlessRequest(method.gate, inner)
        self.adopt(copy_context())
        note_outcome(RequestOutcome.GIVEN_UP)  # unless its thread answers
        self._threads = method.threads
        self._threads.queue(self, self.begun_at, current_or_default())
        # What it is told if it does not wait any more when it gets its thread.
        self.lost_to: RefusalStatus | None = None

    def enter(self, inner: Any) -> None:
        """Takes grpcio's context, once the request has a thread."""
        self.inner = self._request.inner = inner
        drain = self._reporter.drain
        if drain is not None:
            drain.request_began(inner.peer())

    def refused(self, answer: RefusalStatus) -> None:
        """Aborts with a refusal, in the request's thread. Raises."""
        self._abort(answer.code, answer.details, self._refusing(answer))

    def refuse(self, answer: RefusalStatus, reason: str) -> None:
        """Ends the request before its handler begins."""
        self.refusal = answer
        gate = self._method.gate
        gate.count(reason, is_for_load=answer.is_for_load)
        self._finish(lambda: answer.code)

    def lose_place(self, refuse: Callable[[], RefusalStatus]) -> bool:
        """Ends the request while it waits; False: it has just got its thread.

        It is told when its turn comes, which takes next to none of a thread. `refuse`
        is called once the place is lost, and not if the request keeps it.
        """
        # Until `refuse` has returned, as its thread may ask before.
        self.lost_to = OVERTAKEN_STATUS
        if not self._threads.leave(self):
            return False
        self.refusal = self.lost_to = answer = refuse()
        self._context.run(self._finish, lambda: answer.code)
        return True

    def adopt(self, context: Context) -> None:
        """Sets the context variables with which the handler runs: those of the task."""
        self._context = context
        context.run(propagation.enter, self._request)

    def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Runs `work` with the request's context variables, charged to its payer."""
        cost = self._context.get(account)
        if cost is None:
            return self._context.run(work, *arguments)
        cost.method = self._method.cost
        gate = self._method.gate
        before, self._began_at = self._began_at, thread_time()
        try:
            return self._context.run(run_timed, gate.loop, cost, work, *arguments)
        finally:
            self._cpu += thread_time() - self._began_at
            self._began_at = before

    def abort(
        self,
        code: StatusCode,
        details: str = "",
        trailing_metadata: Iterable[Any] = (),
    ) -> Never:
        code, details = not_ok(code), raised.encodable(details)
        self._abort(code, details, self._aborting(code, trailing_metadata))

    def _abort(self, code: StatusCode, details: str, trailers: Trailers) -> Never:
        """Raises, whether or not the client has left.

        If it has, grpcio's own abort returns up to 1.84, so that a handler would go on;
        since 1.85 it raises an InternalError.
        """
        try:
            self.inner.abort(code, details, trailers)
        except grpc.aio.InternalError as error:
            raise ClientHasLeft from error
        raise ClientHasLeft

    def abort_with_status(self, status: grpc.Status) -> Never:
        self.abort(status.code, status.details, status.trailing_metadata or ())

    def failed(self, error: BaseException) -> None:
        """Ends the request after its handler raised `error`.

        An error that grpcio would not tell the client is replaced by an error that it
        does. The context cannot tell the client itself: it would have to wait for the
        loop, in a thread that may outlive it. KeyboardInterrupt and SystemExit end the
        process of an asyncio server, and so the connection. Unlike in `AsyncContext`, a
        cancellation by the client is never raised here.
        """
        if (refusal := self._refused_below(error)) is not None:
            self.abort(*refusal)
        is_answered = self._answered is not None
        self._raised()
        if is_answered or isinstance(error, self.ending_process):
            return
        if not raised.is_told(error, in_thread=True):
            raise RuntimeError(raised.text_of(error)) from error

    def served(self) -> None:
        code = self.said or _OK
        self._pass_on_refusal(code)
        self.inner.set_trailing_metadata(self._answer(code))

    def _pass_on_refusal(self, code: Any) -> None:
        self.downstream = max(self.downstream, self._request.downstream)
        super()._pass_on_refusal(code)

    def ended(self, _task: object = None) -> None:
        self._threads.leave(self)
        super().ended()

    def _answer(self, code: Any) -> Trailers:
        self._answered = status_of(code)
        self._note(self._answered, self._context)
        return self._merged(self._trailers)

    def _cost(self) -> float | None:
        cost = self._context.get(account)
        if cost is None:
            return None
        running = thread_time() - self._began_at if self._began_at else 0.0
        return cost.factor * (self._cpu + running)

    def _interrupted(self) -> StatusCode:
        return self._answered or super()._interrupted()

    def _sizes(self) -> Sizes | None:
        sizes = self._context.get(measured)
        return None if sizes is None else (sizes.received, sizes.sent)


class YieldingContext(ThreadContext):
    """The context of a handler that yields its responses in the thread pool.

    grpcio sends a response while the thread makes the next one. An abort meanwhile
    fails in gRPC's core, and the client gets no answer: so it is told when all that was
    yielded is sent.
    """

    __slots__ = ()

    def abort(
        self,
        code: StatusCode,
        details: str = "",
        trailing_metadata: Iterable[Any] = (),
    ) -> Never:
        if self.has_aborted:
            raise grpc.aio.UsageError("Abort already called!")  # as grpcio says it
        super().abort(code, details, trailing_metadata)

    def _abort(self, code: StatusCode, details: str, trailers: Trailers) -> Never:
        self.inner.set_code(code)
        if details:
            self.inner.set_details(details)
        self.inner.set_trailing_metadata(trailers)
        self.has_aborted = True
        raise Aborted


stands_for(grpc.ServicerContext, ThreadContext)
