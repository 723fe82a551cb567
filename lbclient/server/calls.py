"""One request in this server: the handler that grpcio runs, and the guard around it.

Made anew for each request, so that everything that must happen once has an owner.
It keeps the user's handler of its kind: a coroutine stays a coroutine and a function
for the thread pool stays one. Whatever happens, deserializing included, happens
inside of it, and so every answer carries a report.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from inspect import isasyncgenfunction, isawaitable, iscoroutinefunction
from typing import Any, TypeAlias

import grpc
from grpc import StatusCode

from lbclient.server.contexts import AsyncContext, SyncContext, key_of
from lbclient.server.reporter import Reporter, Trailers

_BY_NUMBER = {code.value[0]: code for code in StatusCode}

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


def behavior_of(handler: Handler) -> Callable[..., Any]:
    """The user's function in the handler."""
    if handler.response_streaming:
        behavior = (
            handler.stream_stream if handler.request_streaming else handler.unary_stream
        )
    else:
        behavior = (
            handler.stream_unary if handler.request_streaming else handler.unary_unary
        )
    return behavior  # type: ignore[return-value]


def kind_of(handler: Handler) -> type[Call]:
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


class Call:
    """Owned by the task in which grpcio serves the request, and a handler to it."""

    # Of a single request `_received` does it, where a failure can be reported.
    request_deserializer: Callable[[bytes], Any] | None = None

    def __init__(self, reporter: Reporter, handler: Handler, begun_at: float) -> None:
        self.code: Any = None  # what the handler set, as it set it
        self.trailers: Trailers = ()  # the handler's own
        self.request_streaming = handler.request_streaming
        self.response_streaming = handler.response_streaming
        self.response_serializer = handler.response_serializer
        if self.request_streaming:
            self.request_deserializer = handler.request_deserializer
        self._handler = handler
        self._behavior = behavior_of(handler)
        self._reporter = reporter
        self._begun_at = begun_at
        self._finished = False
        self._inner: Any = None

    def answer(self, code: Any) -> Trailers:
        """Ends the request; the trailers are to be sent at once."""
        if not self._finished:
            self._finished = True
            self._reporter.finish(_status(code), self._begun_at)
        return self._with_report(self.trailers, self._reporter.monitor.active)

    def merged(self, own: Trailers) -> Trailers:
        """Trailers for an end that comes where we cannot see it."""
        others = self._reporter.monitor.active - (not self._finished)
        return self._with_report(own, max(0, others))

    def ended(self, _task: asyncio.Task[Any]) -> None:
        """grpcio is done with the request, for whatever reason."""
        if not self._finished:
            self._finished = True
            self._reporter.finish(self._interrupted(), self._begun_at)

    def _received(self, request: Any) -> Any:
        if self.request_streaming:
            return request
        deserialize = self._handler.request_deserializer
        return deserialize(request) if deserialize else request

    def _served(self) -> None:
        code = StatusCode.OK if self.code is None else self.code
        self._inner.set_trailing_metadata(self.answer(code))

    def _raised(self, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            self.answer(self._interrupted())
            return
        code = _status(self.code) if self.code is not None else StatusCode.OK
        code = StatusCode.UNKNOWN if code is StatusCode.OK else code
        self._inner.set_trailing_metadata(self.answer(code))

    def _interrupted(self) -> StatusCode:
        """Deadline or cancel: grpcio tells neither from the other."""
        remaining = None if self._inner is None else self._inner.time_remaining()
        if remaining is None:
            return StatusCode.CANCELLED
        # On the wire a timeout above 1 s is rounded up by up to 1 %, so the client,
        # whose clock runs out first, cancels a little before our deadline.
        timeout = self._reporter.clock() - self._begun_at + remaining
        if remaining <= 0.005 + 0.01 * timeout:
            return StatusCode.DEADLINE_EXCEEDED
        return StatusCode.CANCELLED

    def _with_report(self, own: Trailers, active: int) -> Trailers:
        report = self._reporter.trailers(active)
        if not own:
            return report
        # Envoy refuses more than one ORCA report: the user's own goes first.
        taken = [key_of(item) for item in own]
        return own + tuple(item for item in report if item[0] not in taken)


def _status(code: Any) -> StatusCode:
    """As grpcio reads it: a number will do, and nonsense is UNKNOWN."""
    if isinstance(code, StatusCode):
        return code
    return _BY_NUMBER.get(code, StatusCode.UNKNOWN)


class AsyncResponse(Call):
    async def respond(self, request: Any, context: Any) -> Any:
        self._inner = context
        try:
            response = await self._behavior(
                self._received(request), AsyncContext(self, context)
            )
        except BaseException as error:
            self._raised(error)
            raise
        self._served()
        return response

    unary_unary = stream_unary = respond


class AsyncWriter(Call):
    """A coroutine that writes its responses to the context."""

    async def respond(self, request: Any, context: Any) -> None:
        self._inner = context
        try:
            await self._behavior(self._received(request), AsyncContext(self, context))
        except BaseException as error:
            self._raised(error)
            raise
        self._served()

    unary_stream = stream_stream = respond


class AsyncResponses(Call):
    async def respond(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self._inner = context
        # A response that cannot be serialized ends the request outside of here.
        context.set_trailing_metadata(self.merged(()))
        try:
            responses = self._behavior(
                self._received(request), AsyncContext(self, context)
            )
            async with aclosing(responses):
                async for response in responses:
                    yield response
        except BaseException as error:
            self._raised(error)
            raise
        self._served()

    unary_stream = stream_stream = respond


class _InThread(Call):
    """Served in a thread, where nothing may be counted: `ended` does that."""

    _answered: StatusCode | None = None

    def answer(self, code: Any) -> Trailers:
        self._answered = _status(code)
        return self.merged(self.trailers)

    def _interrupted(self) -> StatusCode:
        return self._answered or super()._interrupted()


class SyncResponse(_InThread):
    def respond(self, request: Any, context: Any) -> Any:
        self._inner = context
        try:
            response = self._behavior(
                self._received(request), SyncContext(self, context)
            )
        except BaseException as error:
            self._raised(error)
            raise
        self._served()
        return response

    unary_unary = stream_unary = respond


class SyncResponses(_InThread):
    def respond(self, request: Any, context: Any) -> Iterator[Any]:
        self._inner = context
        context.set_trailing_metadata(self.merged(()))  # as in AsyncResponses
        try:
            yield from self._behavior(
                self._received(request), SyncContext(self, context)
            )
        except BaseException as error:
            self._raised(error)
            raise
        self._served()

    unary_stream = stream_stream = respond


class Refusal:
    """Answers without a handler, and without waiting for the request.

    It need not know the method's arity: to a client the end of a call looks the same
    for all four.
    """

    request_streaming = response_streaming = True
    request_deserializer = response_serializer = None

    def __init__(
        self,
        reporter: Reporter,
        code: StatusCode,
        details: str,
        error: Exception | None = None,
    ) -> None:
        self._reporter = reporter
        self._code = code
        self._details = details
        self._error = error

    async def stream_stream(self, _requests: Any, context: Any) -> None:
        trailers = self._reporter.trailers(self._reporter.monitor.active)
        if self._error is not None:
            context.set_trailing_metadata(trailers)
            raise self._error
        await context.abort(self._code, self._details, trailers)
