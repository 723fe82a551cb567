"""A user's handler, wrapped so that each of its answers reports.

One wrapper per method, not per request. What a wrapper does is in `handler`, and by the
handler's kind in `async_handlers` and `thread_handlers`.
"""

from inspect import isasyncgenfunction, isawaitable, iscoroutinefunction
from typing import Any

from lbclient.core.counting.call_counts import OTHERS
from lbclient.server.overload.refusal_status import RefusalStatus
from lbclient.server.report.request_tally import Counts
from lbclient.server.requests import messages
from lbclient.server.requests.async_handlers import (
    AsyncResponse,
    AsyncResponses,
    AsyncWriter,
)
from lbclient.server.requests.context import ContextlessRequest
from lbclient.server.requests.handler import (
    Handler,
    Serving,
    Wrapped,
    arity_of,
    behavior_of,
)
from lbclient.server.requests.served_method import MOST_METHODS
from lbclient.server.requests.thread_handlers import SyncResponse, SyncResponses


class Wrapper:
    """Wraps handlers. Owned by the server.

    Its limit is not grpcio's: that one counts watchers, and refuses without a report.
    """

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        gate, reporter = serving.gate, serving.reporter
        self.refuses = gate.refuses
        self.let_by = gate.let_by
        self._adaptive = gate.adaptive
        self.request_name = reporter.request_name
        self.tally = serving.tally
        self._call_counts = serving.tally.call_counts
        self.known: dict[str, tuple[Handler, Any]] = serving.tally.kept_handlers()

    def wrap(self, handler: Handler, method: str = "") -> Any:
        """`method` is for the counts, and empty if it is none of this server's."""
        counts = self._counts(handler, method)
        return kind_of(handler)(self._serving, counts, handler)

    def refused(
        self, answer: RefusalStatus, method: str, handler: "Handler | None" = None
    ) -> Any:
        """What says that in place of the request's handler."""
        if handler is None and method in self.known:
            handler = self.known[method][0]
        return Refused(self._serving, answer, self._counts(handler, method))

    def limited(self, path: str, handler: "Handler | None" = None) -> Any:
        """What `refuses` is told of a request that the adaptive limit is for, or None.

        `handler` as it was found; None: the last one of that path.
        """
        if self._adaptive is None:
            return None
        if handler is None:
            known = self.known.get(path)
            if known is None:
                return None
            handler = known[0]
        if handler.request_streaming or handler.response_streaming:
            return None
        return self._adaptive.method(path)

    def _counts(self, handler: "Handler | None", method: str) -> Counts:
        if handler is None or not method:
            return self._call_counts.of(*OTHERS)
        return self._call_counts.of(arity_of(handler), method)

    def contextless(self) -> ContextlessRequest:
        """The request, to those who see it before its handler does."""
        return ContextlessRequest(self._serving.gate)

    def wrap_found(self, method: str, handler: Handler) -> Any:
        """The same as before if the method has the same handler as before.

        Called in the request's context.
        """
        kept = self.known.get(method)
        if kept is None or kept[0] is not handler:
            if len(self.known) >= MOST_METHODS:
                self.known.clear()
            kept = self.known[method] = (handler, self.wrap(handler, method))
        wrapped = kept[1]
        if wrapped.is_measured_apart:
            messages.begin()
        return wrapped.in_context() if wrapped.begins_elsewhere else wrapped


def kind_of(handler: Handler) -> "type[Wrapped]":
    """Which of the classes below serves it: grpcio's own distinctions."""
    behavior = behavior_of(handler)
    if not handler.response_streaming:
        if iscoroutinefunction(behavior) or isawaitable(behavior):
            return AsyncResponse
        return SyncResponse
    if iscoroutinefunction(behavior):
        return AsyncWriter
    if isasyncgenfunction(behavior):
        return AsyncResponses
    return SyncResponses


class Refused:
    """A handler, as far as grpcio looks, of whatever arity: it reads no request."""

    request_streaming = response_streaming = True
    request_deserializer = response_serializer = None

    def __init__(self, serving: Serving, answer: RefusalStatus, counts: Counts) -> None:
        self._reporter = serving.reporter
        self._answer = answer
        if answer.is_counted:
            serving.tally.refuse(answer.code, counts, answer.is_error)

    async def stream_stream(self, _requests: Any, context: Any) -> None:
        """Says what `abort` would: that raises, which takes an eighth of all this."""
        code, details, trailers, *_ = self._answer
        report = self._reporter.trailers()
        context.set_code(code)
        context.set_details(details)
        context.set_trailing_metadata(trailers + report)
