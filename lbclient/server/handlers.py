"""A user's handler, wrapped so that each of its answers reports.

A wrapper keeps the handler's kind: a coroutine stays a coroutine and a function for
the thread pool stays one. Whatever can fail, coding messages included, fails inside
of it. One wrapper per method, not per request: this is the hot path.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import aclosing
from inspect import isasyncgenfunction, isawaitable, iscoroutinefunction
from math import inf
from typing import Any, TypeAlias

import grpc
from grpc import StatusCode

from lbclient.server.calls import AsyncCall, SyncCall
from lbclient.server.reporter import Reporter

KEPT = 1024  # methods; a generic handler may serve any name that a client invents

FULL = (StatusCode.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!")

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

    def wrap_found(self, method: str, handler: Handler) -> Any:
        """The same as before if the method has the same handler as before."""
        kept = self._kept.get(method)
        if kept is not None and kept[0] is handler:
            return kept[1]
        if len(self._kept) >= KEPT:
            self._kept.clear()
        wrapped = self.wrap(handler)
        self._kept[method] = (handler, wrapped)
        return wrapped


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
        self._limit = limit

    def _received(self, request: Any) -> Any:
        return request if self._deserialize is None else self._deserialize(request)

    def _sent(self, response: Any) -> Any:
        return response if self._serialize is None else self._serialize(response)


class AsyncResponse(_Wrapped):
    async def respond(self, request: Any, context: Any) -> Any:
        call = AsyncCall(self._reporter, context, self._sent)
        try:
            if self._monitor.active > self._limit:
                await call.abort(*FULL)
            response = await self._behavior(self._received(request), call)
            if call.is_ok():  # else grpcio drops the response
                response = self._sent(response)
        except BaseException as error:
            call.raised(error)
            raise
        call.served()
        return response

    unary_unary = stream_unary = respond


class AsyncWriter(_Wrapped):
    """A coroutine that writes its responses to the context."""

    async def respond(self, request: Any, context: Any) -> None:
        call = AsyncCall(self._reporter, context, self._sent)
        try:
            if self._monitor.active > self._limit:
                await call.abort(*FULL)
            await self._behavior(self._received(request), call)
        except BaseException as error:
            call.raised(error)
            raise
        call.served()

    unary_stream = stream_stream = respond


class AsyncResponses(_Wrapped):
    async def respond(self, request: Any, context: Any) -> AsyncIterator[Any]:
        call = AsyncCall(self._reporter, context, self._sent)
        _at_end_of_task(call.ended)  # which may come while a response is being sent
        call.preset()
        try:
            if self._monitor.active > self._limit:
                await call.abort(*FULL)
            responses = self._behavior(self._received(request), call)
            async with aclosing(responses):
                async for response in responses:
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
            call.refuse(FULL[0])
        return call


class SyncResponse(_InThread):
    """Its requests are active from when they arrive, not from when a thread is free.

    grpcio deserializes a single request on the loop, in the request's own task, just
    before it queues for a thread: that is where it begins.
    """

    def __init__(self, reporter: Reporter, limit: float, handler: Handler) -> None:
        super().__init__(reporter, limit, handler)
        if not self.request_streaming:
            self.request_deserializer = self._arrive

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
        try:
            return self._respond(call, requests)
        finally:
            loop.call_soon_threadsafe(call.ended)

    def _respond(self, call: SyncCall, request: Any) -> Any:
        try:
            if call.is_refused:
                call.abort(*FULL)
            response = self._behavior(self._received(request), call)
            if call.is_ok():
                response = self._sent(response)
        except BaseException as error:
            call.raised(error)
            raise
        call.served()
        return response


class SyncResponses(_InThread):
    def respond(self, request: Any, context: Any) -> Iterator[Any]:
        """Called on the loop; what it returns is iterated in a thread."""
        call = self._begin(context)
        _at_end_of_task(call.ended)
        call.preset()
        return self._responses(call, request)

    def _responses(self, call: SyncCall, request: Any) -> Iterator[Any]:
        try:
            if call.is_refused:
                call.abort(*FULL)
            yield from map(self._sent, self._behavior(self._received(request), call))
        except BaseException as error:
            call.raised(error)
            raise
        call.served()

    unary_stream = stream_stream = respond


def _at_end_of_task(callback: Callable[[Any], None]) -> None:
    """grpcio serves each request in a task, and ends that however it ends."""
    task = asyncio.current_task()
    assert task is not None
    task.add_done_callback(callback)


def _on_loop(
    loop: asyncio.AbstractEventLoop, begin: Callable[[], SyncCall]
) -> SyncCall:
    begun: Future[SyncCall] = Future()
    loop.call_soon_threadsafe(lambda: begun.set_result(begin()))
    return begun.result()
