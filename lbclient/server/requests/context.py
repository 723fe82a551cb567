"""One request in this server: the context of its handler, and the guard around it.

The handler sees grpcio's context, except that trailers carry the load report.
`set_trailing_metadata` replaces, and after `abort` it is too late to add anything,
so the merging must happen inside of these methods. Registered as subclasses of
grpcio's contexts, not derived: what these have and is not here goes to grpcio's.
"""

import sys
from abc import ABCMeta
from collections.abc import Callable, Iterable
from contextvars import Context
from operator import attrgetter
from typing import Any, TypeVar

from grpc import StatusCode

from lbclient import wire
from lbclient.core.concurrency import RequestOutcome
from lbclient.core.retry import Refusal
from lbclient.server.overload.adaptive import note_outcome, note_status
from lbclient.server.overload.gate import Gate
from lbclient.server.overload.refusals import RefusalStatus
from lbclient.server.report.reporter import Trailers
from lbclient.server.requests.handlers_metadata import harmless, key_of, without_report
from lbclient.server.requests.served_method import ServedMethod
from lbclient.wire import propagation
from lbclient.wire.codes import STATUS_OF_NUMBER

_OK = StatusCode.OK
# Statuses that clients retry, or take for a refusal.
HANDED_UP = frozenset({StatusCode.UNAVAILABLE, StatusCode.RESOURCE_EXHAUSTED})
WELL = propagation.Below.WELL

T = TypeVar("T")


class RequestContext:
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
        self.refusal: RefusalStatus | None = None  # told in place of a handler
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
        return self.inner.send_initial_metadata(harmless(initial_metadata))

    def _aborting(self, code: StatusCode, trailers: Iterable[Any]) -> Trailers:
        self.said = code
        self._trailers = self._true(trailers) or self._trailers
        self._hand_up(code)
        return self._answer(code)

    def _refusing(self, answer: RefusalStatus) -> Trailers:
        """Before its handler has begun, which could say none of that truthfully."""
        self.refusal = answer
        self.said, self._trailers = answer.code, answer.trailers
        return self._answer(answer.code)

    def _true(self, metadata: Iterable[Any]) -> Trailers:
        """What a handler may say: not that it was not executed, nor another's load.

        It has that from a call of its own, and hands on all that it was told.
        """
        own = harmless(metadata)
        keys = {key_of(item) for item in own}
        if wire.LOAD_KEY in keys:
            own = without_report(own)
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
        monitor.uncounted.append((self._method, active, took))
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
        taken = [key_of(item) for item in own]
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


def status_of(code: Any) -> StatusCode:
    """As grpcio reads it: a number will do, and nonsense is UNKNOWN."""
    if code is _OK or isinstance(code, StatusCode):
        return code
    return STATUS_OF_NUMBER.get(code, StatusCode.UNKNOWN)


def stands_for(context: ABCMeta, call: type[RequestContext]) -> None:
    """What the context has and `call` has not goes to grpcio's as it is.

    Not by `__getattr__`: Python then takes longer for every attribute there is.
    """
    context.register(call)
    for name in dir(context):
        if not name.startswith("_") and not hasattr(call, name):
            setattr(call, name, property(attrgetter(f"inner.{name}")))
