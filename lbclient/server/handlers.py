"""A user's handler, wrapped so that each of its answers reports.

A wrapper keeps the handler's kind: a coroutine stays a coroutine and a function for
the thread pool stays one. Whatever can fail, coding messages included, fails inside
of it. One wrapper per method, not per request: this is the hot path.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import aclosing
from contextvars import Context, copy_context
from copy import copy
from inspect import isasyncgenfunction, isawaitable, iscoroutinefunction
from math import inf
from typing import Any, TypeAlias, TypeVar

import grpc

from lbclient.admission import Quickest
from lbclient.criticality import current
from lbclient.server.accounting import account, timed
from lbclient.server.calls import AsyncCall, Call, SyncCall
from lbclient.server.gate import FULL, TOO_LATE, Answer
from lbclient.server.reporter import Reporter

KEPT = 1024  # methods; a generic handler may serve any name that a client invents

T = TypeVar("T")

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class Wrapper:
    """Wraps handlers. Owned by the server; `limit` is of requests at a time.

    Not grpcio's own limit: that one counts watchers, and refuses without a report.
    """

    def __init__(self, reporter: Reporter, limit: int | None) -> None:
        self._reporter = reporter
        self._limit = inf if limit is None else limit
        self._kept: dict[str, tuple[Handler, Any]] = {}

    def wrap(self, handler: Handler) -> Any:
        return kind_of(handler)(self._reporter, self._limit, handler)

    def refused(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """What is to answer this request in place of its handler, or None."""
        metadata = handler_call_details.invocation_metadata or ()
        answer = self._reporter.gate.refuses(metadata)
        return None if answer is None else Refused(self._reporter, answer)

    def wrap_found(self, method: str, handler: Handler) -> Any:
        """The same as before if the method has the same handler as before."""
        kept = self._kept.get(method)
        if kept is not None and kept[0] is handler:
            return kept[1].in_context()
        if len(self._kept) >= KEPT:
            self._kept.clear()
        wrapped = self.wrap(handler)
        self._kept[method] = (handler, wrapped)
        return wrapped.in_context()


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


def kind_of(handler: Handler) -> "type[_Wrapped]":
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

    def __init__(self, reporter: Reporter, answer: Answer) -> None:
        self._reporter = reporter
        self._answer = answer
        reporter.refuse(answer.code)

    async def stream_stream(self, _requests: Any, context: Any) -> None:
        code, details, trailers = self._answer
        report = self._reporter.trailers(self._reporter.monitor.active)
        await context.abort(code, details, trailers + report)


class _Wrapped:
    """A handler, as far as grpcio looks."""

    # Of a single request `_received` does it, where a failure can be reported.
    request_deserializer: Callable[[bytes], Any] | None = None
    # `_sent` does it, before the request counts as served.
    response_serializer: Callable[[Any], bytes] | None = None

    def __init__(self, reporter: Reporter, limit: float, handler: Handler) -> None:
        self.request_streaming = handler.request_streaming
        self.response_streaming = handler.response_streaming
        if self.request_streaming:
            self.request_deserializer = handler.request_deserializer
        self._deserialize = (
            None if self.request_streaming else handler.request_deserializer
        )
        self._serialize = handler.response_serializer
        self._behavior = behavior_of(handler)
        self._reporter = reporter
        self._monitor = reporter.monitor
        self._gate = reporter.gate
        self._limit = limit
        self._quickest = Quickest()

    def in_context(self) -> "_Wrapped":
        """For one request, whose task asks: itself, unless it begins elsewhere."""
        return self

    def _received(self, request: Any) -> Any:
        return request if self._deserialize is None else self._deserialize(request)

    def _sent(self, response: Any) -> Any:
        return response if self._serialize is None else self._serialize(response)

    def _is_too_late(self, call: Call, now: float) -> bool:
        left = call.inner.time_remaining()
        return left is not None and self._quickest.is_too_late(left, now)

    def _enter(self, call: AsyncCall) -> Awaitable[None] | None:
        """What is to be awaited first, if anything: raises if it is not to be served.

        No coroutine where there is nothing to wait for, as almost always.
        """
        if self._monitor.active > self._limit:
            return call.refuse(FULL, "concurrency")
        if self._is_too_late(call, call.begun_at):
            return call.refuse(TOO_LATE, "too-late")
        turn = self._gate.queue.enter(call.begun_at)
        if turn is None and not self._gate.asks_context:
            return None
        return self._wait(turn, call)

    async def _wait(self, turn: Awaitable[None] | None, call: AsyncCall) -> None:
        if turn is not None:
            await turn
            if self._is_too_late(call, self._reporter.clock()):
                await call.refuse(TOO_LATE, "too-late")
        if self._gate.asks_context and (answer := self._gate.asks(call)) is not None:
            await call.abort(*answer)


class AsyncResponse(_Wrapped):
    async def respond(self, request: Any, context: Any) -> Any:
        call = AsyncCall(self._reporter, context, self._sent)
        try:
            if (entering := self._enter(call)) is not None:
                await entering
            work = self._work(request, call)
            response = await (work if self._gate.quotas is None else timed(work))
        except BaseException as error:
            call.raised(error)
            raise
        call.served()
        if not self.request_streaming:  # else it took what its client took
            self._quickest.observe(call.took, call.begun_at + call.took)
        return response

    async def _work(self, request: Any, call: AsyncCall) -> Any:
        response = await self._behavior(self._received(request), call)
        # Else grpcio drops the response.
        return self._sent(response) if call.is_ok() else response

    unary_unary = stream_unary = respond


class AsyncWriter(_Wrapped):
    """A coroutine that writes its responses to the context."""

    async def respond(self, request: Any, context: Any) -> None:
        call = AsyncCall(self._reporter, context, self._sent)
        try:
            if (entering := self._enter(call)) is not None:
                await entering
            await timed(self._work(request, call))
        except BaseException as error:
            call.raised(error)
            raise
        call.served()

    async def _work(self, request: Any, call: AsyncCall) -> None:
        await self._behavior(self._received(request), call)

    unary_stream = stream_stream = respond


class AsyncResponses(_Wrapped):
    async def respond(self, request: Any, context: Any) -> AsyncIterator[Any]:
        call = AsyncCall(self._reporter, context, self._sent)
        _at_end_of_task(call.ended)  # which may come while a response is being sent
        call.preset()
        try:
            if (entering := self._enter(call)) is not None:
                await entering
            responses = self._behavior(self._received(request), call)
            is_paid = account.get() is not None
            steps: Any = _timed_each(responses) if is_paid else responses
            async with aclosing(responses), aclosing(steps):
                async for response in steps:
                    yield self._sent(response)
        except BaseException as error:
            call.raised(error)
            raise
        call.served()

    unary_stream = stream_stream = respond


class _InThread(_Wrapped):
    def _begin(self, context: Any = None) -> SyncCall:
        """On the loop's thread."""
        call = SyncCall(self._reporter, context)
        if self._monitor.active > self._limit:
            call.refuse(FULL, "concurrency")
        return call

    def _admitted(self, call: SyncCall) -> None:
        """In a thread, at last. Raises if the request is not to be served."""
        now = self._reporter.clock()
        self._gate.threads.leave(call, now - call.begun_at)
        answer = call.refusal
        if answer is None and self._is_too_late(call, now):
            answer = TOO_LATE
            loop, count = self._reporter.loop, self._gate.count
            loop.call_soon_threadsafe(count, "too-late", call.run(current))
        if answer is None and self._gate.asks_context:
            answer = _on_loop(self._reporter.loop, lambda: self._asked(call))
        if answer is not None:
            call.abort(*answer)

    def _asked(self, call: SyncCall) -> Answer | None:
        return call.run(self._gate.asks, call)


class SyncResponse(_InThread):
    """Its requests are active from when they arrive, not from when a thread is free.

    grpcio deserializes a single request on the loop, in the request's own task, just
    before it queues for a thread: that is where it begins.
    """

    def __init__(self, reporter: Reporter, limit: float, handler: Handler) -> None:
        super().__init__(reporter, limit, handler)
        self._context: Context | None = None
        if not self.request_streaming:
            self.request_deserializer = self._arrive

    def in_context(self) -> "_Wrapped":
        """grpcio calls this one in a thread, where nothing is known of its request."""
        if not self.request_streaming:
            return self
        one = copy(self)
        one._context = copy_context()
        return one

    def _arrive(self, request: bytes) -> tuple[SyncCall, bytes]:
        call = self._begin()
        _at_end_of_task(call.ended)
        return call, request

    def unary_unary(self, arrived: tuple[SyncCall, bytes], context: Any) -> Any:
        call, request = arrived
        call.enter(context)
        return self._respond(call, request)

    def stream_unary(self, requests: Any, context: Any) -> Any:
        loop = self._reporter.loop
        call = _on_loop(loop, lambda: self._begin(context))
        if self._context is not None:
            call.adopt(self._context)
        try:
            return self._respond(call, requests)
        finally:
            loop.call_soon_threadsafe(call.ended)

    def _respond(self, call: SyncCall, request: Any) -> Any:
        try:
            self._admitted(call)
            response = call.run(self._work, request, call)
        except BaseException as error:
            call.raised(error)
            raise
        call.served()
        if not self.request_streaming:
            now = self._reporter.clock()
            self._quickest.observe(now - call.begun_at, now)
        return response

    def _work(self, request: Any, call: SyncCall) -> Any:
        response = self._behavior(self._received(request), call)
        return self._sent(response) if call.is_ok() else response


class SyncResponses(_InThread):
    def respond(self, request: Any, context: Any) -> Iterator[Any]:
        """Called on the loop; what it returns is iterated in a thread."""
        call = self._begin(context)
        _at_end_of_task(call.ended)
        call.preset()
        return self._responses(call, request)

    def _responses(self, call: SyncCall, request: Any) -> Iterator[Any]:
        try:
            self._admitted(call)
            responses = call.run(self._behavior, self._received(request), call)
            yield from map(self._sent, _in_context(call, iter(responses)))
        except BaseException as error:
            call.raised(error)
            raise
        call.served()

    unary_stream = stream_stream = respond


def _in_context(call: SyncCall, responses: Iterator[Any]) -> Iterator[Any]:
    over = object()
    while (response := call.run(next, responses, over)) is not over:
        yield response


def _at_end_of_task(callback: Callable[[Any], None]) -> None:
    """grpcio serves each request in a task, and ends that however it ends."""
    task = asyncio.current_task()
    assert task is not None
    task.add_done_callback(callback)


async def _timed_each(responses: AsyncIterator[Any]) -> AsyncIterator[Any]:
    over = object()

    async def following() -> Any:
        return await anext(responses, over)

    while (response := await timed(following())) is not over:
        yield response


def _on_loop(loop: asyncio.AbstractEventLoop, ask: Callable[[], T]) -> T:
    """In a thread: what `ask` returns on the loop's."""
    answered: Future[T] = Future()

    def answer() -> None:
        try:
            answered.set_result(ask())
        except BaseException as error:
            answered.set_exception(error)

    loop.call_soon_threadsafe(answer)
    return answered.result()
