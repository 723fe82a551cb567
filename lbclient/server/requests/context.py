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
from lbclient.core.overload.concurrency import RequestOutcome
from lbclient.core.refusal import Refusal
from lbclient.core.report.load_monitor import Sizes
from lbclient.server.overload.adaptive import note_outcome, note_status
from lbclient.server.overload.gate import Gate
from lbclient.server.overload.refusal_status import RefusalStatus
from lbclient.server.quotas.cpu_timing import billed
from lbclient.server.report.reporter import Trailers
from lbclient.server.requests import raised
from lbclient.server.requests.handlers_metadata import (
    harmless,
    key_of,
    sendable,
    without_report,
)
from lbclient.server.requests.messages import measured
from lbclient.server.requests.served_method import ServedMethod
from lbclient.wire.codes import STATUS_OF_NUMBER
from lbclient.wire.propagation import (
    DownstreamResult,
    downstream_result,
    refusal_in,
    result_of,
    with_downstream_refusal,
)

_OK = StatusCode.OK
# Statuses that clients retry, or take for a refusal.
RETRIED_STATUSES = frozenset({StatusCode.UNAVAILABLE, StatusCode.RESOURCE_EXHAUSTED})
OK_DOWNSTREAM = DownstreamResult.OK

T = TypeVar("T")


class RequestContext:
    """A request: begins when it is made, and ends once, at the first report of its end.

    Owned by the handler that serves it.
    """

    __slots__ = (
        "_finished",
        "_method",
        "_reporter",
        "_trailers",
        "begun_at",
        "downstream",
        "inner",
        "refusal",
        "response",
        "said",
        "sizes",
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
        self.downstream = OK_DOWNSTREAM  # what its own calls were told
        self.refusal: RefusalStatus | None = None  # told in place of a handler
        # Of single messages, where they are measured. Of streams, `messages` counts.
        self.sizes: Sizes | None = None
        clock = reporter.clock
        self.begun_at = clock()
        monitor = reporter.monitor
        monitor.active += 1
        drain = reporter.drain
        if drain is not None and inner is not None:
            drain.request_began(inner.peer())

    def path(self) -> str:
        """Of its method; empty for one of too many. Searches all methods."""
        method = self._method
        return method.tally.call_counts.method_of(method.counts)[1]

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

    def set_details(self, details: str) -> None:
        self.inner.set_details(raised.encodable(details))

    def send_initial_metadata(self, initial_metadata: Iterable[Any]) -> Any:
        return self.inner.send_initial_metadata(sendable(harmless(initial_metadata)))

    def _aborting(self, code: StatusCode, trailers: Iterable[Any]) -> Trailers:
        self._trailers = self._true(trailers) or self._trailers
        self.said = code
        self._pass_on_refusal(code)
        return self._answer(code)

    def _refusing(self, answer: RefusalStatus) -> Trailers:
        """Ends a request refused before its handler begins; returns trailers."""
        self.refusal = answer
        self.said, self._trailers = answer.code, answer.trailers
        return self._answer(answer.code)

    def _true(self, metadata: Iterable[Any]) -> Trailers:
        """A handler's metadata, without the refusal and the reports of others.

        A handler that passes on the trailers of its own call would tell its client that
        this request was not executed, or report another server's load or cost.
        """
        own = sendable(harmless(metadata))
        keys = {key_of(item) for item in own}
        if wire.LOAD_KEY in keys:
            own = without_report(own)
        if wire.COST_KEY in keys:
            own = tuple(item for item in own if key_of(item) != wire.COST_KEY)
        if wire.REFUSAL_KEY in keys:
            word = wire.find_refusal(own)
            found = DownstreamResult.REFUSED if word is None else result_of(word)
            self.downstream = max(self.downstream, found)
            own = with_downstream_refusal(own, self.downstream)
        return own

    def _pass_on_refusal(self, code: Any) -> None:
        """Passes on a refusal of the handler's own call, so that callers do not retry.

        A refusal by a channel that is not ours is known only by its error, while the
        handler handles that.
        """
        if status_of(code) in RETRIED_STATUSES:
            self.downstream = max(self.downstream, downstream_result(sys.exception()))
            if self.downstream is not OK_DOWNSTREAM:
                self._trailers = with_downstream_refusal(
                    self._trailers, self.downstream
                )

    # What becomes of it

    def is_ok(self) -> bool:
        """Whether the handler has set no error so far; it may still raise one."""
        return self.said is None or status_of(self.said) is _OK

    def preset(self) -> None:
        """Sets trailers early, for a request whose end is noticed too late."""
        others = max(0, self._reporter.monitor.active - 1)
        # Without the cost, of which there is none yet.
        self.inner.set_trailing_metadata(self._reporter.trailers(others))

    def served(self) -> None:
        sizes = self.sizes
        is_unknown = sizes is None and self._method.measures
        if self.said is not None or self._finished or self._trailers or is_unknown:
            code = self.said or _OK
            self._pass_on_refusal(code)
            self.inner.set_trailing_metadata(self._answer(code))
            return
        # What `_answer` does, in a fifth of the time: this is the hot path.
        self._finished = True
        reporter = self._reporter
        clock = reporter.clock
        took = clock() - self.begun_at
        monitor = reporter.monitor
        monitor.active = active = monitor.active - 1
        monitor.uncounted.append((self._method, active, took, sizes))
        trailers = reporter.ready.get(active) or reporter.trailers(active)
        if reporter.tells_cost and (cost := billed()) is not None:
            trailers = reporter.with_cost(trailers, cost.cpu)
        self.inner.set_trailing_metadata(trailers)

    def _raised(self) -> None:
        """Sets the trailers with which grpcio tells the client of an exception."""
        code = self._code_of_error()
        self._pass_on_refusal(code)
        self.inner.set_trailing_metadata(self._answer(code))

    def _code_of_error(self) -> StatusCode:
        """The code that the handler set; UNKNOWN for none and OK, as in grpcio."""
        return status_of(not_ok(self.said or StatusCode.UNKNOWN))

    def _refused_below(self, error: BaseException) -> tuple[StatusCode, str] | None:
        """The status to end with if the handler's own call was refused, or None.

        grpcio would say UNKNOWN, and log it with a traceback.
        """
        refusal = None if self._finished else refusal_in(error)
        if refusal is None:
            return None
        self.downstream = max(self.downstream, downstream_result(refusal))
        return refusal.code(), refusal.details() or ""

    def ended(self, _task: object = None) -> None:
        """Ends the request when grpcio is done with it, for whatever reason."""
        self._finish(self._interrupted)

    def _answer(self, code: Any) -> Trailers:
        """Ends the request, and returns its trailers, which are to be sent at once."""
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
            sizes = (self.sizes or self._sizes()) if method.measures else None
            method.tally.finish(status, self.begun_at, method, is_error, sizes)

    def _sizes(self) -> Sizes | None:
        sizes = measured.get()
        return None if sizes is None else (sizes.received, sizes.sent)

    def _note(self, status: StatusCode, context: Context | None = None) -> None:
        """Notes the outcome for the adaptive limit: a quick failure is no success."""
        if self.refusal is not None:
            note_outcome(RequestOutcome.FAILED, context)
        else:
            note_status(status, context)

    def _is_error(self, status: StatusCode) -> bool:
        """Whether a status is an error of this task, and not of a quota."""
        if self.refusal is not None:
            return self.refusal.is_error
        if (
            self.downstream < DownstreamResult.OUT_OF_QUOTA
            or status not in RETRIED_STATUSES
        ):
            return True
        return wire.find_refusal(self._trailers) is not Refusal.QUOTA

    def _merged(self, own: Trailers) -> Trailers:
        """The handler's trailers and a load report, before the request has ended."""
        monitor = self._reporter.monitor
        others = monitor.active - (not self._finished)
        return self._with_report(own, max(0, others))

    def _with_report(self, own: Trailers, active: int | None = None) -> Trailers:
        reporter = self._reporter
        report = reporter.trailers(active)
        if reporter.tells_cost and (cost := self._cost()) is not None:
            report = reporter.with_cost(report, cost)
        if not own:
            return report
        # Envoy refuses more than one ORCA report: the user's own goes first.
        taken = [key_of(item) for item in own]
        return own + tuple(item for item in report if item[0] not in taken)

    def _cost(self) -> float | None:
        """Normalized CPU seconds so far, None if nobody counts them."""
        cost = billed()
        if cost is None:
            return None
        return cost.cpu + cost.factor * self._method.charging.running_cpu()

    def _interrupted(self) -> StatusCode:
        remaining = None if self.inner is None else self.inner.time_remaining()
        clock = self._reporter.clock
        return interrupted(clock() - self.begun_at, remaining)


def interrupted(lasted: float, remaining: float | None) -> StatusCode:
    """Whether a request ended by its deadline or by a cancel: grpcio does not tell.

    `lasted` and `remaining`: seconds since the request began, and to its deadline.
    """
    if remaining is None:
        return StatusCode.CANCELLED
    # On the wire a timeout above 1 s is rounded up by up to 1 %, so the client, whose
    # clock runs out first, cancels a little before our deadline.
    if remaining <= 0.005 + 0.01 * (lasted + remaining):
        return StatusCode.DEADLINE_EXCEEDED
    return StatusCode.CANCELLED


class ContextlessRequest:
    """Stands for a request that has no context yet, for calls made within it.

    Also for a request in a thread: its context would be kept alive by the context
    variables that it keeps.
    """

    __slots__ = ("_gate", "downstream", "inner")

    def __init__(self, gate: Gate, inner: Any = None) -> None:
        self._gate = gate
        self.inner = inner
        self.downstream = OK_DOWNSTREAM

    @property
    def is_strained(self) -> bool:
        return self._gate.is_strained

    def time_remaining(self) -> float | None:
        return None if self.inner is None else self.inner.time_remaining()


def status_of(code: Any) -> StatusCode:
    """A code as grpcio reads it: a number will do, nonsense is UNKNOWN."""
    if code is _OK or isinstance(code, StatusCode):
        return code
    return STATUS_OF_NUMBER.get(code, StatusCode.UNKNOWN)


def not_ok(code: Any) -> Any:
    """The code of an abort or an error: UNKNOWN in place of OK, as of `grpc.server`.

    grpc.aio ends a request that is aborted with OK without an answer.
    """
    return StatusCode.UNKNOWN if status_of(code) is _OK else code


def stands_for(context: ABCMeta, call: type[RequestContext]) -> None:
    """Lets `call` stand for grpcio's context, and pass on what it does not have.

    Not by `__getattr__`, which makes Python slower at each attribute.
    """
    context.register(call)
    for name in dir(context):
        if not name.startswith("_") and not hasattr(call, name):
            setattr(call, name, property(attrgetter(f"inner.{name}")))
