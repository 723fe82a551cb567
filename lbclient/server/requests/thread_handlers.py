"""Handlers that are plain functions, which grpcio runs in its thread pool.

A request is counted and ended on the loop's thread; its handler runs in another.
"""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextvars import Context, copy_context
from copy import copy
from typing import Any, TypeVar

from lbclient.core.criticality import current
from lbclient.log import Log
from lbclient.server.overload.refusal_status import LATE, NO_PLACE, RefusalStatus
from lbclient.server.report.request_tally import Counts
from lbclient.server.requests.handler import (
    Handler,
    Serving,
    Wrapped,
    at_end_of_task,
)
from lbclient.server.requests.thread_context import (
    Aborted,
    ThreadContext,
    YieldingContext,
)

T = TypeVar("T")

logger = Log(__name__)

OVER = object()  # what follows the last response


class _InThread(Wrapped):
    context = ThreadContext

    def _begin(self, context: Any = None) -> ThreadContext:
        """Makes the context of a request; on the loop's thread."""
        call = self.context(self._method, context)
        if self._monitor.active > self._gate.most:
            call.refuse(self._gate.full(), NO_PLACE)
        return call

    def _admitted(self, call: ThreadContext) -> None:
        """Lets the request begin in its thread. Raises if it is not to be served."""
        now = self._clock()
        threads = self._method.threads
        has_waited = threads.leave(call)
        threads.waited(now - call.begun_at, call.inner.time_remaining())
        answer = call.refusal
        if answer is None and not has_waited:
            answer = call.lost_to  # None: it has ended, or is as good as
        if answer is None and (answer := self._too_late(call, now)) is not None:
            count = self._gate.loop.call_soon_threadsafe
            count(self._gate.count, LATE, call.run(current), answer.is_for_load)
        if answer is None and self._charging.asks_context:
            answer = _on_loop(self._gate.loop, lambda: self._asked(call))
        if answer is not None:
            call.refused(answer)
        threads.began(now)

    def _asked(self, call: ThreadContext) -> RefusalStatus | None:
        return call.run(self._charging.asks, call)


class SyncResponse(_InThread):
    """Counts requests from when they arrive, not from when a thread is free.

    grpcio deserializes a single request on the loop, in the request's own task, just
    before it queues for a thread: that is where it begins.
    """

    def __init__(self, serving: Serving, counts: Counts, handler: Handler) -> None:
        super().__init__(serving, counts, handler)
        self._context: Context | None = None
        self._task: asyncio.Task[Any] | None = None
        self.begins_elsewhere = self.request_streaming
        if not self.request_streaming:
            self.request_deserializer = self._arrive

    def _measures_itself(self) -> bool:
        return not self.request_streaming

    def in_context(self) -> "Wrapped":
        """For one request, whose task asks, as grpcio calls it in a thread."""
        one = copy(self)
        one._context, one._task = copy_context(), asyncio.current_task()
        return one

    def _arrive(self, request: bytes) -> tuple[ThreadContext, bytes]:
        self._gate.make_way()
        call = self._begin()
        if self._method.measures:
            call.sizes = len(request), 0
        at_end_of_task(call.ended)
        return call, request

    def unary_unary(self, arrived: tuple[ThreadContext, bytes], context: Any) -> Any:
        call, request = arrived
        call.enter(context)
        return self._respond(call, request)

    def stream_unary(self, requests: Any, context: Any) -> Any:
        call = _on_loop(self._gate.loop, lambda: self._begin_in_task(context))
        return self._respond(call, requests)

    def _begin_in_task(self, context: Any) -> ThreadContext:
        assert self._context is not None  # it is one of `in_context`
        assert self._task is not None
        call = self._begin(context)
        call.adopt(self._context)
        self._task.add_done_callback(call.ended)
        return call

    def _respond(self, call: ThreadContext, request: Any) -> Any:
        running = self._method.threads.running
        running.add(call)
        try:
            self._admitted(call)
            response = call.run(self._work, request, call)
        except BaseException as error:
            call.failed(error)
            raise
        finally:
            running.discard(call)
        call.served()
        return response

    def _work(self, request: Any, call: ThreadContext) -> Any:
        response = self._behavior(self._received(request), call)
        if not call.is_ok():
            return response
        message = self._sent(response)
        if call.sizes is not None:
            call.sizes = call.sizes[0], len(message)
        return message


class SyncResponses(_InThread):
    context = YieldingContext

    def respond(self, request: Any, context: Any) -> Iterator[Any]:
        """Called on the loop; what it returns is iterated in a thread."""
        self._gate.make_way()
        call = self._begin(context)
        at_end_of_task(call.ended)
        call.preset()
        return self._responses(call, request)

    def _responses(self, call: ThreadContext, request: Any) -> Iterator[Any]:
        try:
            try:
                self._admitted(call)
                responses = iter(call.run(self._work, request, call))
                while (message := call.run(self._next, responses)) is not OVER:
                    if call.has_aborted:  # its handler goes on nevertheless
                        return
                    try:
                        yield message
                    except GeneratorExit:  # grpcio wants no more, and tells nobody
                        return
            except BaseException as error:
                if call.has_aborted and isinstance(error, Exception):
                    _tell_if_another(error)
                    return
                call.failed(error)
                raise
        except Aborted:  # its own call was refused
            return
        call.served()

    # As in `SyncResponse`, messages are coded within the request's context.

    def _work(self, request: Any, call: ThreadContext) -> Any:
        return self._behavior(self._received(request), call)

    def _next(self, responses: Iterator[Any]) -> Any:
        response = next(responses, OVER)
        return OVER if response is OVER else self._sent(response)

    unary_stream = stream_stream = respond


def _tell_if_another(error: Exception) -> None:
    """Logs what a handler raised after its abort, unless it is the abort."""
    if not isinstance(error, Aborted):
        name = type(error).__name__
        words = "handler failed after its abort: %s"
        logger.error(words, name, exc_info=error, reason=name)


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
