"""A user's handler, wrapped so that each of its answers reports.

A wrapper keeps the handler's kind: a coroutine stays a coroutine and a function for
the thread pool stays one. Whatever can fail, coding messages included, fails inside
of it. One wrapper per method, not per request: this is the hot path.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import aclosing
from contextvars import Context, copy_context
from copy import copy
from functools import update_wrapper
from inspect import isasyncgenfunction, isawaitable, iscoroutinefunction
from math import inf
from typing import Any, TypeAlias, TypeVar

import grpc
import grpc.aio

from lbclient import grpc_seam
from lbclient.core.admission import Quickest
from lbclient.core.call_counts import OTHERS
from lbclient.core.criticality import current
from lbclient.server.overload.refusals import EXPIRED, FULL, TOO_LATE, Answer
from lbclient.server.overload.run_queue import LONG
from lbclient.server.overload.stream_turns import Turns
from lbclient.server.quotas.accounting import Steps, begun, billed
from lbclient.server.report.reporter import Counts, Method, Reporter
from lbclient.server.requests.context import (
    AsyncCall,
    Call,
    ClientHasLeft,
    Early,
    SyncCall,
)
from lbclient.wire import propagation

# Of the time that a request has left, which it may have waited. What is begun is then
# answered within half of its deadline, with what it takes and what that is off by.
WAITS = 0.6
KEPT = 1024  # methods; a generic handler may serve any name that a client invents

T = TypeVar("T")

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class Wrapper:
    """Wraps handlers. Owned by the server; `limit` is of requests at a time.

    Not grpcio's own limit: that one counts watchers, and refuses without a report.
    """

    def __init__(self, reporter: Reporter, limit: int | None) -> None:
        self._reporter = reporter
        self.refuses = reporter.gate.refuses
        self.let_by = reporter.gate.let_by
        self._adaptive = reporter.gate.adaptive
        self.request_name = reporter.request_name
        self._limit = inf if limit is None else limit
        self.known: dict[str, tuple[Handler, Any]] = {}  # by method

    def wrap(self, handler: Handler, method: str = "") -> Any:
        """`method` is for the counts, and empty if it is none of this server's."""
        counts = self._counts(handler, method)
        return kind_of(handler)(self._reporter, self._limit, counts, handler)

    def refused(
        self, answer: Answer, method: str, handler: "Handler | None" = None
    ) -> Any:
        """What says that in place of the request's handler."""
        if handler is None and method in self.known:
            handler = self.known[method][0]
        return Refused(self._reporter, answer, self._counts(handler, method))

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
            return self._reporter.handled.of(*OTHERS)
        return self._reporter.handled.of(arity_of(handler), method)

    def early(self) -> Early:
        """The request, to those who see it before its handler does."""
        return Early(self._reporter.gate)

    def wrap_found(self, method: str, handler: Handler) -> Any:
        """The same as before if the method has the same handler as before."""
        kept = self.known.get(method)
        if kept is None or kept[0] is not handler:
            if len(self.known) >= KEPT:
                self.known.clear()
            kept = self.known[method] = (handler, self.wrap(handler, method))
        wrapped = kept[1]
        return wrapped.in_context() if wrapped.begins_elsewhere else wrapped


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


def arity_of(handler: Handler) -> str:
    """As the client's side names it.

    >>> arity_of(grpc.unary_stream_rpc_method_handler(print))
    'unary_stream'
    """
    one, many = "unary", "stream"
    request = many if handler.request_streaming else one
    return f"{request}_{many if handler.response_streaming else one}"


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

    def __init__(self, reporter: Reporter, answer: Answer, counts: Counts) -> None:
        self._reporter = reporter
        self._answer = answer
        reporter.refuse(answer, counts)

    async def stream_stream(self, _requests: Any, context: Any) -> None:
        """Says what `abort` would: that raises, which takes an eighth of all this."""
        code, details, trailers, _ = self._answer
        report = self._reporter.trailers(self._reporter.monitor.active)
        context.set_code(code)
        context.set_details(details)
        context.set_trailing_metadata(trailers + report)


class _Wrapped:
    """A handler, as far as grpcio looks."""

    # Of a single request `_received` does it, where a failure can be reported.
    request_deserializer: Callable[[bytes], Any] | None = None
    # `_sent` does it, before the request counts as served.
    response_serializer: Callable[[Any], bytes] | None = None
    begins_elsewhere = False  # than in its task, where it was looked up

    def __init__(
        self, reporter: Reporter, limit: float, counts: Counts, handler: Handler
    ) -> None:
        self.request_streaming = handler.request_streaming
        self.response_streaming = handler.response_streaming
        if self.request_streaming:
            self.request_deserializer = handler.request_deserializer
        # No methods that ask whether there is one: each is a frame for each message.
        deserializer = None if self.request_streaming else handler.request_deserializer
        self._received: Callable[[Any], Any] = deserializer or _same
        self._sent: Callable[[Any], Any] = handler.response_serializer or _same
        self._behavior = behavior_of(handler)
        self._is_stream = self.request_streaming or self.response_streaming
        self._quickest = Quickest()
        quickest = None if self._is_stream else self._quickest
        self._method = Method(reporter, counts, self._sent, quickest)
        self._reporter = reporter
        self._monitor = reporter.monitor
        self._gate = reporter.gate
        self._queue = reporter.gate.queue
        self._quotas = reporter.gate.quotas
        self._limit = limit

    def _timed(self, coroutine: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """At the cost of whoever pays for the request, if anybody does."""
        if self._quotas is None or (payer := billed()) is None:
            return coroutine
        return Steps(coroutine, payer, self._quotas.nesting)

    def _turns(self) -> Turns:
        """Of a stream, in its task."""
        return Turns(self._queue, self._reporter.clock)

    def _too_late(self, call: Call, now: float) -> Answer | None:
        """What a request is told that has too little time left, if it has.

        What has lost much of its time here has: whoever asks gives up soon.
        """
        core, left = self._gate.core, call.inner.time_remaining()
        if left is None:
            core.deadlines.observe(None)
            return None
        waited = now - call.begun_at + core.delay.seconds
        core.deadlines.observe(left + waited)
        if left <= 0.0:
            return EXPIRED
        if waited > WAITS * left or self._is_hopeless(left, now):
            return TOO_LATE[self._gate.refusal()]
        return None

    def _is_hopeless(self, left: float, now: float) -> bool:
        """Whether no request of this method was served in so little time lately."""
        if left > self._quickest.ample or self._method.quickest is None:
            return False
        self._reporter.settle()
        return self._quickest.is_too_late(left, now)

    def _enter(self, call: AsyncCall) -> Awaitable[None] | None:
        """What is to be awaited first, if anything: raises if it is not to be served.

        No coroutine where there is nothing to wait for, as almost always.
        """
        if self._monitor.active > self._limit:
            return call.refuse(FULL, "concurrency")
        answer = self._too_late(call, call.begun_at)
        if answer is not None:
            return call.refuse(answer, "too-late")
        if self._is_stream:
            answer = self._gate.refuses_stream()
            if answer is not None:
                return call.refuse(answer)
        turn = self._queue.enter(call.begun_at)
        if turn is None and not self._gate.asks_context:
            return None
        return self._wait(turn, call)

    async def _wait(self, turn: Awaitable[None] | None, call: AsyncCall) -> None:
        if turn is not None:
            await turn
            answer = self._too_late(call, self._reporter.clock())
            if answer is not None:
                self._queue.refuse()
                await call.refuse(answer, "too-late")
        if self._gate.asks_context and (answer := self._gate.asks(call)) is not None:
            await call.refuse(answer)


def _same(message: Any) -> Any:
    return message


class AsyncResponse(_Wrapped):
    def __init__(
        self, reporter: Reporter, limit: float, counts: Counts, handler: Handler
    ) -> None:
        super().__init__(reporter, limit, counts, handler)
        self.unary_unary = self.stream_unary = self._responder()

    def _responder(self) -> Callable[[Any, Any], Awaitable[Any]]:
        """What almost all requests are served by: the hot path of a server.

        A function that has what it needs in its own variables.
        """
        method, queue, quickest = self._method, self._queue, self._quickest
        behavior, received, sent = self._behavior, self._received, self._sent
        if self.request_streaming:
            behavior = self._in_turns
        enter, quotas = self._enter, self._quotas
        # Whether all have to ask, and not only those that may come too late, or come
        # while handlers have the loop for long.
        asks = self._limit < inf or self._gate.asks_context or self._is_stream

        async def respond(request: Any, context: Any) -> Any:
            call = AsyncCall(method, context)
            propagation.enter(call)
            left = context.time_remaining()
            try:
                if (
                    asks
                    or call.begun_at >= queue.clear_until
                    or (left is not None and left <= quickest.ample)
                ) and (entering := enter(call)) is not None:
                    await entering
                if quotas is None or (payer := billed()) is None:
                    response = await behavior(received(request), call)
                    if call.said is None or call.is_ok():  # else grpcio drops it
                        response = sent(response)
                else:
                    steps = begun(work(request, call), payer, quotas.nesting)
                    if steps is not None:
                        await steps
                    response, call.response = call.response, None
            except BaseException as error:
                await call.failed(error)
                raise
            call.served()
            return response

        async def work(request: Any, call: AsyncCall) -> None:
            response = await behavior(received(request), call)
            if call.said is None or call.is_ok():
                response = sent(response)
            call.response = response

        return update_wrapper(grpc_seam.KnownCoroutine(respond), respond)

    def _in_turns(self, requests: Any, call: AsyncCall) -> Awaitable[Any]:
        return self._turns().take(self._behavior(requests, call))


class AsyncWriter(_Wrapped):
    """A coroutine that writes its responses to the context."""

    async def respond(self, request: Any, context: Any) -> None:
        call = AsyncCall(self._method, context)
        propagation.enter(call)
        try:
            if (entering := self._enter(call)) is not None:
                await entering
            await self._turns().take(self._timed(self._work(request, call)))
        except BaseException as error:
            await call.failed(error)
            raise
        call.served()

    async def _work(self, request: Any, call: AsyncCall) -> None:
        await self._behavior(self._received(request), call)

    unary_stream = stream_stream = respond


class AsyncResponses(_Wrapped):
    async def respond(self, request: Any, context: Any) -> AsyncIterator[Any]:
        call = AsyncCall(self._method, context)
        propagation.enter(call)
        _at_end_of_task(call.ended)  # which may come while a response is being sent
        call.preset()
        try:
            if (entering := self._enter(call)) is not None:
                await entering
            responses = self._behavior(self._received(request), call)
            is_paid = billed() is not None
            steps: Any = self._timed_each(responses) if is_paid else responses
            take, following = self._turns().take, steps.__anext__
            # What takes less than that cannot have had the loop for long: most answers
            # of most streams, where to look at each step would show.
            clock, may_be_long = self._reporter.clock, False
            async with aclosing(responses), aclosing(steps):
                while True:
                    began_at = clock()
                    try:
                        step = following()
                        response = await (take(step) if may_be_long else step)
                    except StopAsyncIteration:
                        break
                    may_be_long = clock() - began_at >= LONG
                    message = self._sent(response)
                    try:
                        yield message
                    except GeneratorExit:  # grpcio wants no more, and tells nobody
                        call.ended()
                        return
        except BaseException as error:
            await call.failed(error)
            raise
        call.served()

    async def _timed_each(self, responses: AsyncIterator[Any]) -> AsyncIterator[Any]:
        over = object()

        async def following() -> Any:
            return await anext(responses, over)

        while (response := await self._timed(following())) is not over:
            yield response

    unary_stream = stream_stream = respond


class _InThread(_Wrapped):
    def _begin(self, context: Any = None) -> SyncCall:
        """On the loop's thread."""
        call = SyncCall(self._method, context)
        if self._monitor.active > self._limit:
            call.refuse(FULL, "concurrency")
        return call

    def _admitted(self, call: SyncCall) -> None:
        """In a thread, at last. Raises if the request is not to be served."""
        now = self._reporter.clock()
        self._gate.threads.leave(call)
        self._gate.threads.waited(now - call.begun_at, call.inner.time_remaining())
        answer = call.refusal
        if answer is None and (answer := self._too_late(call, now)) is not None:
            loop, count = self._reporter.loop, self._gate.count
            loop.call_soon_threadsafe(count, "too-late", call.run(current))
        if answer is None and self._gate.asks_context:
            answer = _on_loop(self._reporter.loop, lambda: self._asked(call))
        if answer is not None:
            call.refused(answer)

    def _asked(self, call: SyncCall) -> Answer | None:
        return call.run(self._gate.asks, call)


class SyncResponse(_InThread):
    """Its requests are active from when they arrive, not from when a thread is free.

    grpcio deserializes a single request on the loop, in the request's own task, just
    before it queues for a thread: that is where it begins.
    """

    def __init__(
        self, reporter: Reporter, limit: float, counts: Counts, handler: Handler
    ) -> None:
        super().__init__(reporter, limit, counts, handler)
        self._context: Context | None = None
        self._task: asyncio.Task[Any] | None = None
        self.begins_elsewhere = self.request_streaming
        if not self.request_streaming:
            self.request_deserializer = self._arrive

    def in_context(self) -> "_Wrapped":
        """For one request, whose task asks, as grpcio calls it in a thread."""
        one = copy(self)
        one._context, one._task = copy_context(), asyncio.current_task()
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
        call = _on_loop(self._reporter.loop, lambda: self._begin_in_task(context))
        return self._respond(call, requests)

    def _begin_in_task(self, context: Any) -> SyncCall:
        assert self._context is not None  # it is one of `in_context`
        assert self._task is not None
        call = self._begin(context)
        call.adopt(self._context)
        self._task.add_done_callback(call.ended)
        return call

    def _respond(self, call: SyncCall, request: Any) -> Any:
        try:
            self._admitted(call)
            response = call.run(self._work, request, call)
        except BaseException as error:
            call.failed(error)
            raise
        call.served()
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
            try:
                self._admitted(call)
                behavior, over = self._behavior, object()
                responses = iter(call.run(behavior, self._received(request), call))
                while (response := call.run(next, responses, over)) is not over:
                    message = self._sent(response)
                    try:
                        yield message
                    except GeneratorExit:  # grpcio wants no more, and tells nobody
                        return
            except BaseException as error:
                call.failed(error)
                raise
        except ClientHasLeft:
            return  # grpcio would log it as an exception that nobody has retrieved
        call.served()

    unary_stream = stream_stream = respond


def _at_end_of_task(callback: Callable[[Any], None]) -> None:
    """grpcio serves each request in a task, and ends that however it ends."""
    task = asyncio.current_task()
    assert task is not None
    task.add_done_callback(callback)


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
