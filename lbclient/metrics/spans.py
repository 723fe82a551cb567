"""OpenTelemetry spans of calls and of their attempts, as gRFC A72 names them.

A call's span lasts from the call to its end; each attempt has one below it, whose
context is sent to the server. So a trace shows which backend each attempt went to, how
long it waited for that backend, and why there was another.
"""

from copy import copy
from typing import Any

import grpc
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from lbclient.client.observers import CallObserver
from lbclient.core.counting.call_counts import Method
from lbclient.core.counting.line_limit import LineLimit
from lbclient.core.model import Verdict
from lbclient.core.retries.retry import Decision
from lbclient.log import Log
from lbclient.wire.codes import STATUS_OF_NUMBER

logger = Log("lbclient.metrics")

FIRST = "the call's first attempt"
HEDGE = "a hedge, as the first attempt takes long"


class Tracing(CallObserver):
    """An observer of one channel."""

    def __init__(self, tracer: Tracer, target: str) -> None:
        self._tracer = tracer
        self._target = target
        self._limit = LineLimit()

    def begin(self, method: Method, now: float) -> "TracedCall":
        return TracedCall(self._tracer, method[1], self._target, self._limit)

    def __repr__(self) -> str:
        return f"<tracing of {self._target}>"


class TracedCall:
    """One call. What a span processor raises is logged, and costs no call."""

    __slots__ = ("_attempt", "_inbound", "_limit", "_name", "_outbound", "_reason",
                 "_retries", "_sent", "_tracer", "_was_resent")  # fmt: skip

    def __init__(
        self, tracer: Tracer, path: str, target: str, limit: LineLimit
    ) -> None:
        self._tracer = tracer
        self._limit = limit
        self._name = name = path.removeprefix("/").replace("/", ".")
        self._reason = FIRST
        self._retries = 0
        self._was_resent = False
        self._attempt: Span | None = None
        self._outbound = self._inbound = 0  # messages of the attempt
        attributes = {"grpc.method": path.removeprefix("/"), "grpc.target": target}
        self._sent = _start(tracer, f"Sent.{name}", None, attributes)

    def attempt_begins(
        self, address: str, number: int, waited: float, now: float, metadata: Any
    ) -> Any:
        context = trace.set_span_in_context(self._sent)
        span = self._attempt = _start(
            self._tracer,
            f"Attempt.{self._name}",
            context,
            {
                "previous-rpc-attempts": self._retries,
                "transparent-retry": self._was_resent,
                "lbclient.backend": address,
                "lbclient.attempt": number,
                "lbclient.wait": waited,
                "lbclient.reason": self._reason,
            },
        )
        self._outbound = self._inbound = 0
        if waited > 0.0 and span.is_recording():
            span.add_event("Delayed LB pick complete")
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(span))
        if not carrier:
            return metadata
        # gRPC's keys are in lower case, those of HTTP propagators need not be.
        told = {key.lower(): value for key, value in carrier.items()}
        if _flaw_of(told.items()) is not None:
            told = self._legal(told, now)
        # In place of what the attempt before was sent with.
        kept = [pair for pair in metadata or () if pair[0] not in told]
        return grpc.aio.Metadata(*kept, *told.items())

    def _legal(self, told: dict[str, str], now: float) -> dict[str, str]:
        """What gRPC can send of a trace's context: a call would fail for the rest."""
        flaws = [(key, _flaw_of(((key, value),))) for key, value in told.items()]
        if self._limit.take(now) is not None:
            first = next(flaw for _, flaw in flaws if flaw is not None)
            reason = first.details() if isinstance(first, grpc.RpcError) else first
            logger.warning("left out of a trace's context: %s", reason, reason=reason)
        return {key: told[key] for key, flaw in flaws if flaw is None}

    def attempt_over(
        self,
        code: int,
        took: float,
        verdict: Verdict,
        then: Decision | None,
        now: float,
    ) -> None:
        span, self._attempt = self._attempt, None
        reason = "" if then is None else then.reason
        if span is not None:
            span.set_attribute("lbclient.verdict", verdict.value)
            _end(span, code, reason)
        if then is None or then.delay is None:
            self._over(code, reason)
            return
        # A server has executed neither.
        self._was_resent = then.is_resend or then.is_declined
        self._retries += not self._was_resent
        self._reason = reason

    def of_one(self, sent_at: float) -> "TracedCall":
        return self

    def for_hedge(self) -> "TracedCall":
        """The same call for its hedge, whose attempt has a span of its own."""
        hedge = copy(self)
        hedge._attempt, hedge._reason = None, HEDGE
        hedge._retries, hedge._was_resent = 1, False
        return hedge

    measures = False  # by itself: an `AwaitingCall` tells it
    attempt = 0

    def request_sent(self, size: int, awaited: list[Any]) -> None:
        self.message_sent(size)

    def message_sent(self, size: int) -> None:
        self._message("Outbound message", self._outbound, size)
        self._outbound += 1

    def message_received(self, size: int) -> None:
        self._message("Inbound message", self._inbound, size)
        self._inbound += 1

    def _message(self, event: str, number: int, size: int) -> None:
        """'The seq no. is a sequence of integer numbers starting from 0', gRFC A72."""
        if self._attempt is not None:
            told = {"sequence-number": number, "message-size": size}
            self._attempt.add_event(event, told)

    def over(self, code: int, now: float) -> None:
        self._over(code, "")

    def _over(self, code: int, reason: str) -> None:
        _end(self._sent, code, reason)

    def __repr__(self) -> str:
        return f"<traced call {self._name}>"


def _start(
    tracer: Tracer, name: str, context: Context | None, attributes: dict[str, Any]
) -> Span:
    """A span that records nothing, if a sampler or a span processor fails."""
    try:
        return tracer.start_span(
            name, context, kind=SpanKind.CLIENT, attributes=attributes
        )
    except Exception as error:
        logger.exception("a span could not be started", reason=error)
        return trace.INVALID_SPAN


def _end(span: Span, code: int, reason: str) -> None:
    """'"OK" is recorded with status "OK", while other gRPC statuses are marked as
    "ERROR"' and 'include their code as a description', gRFC A72."""
    if code:
        name = STATUS_OF_NUMBER[code].name
        text = f"{name}, {reason}" if reason else name
        span.set_status(Status(StatusCode.ERROR, text))
    else:
        span.set_status(Status(StatusCode.OK))
    try:
        span.end()
    except Exception as error:
        logger.exception("a span processor failed", reason=error)


def _flaw_of(metadata: Any) -> Exception | None:
    # Imported late: under the kill switch nothing of it is loaded.
    from lbclient.grpc_seam import flaw_of

    return flaw_of(metadata)
