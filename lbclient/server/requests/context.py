"""One request in this server: the context of its handler, and the guard around it.

The handler sees grpcio's context, except that trailers carry the load report.
`set_trailing_metadata` replaces, and after `abort` it is too late to add anything,
so the merging must happen inside of these methods. Registered as subclasses of
grpcio's contexts, not derived: what these have and is not here goes to grpcio's.
"""

import asyncio
import logging
import sys
from abc import ABCMeta
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context, copy_context
from operator import attrgetter
from typing import Any, Never, TypeVar

import grpc
import grpc.aio
from grpc import StatusCode

from lbclient import grpc_seam, wire
from lbclient.core.concurrency import RequestOutcome
from lbclient.core.retry import Refusal
from lbclient.server.overload.adaptive import note_outcome, note_status
from lbclient.server.overload.gate import Gate
from lbclient.server.overload.refusals import Answer
from lbclient.server.quotas.accounting import account, run_timed
from lbclient.server.report.reporter import Trailers
from lbclient.server.requests import raised
from lbclient.server.requests.served_method import ServedMethod
from lbclient.wire import propagation
from lbclient.wire.codes import STATUS_OF_NUMBER

# In a server's metadata each of these ends the process: a failed check in C-core.
LETHAL = frozenset({"grpc-timeout", "grpclb_client_stats"})

_OK = StatusCode.OK
# Statuses that clients retry, or take for a refusal.
HANDED_UP = frozenset({StatusCode.UNAVAILABLE, StatusCode.RESOURCE_EXHAUSTED})
WELL = propagation.Below.WELL

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Call:
    """Begins when it is made, and ends once, whoever says so first.

    Owned by the handler that serves it.
    """

    __slots__ = (
        "_finished",
        "_method",
        "_reporter",
        "_trailers",
        "begun_at",
        "below",
        "inner",
        "refusal",
        "response",
        "said",
    )
    # For `AsyncResponse` alone: what a handler that is timed answered, for a moment.
    response: Any

    def __init__(self, method: ServedMethod, inner: Any) -> None:
        self._method = method
        self._reporter = reporter = method.reporter
        self.inner = inner
        self.said: Any = None  # the code, as its handler set it
        self._trailers: Trailers = ()  # the handler's own
        self._finished = False
        self.below = WELL  # what its own calls were told
        self.refusal: Answer | None = None  # what it is told in place of a handler
        clock = reporter.clock
        self.begun_at = clock()
        monitor = reporter.monitor
        monitor.active += 1
        drain = reporter.drain
        if drain is not None and inner is not None:
            drain.request_began(inner.peer())

    # What a handler does

    def set_trailing_metadata(self, trailing_metadata: Iterable[Any]) -> None:
        own = self._true(trailing_metadata)
        self.inner.set_trailing_metadata(self._merged(own))
        self._trailers = own

    def trailing_metadata(self) -> Trailers:
        return self._trailers

    def set_code(self, code: StatusCode) -> None:
        self.inner.set_code(code)
        self.said = code

    def code(self) -> Any:
        return self.said

    def send_initial_metadata(self, initial_metadata: Iterable[Any]) -> Any:
        return self.inner.send_initial_metadata(_harmless(initial_metadata))

    def _aborting(self, code: StatusCode, trailers: Iterable[Any]) -> Trailers:
        self.said = code
        self._trailers = self._true(trailers) or self._trailers
        self._hand_up(code)
        return self._answer(code)

    def _refusing(self, answer: Answer) -> Trailers:
        """Before its handler has begun, which could say none of that truthfully."""
        self.refusal = answer
        self.said, self._trailers = answer.code, answer.trailers
        return self._answer(answer.code)

    def _true(self, metadata: Iterable[Any]) -> Trailers:
        """What a handler may say: not that it was not executed, nor another's load.

        It has that from a call of its own, and hands on all that it was told.
        """
        own = _harmless(metadata)
        keys = {_key(item) for item in own}
        if wire.LOAD_KEY in keys:
            own = _without_report(own)
        if wire.REFUSAL_KEY in keys:
            word = wire.find_refusal(own)
            found = (
                propagation.Below.REFUSED if word is None else propagation.said(word)
            )
            self.below = max(self.below, found)
            own = propagation.handed_up(own, self.below)
        return own

    def _hand_up(self, code: Any) -> None:
        """What was refused below is not to be tried again above.

        Of a call on a channel that is not ours only its error knows, if it is the one
        that is being handled.
        """
        if status_of(code) in HANDED_UP:
            self.below = max(self.below, propagation.below(sys.exception()))
            if self.below is not WELL:
                self._trailers = propagation.handed_up(self._trailers, self.below)

    # What becomes of it

    def is_ok(self) -> bool:
        """As far as the handler said; it may still raise."""
        return self.said is None or status_of(self.said) is _OK

    def preset(self) -> None:
        """For an end that comes where we do not see it in time."""
        self.inner.set_trailing_metadata(self._merged(()))

    def served(self) -> None:
        if self.said is not None or self._finished or self._trailers:
            code = self.said or _OK
            self._hand_up(code)
            self.inner.set_trailing_metadata(self._answer(code))
            return
        # What `_answer` does, in a fifth of the time: this is the hot path.
        self._finished = True
        reporter = self._reporter
        clock = reporter.clock
        took = clock() - self.begun_at
        monitor = reporter.monitor
        monitor.active = active = monitor.active - 1
        monitor.untold.append((self._method, active, took))
        trailers = reporter.ready.get(active) or reporter.trailers(active)
        self.inner.set_trailing_metadata(trailers)

    def _raised(self) -> None:
        """grpcio tells the client, and sends these trailers."""
        code = self._code_of_error()
        self._hand_up(code)
        self.inner.set_trailing_metadata(self._answer(code))

    def _code_of_error(self) -> StatusCode:
        """As in grpcio: the code that was set, if it is one of an error."""
        code = status_of(self.said or StatusCode.UNKNOWN)
        return StatusCode.UNKNOWN if code is StatusCode.OK else code

    def _refused_below(self, error: BaseException) -> tuple[StatusCode, str] | None:
        """How to end a request whose handler raised this, if that is a refusal.

        grpcio would say UNKNOWN, and log it with a traceback.
        """
        refusal = None if self._finished else propagation.refusal_in(error)
        if refusal is None:
            return None
        self.below = max(self.below, propagation.below(refusal))
        return refusal.code(), refusal.details() or ""

    def ended(self, _task: object = None) -> None:
        """grpcio is done with the request, for whatever reason."""
        self._finish(self._interrupted)

    def _answer(self, code: Any) -> Trailers:
        """Ends the request; the trailers are to be sent at once."""
        self._finish(lambda: status_of(code))
        return self._with_report(self._trailers)

    def _finish(self, code: Callable[[], StatusCode]) -> None:
        if not self._finished:
            self._finished = True
            status = code()
            if status is not _OK:
                self._note(status)
            is_error = status is not _OK and self._is_error(status)
            method = self._method
            tally = method.tally
            tally.finish(status, self.begun_at, method, is_error)

    def _note(self, status: StatusCode, context: Context | None = None) -> None:
        """For the adaptive limit: what fails at once is no quick request."""
        if self.refusal is not None:
            note_outcome(RequestOutcome.FAILED, context)
        else:
            note_status(status, context)

    def _is_error(self, status: StatusCode) -> bool:
        """Of this task; a customer out of quota, here or below, is none."""
        if self.refusal is not None:
            return self.refusal.is_error
        if self.below < propagation.Below.OUT_OF_QUOTA or status not in HANDED_UP:
            return True
        return wire.find_refusal(self._trailers) is not Refusal.QUOTA

    def _merged(self, own: Trailers) -> Trailers:
        """While the request is still among the active ones."""
        monitor = self._reporter.monitor
        others = monitor.active - (not self._finished)
        return self._with_report(own, max(0, others))

    def _with_report(self, own: Trailers, active: int | None = None) -> Trailers:
        report = self._reporter.trailers(active)
        if not own:
            return report
        # Envoy refuses more than one ORCA report: the user's own goes first.
        taken = [_key(item) for item in own]
        return own + tuple(item for item in report if item[0] not in taken)

    def _interrupted(self) -> StatusCode:
        remaining = None if self.inner is None else self.inner.time_remaining()
        clock = self._reporter.clock
        return interrupted(clock() - self.begun_at, remaining)


def interrupted(lasted: float, remaining: float | None) -> StatusCode:
    """Deadline or cancel: grpcio tells neither from the other.

    `lasted` and `remaining`: seconds since the request began, and to its deadline.
    """
    if remaining is None:
        return StatusCode.CANCELLED
    # On the wire a timeout above 1 s is rounded up by up to 1 %, so the client, whose
    # clock runs out first, cancels a little before our deadline.
    if remaining <= 0.005 + 0.01 * (lasted + remaining):
        return StatusCode.DEADLINE_EXCEEDED
    return StatusCode.CANCELLED


class Early:
    """A request that has no context of its own yet, for what is called within.

    Also for one in a thread, which keeps the context variables that would keep it.
    """

    __slots__ = ("_gate", "below", "inner")

    def __init__(self, gate: Gate, inner: Any = None) -> None:
        self._gate = gate
        self.inner = inner
        self.below = WELL

    @property
    def is_strained(self) -> bool:
        return self._gate.is_strained

    def time_remaining(self) -> float | None:
        return None if self.inner is None else self.inner.time_remaining()


class AsyncCall(Call):
    """What a coroutine or an async generator is given."""

    __slots__ = ()

    @property
    def is_strained(self) -> bool:
        gate = self._method.gate
        return gate.is_strained

    def time_remaining(self) -> float | None:
        return self.inner.time_remaining()  # type: ignore[no-any-return]

    def read(self) -> Coroutine[Any, Any, Any]:
        return self.inner.read()  # type: ignore[no-any-return]

    def write(self, message: Any) -> Coroutine[Any, Any, None]:
        serialize: Any = self._method.serialize
        return self.inner.write(serialize(message))  # type: ignore[no-any-return]

    async def abort(
        self,
        code: StatusCode,
        details: str = "",
        trailing_metadata: Iterable[Any] = (),
    ) -> Never:
        trailers = self._aborting(code, trailing_metadata)
        await self.inner.abort(code, details, trailers)
        raise AssertionError("grpcio's abort returned")

    async def abort_with_status(self, status: grpc.Status) -> Never:
        await self.abort(status.code, status.details, status.trailing_metadata or ())

    async def failed(self, error: BaseException) -> None:
        """Its handler has raised that, and its client is told, by grpcio or here.

        Raises what grpcio is to see in its place.
        """
        if (refusal := self._refused_below(error)) is not None:
            await self.abort(*refusal)
        if self._finished or raised.is_told(error):
            self._raised()
        elif isinstance(error, asyncio.CancelledError):
            await self._cancelled(error)
        elif isinstance(error, GeneratorExit) and propagation.current() is not self:
            self.ended()  # it is not raised, but ends what nobody runs any more
        else:
            await self._tell(error, self._code_of_error(), raised.told(error))

    async def _cancelled(self, error: BaseException) -> None:
        """By its client, by its deadline, or by the handler's own doing.

        grpcio cancels the task for a client that has gone. In a task that nobody has
        cancelled the error comes from below, from a call or a task that the handler
        awaited: for the client it is an error like any other, and no cancellation.
        Others than grpcio can cancel the task too; hence the attempt to tell, which
        finds out whether the client is there.
        """
        if not grpc_seam.cancellations():
            words = f"Unexpected {type(error)}: {raised.CANCELLED}"
            await self._tell(error, self._code_of_error(), words)
        elif self._interrupted() is StatusCode.CANCELLED:
            await self._tell(error, StatusCode.CANCELLED, raised.TASK_CANCELLED)
        else:
            self.ended()

    async def _tell(self, error: BaseException, code: StatusCode, words: str) -> None:
        self._hand_up(code)
        try:
            await self.inner.abort(code, words, self._merged(self._trailers))
        except grpc.aio.AbortError:
            self._finish(lambda: code)
            name = type(error).__name__
            logger.error("a handler raised this: %s", name, exc_info=error)
            if not isinstance(error, KeyboardInterrupt | SystemExit):
                raise
        except grpc.aio.BaseError:
            self.ended()  # its client has gone

    async def refuse(self, answer: Answer, reason: str = "") -> Never:
        """`reason`: if it is not counted yet."""
        if reason:
            gate = self._method.gate
            gate.count(reason)
        await self.inner.abort(answer.code, answer.details, self._refusing(answer))
        raise AssertionError("grpcio's abort returned")

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self.inner.add_done_callback(lambda _: callback(self))


class ClientHasLeft(grpc.aio.AbortError):
    """A handler in a thread aborted a request whose client no longer waits for it."""


class SyncCall(Call):
    """What a handler in the thread pool is given.

    Made on the loop's thread, and ended there: in a thread nothing is counted.
    """

    __slots__ = ("_answered", "_context", "_request", "_threads")

    def __init__(self, method: ServedMethod, inner: Any) -> None:
        super().__init__(method, inner)
        self._answered: StatusCode | None = None
        self._request = Early(method.gate, inner)
        self.adopt(copy_context())
        note_outcome(RequestOutcome.GIVEN_UP)  # unless its thread answers
        self._threads = method.threads
        self._threads.queue(self, self.begun_at)

    def enter(self, inner: Any) -> None:
        """It has a thread at last, and a context."""
        self.inner = self._request.inner = inner
        drain = self._reporter.drain
        if drain is not None:
            drain.request_began(inner.peer())

    def refused(self, answer: Answer) -> None:
        """Says so, in its thread. Raises."""
        self._abort(answer.code, answer.details, self._refusing(answer))

    def refuse(self, answer: Answer, reason: str) -> None:
        """Ends it before its handler begins."""
        self.refusal = answer
        gate = self._method.gate
        gate.count(reason)
        self._finish(lambda: answer.code)

    def adopt(self, context: Context) -> None:
        """Its handler runs in this context: that of the request's own task."""
        self._context = context
        context.run(propagation.enter, self._request)

    def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """In the context of the request, and at the cost of whoever pays for that."""
        payer = self._context.get(account)
        if payer is None:
            return self._context.run(work, *arguments)
        gate = self._method.gate
        return self._context.run(run_timed, gate.loop, payer, work, *arguments)

    def abort(
        self,
        code: StatusCode,
        details: str = "",
        trailing_metadata: Iterable[Any] = (),
    ) -> Never:
        self._abort(code, details, self._aborting(code, trailing_metadata))

    def _abort(self, code: StatusCode, details: str, trailers: Trailers) -> Never:
        """Raises, whether the client is there or not.

        If it has left, grpcio's own abort returns up to 1.84, so that a handler would
        go on; since 1.85 it raises an InternalError.
        """
        try:
            self.inner.abort(code, details, trailers)
        except grpc.aio.InternalError as error:
            raise ClientHasLeft from error
        raise ClientHasLeft

    def abort_with_status(self, status: grpc.Status) -> Never:
        self.abort(status.code, status.details, status.trailing_metadata or ())

    def failed(self, error: BaseException) -> None:
        """As of an `AsyncCall`. In a thread no client's cancellation is ever raised.

        What grpcio would not tell becomes an error that it does tell: to tell it here
        would be to wait for the loop, in a thread that may outlive it. But who ends the
        process ends it, and so the connection.
        """
        if (refusal := self._refused_below(error)) is not None:
            self.abort(*refusal)
        is_answered = self._answered is not None
        self._raised()
        if is_answered or isinstance(error, KeyboardInterrupt | SystemExit):
            return
        if not raised.is_told(error, in_thread=True):
            raise RuntimeError(raised.text_of(error)) from error

    def served(self) -> None:
        code = self.said or _OK
        self._hand_up(code)
        self.inner.set_trailing_metadata(self._answer(code))

    def _hand_up(self, code: Any) -> None:
        self.below = max(self.below, self._request.below)
        super()._hand_up(code)

    def ended(self, _task: object = None) -> None:
        self._threads.leave(self)
        super().ended()

    def _answer(self, code: Any) -> Trailers:
        self._answered = status_of(code)
        self._note(self._answered, self._context)
        return self._merged(self._trailers)

    def _interrupted(self) -> StatusCode:
        return self._answered or super()._interrupted()


def _stands_for(context: ABCMeta, call: type[Call]) -> None:
    """What the context has and `call` has not goes to grpcio's as it is.

    Not by `__getattr__`: Python then takes longer for every attribute there is.
    """
    context.register(call)
    for name in dir(context):
        if not name.startswith("_") and not hasattr(call, name):
            setattr(call, name, property(attrgetter(f"inner.{name}")))


_stands_for(grpc.aio.ServicerContext, AsyncCall)
_stands_for(grpc.ServicerContext, SyncCall)


def status_of(code: Any) -> StatusCode:
    """As grpcio reads it: a number will do, and nonsense is UNKNOWN."""
    if code is _OK or isinstance(code, StatusCode):
        return code
    return STATUS_OF_NUMBER.get(code, StatusCode.UNKNOWN)


def _harmless(metadata: Iterable[Any]) -> Trailers:
    """A copy of a user's metadata without what would kill the process."""
    items = tuple(metadata or ())
    if not LETHAL.isdisjoint(map(_key, items)):
        logger.warning("left out of metadata: %s", ", ".join(sorted(LETHAL)))
        items = tuple(item for item in items if _key(item) not in LETHAL)
    return items


def _without_report(own: Trailers) -> Trailers:
    """What is ours to say, and the same bytes by ORCA's name."""
    reports = [item[1] for item in own if _key(item) == wire.LOAD_KEY]
    return tuple(
        item
        for item in own
        if _key(item) != wire.LOAD_KEY
        and not (_key(item) == wire.ORCA_KEY and item[1] in reports)
    )


def _key(item: Any) -> Any:
    """None for what is no metadata at all, which grpcio will say better than we."""
    return item[0] if isinstance(item, tuple) and item else None
