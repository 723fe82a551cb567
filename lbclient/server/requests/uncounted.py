"""Methods that are not counted: health checks, reflection, channelz. Their handlers.

A user's own may raise what grpcio tells no client of (`raised`). They get grpcio's own
context, and neither limits nor load reports: only what they raise is dealt with here.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from functools import partial
from typing import Any

import grpc
import grpc.aio
from grpc import StatusCode

from lbclient import wire
from lbclient.background.tasks import cancellations
from lbclient.core.protocols import Clock
from lbclient.server.requests import raised
from lbclient.server.requests.async_handlers import (
    AsyncResponse,
    AsyncResponses,
    AsyncWriter,
)
from lbclient.server.requests.context import interrupted, status_of
from lbclient.server.requests.handler import Handler, arity_of, behavior_of
from lbclient.server.requests.wrapping import kind_of

# Streams that last as long as a connection, and their likes. Not load, whoever
# serves them; and a draining task must not wait for their end.
UNCOUNTED = frozenset(
    {
        wire.CHECK_METHOD,
        wire.WATCH_METHOD,
        wire.SERVING_CHECK_METHOD,
        wire.SERVING_WATCH_METHOD,
        "/grpc.health.v1.Health/List",
        wire.ORCA_METHOD,
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        "/grpc.channelz.v1.Channelz/GetTopChannels",
        "/grpc.channelz.v1.Channelz/GetServers",
        "/grpc.channelz.v1.Channelz/GetServer",
        "/grpc.channelz.v1.Channelz/GetServerSockets",
        "/grpc.channelz.v1.Channelz/GetChannel",
        "/grpc.channelz.v1.Channelz/GetSubchannel",
        "/grpc.channelz.v1.Channelz/GetSocket",
    }
)

KEPT = 64  # handlers; a server has some 20 of these, and a refusal for each reason

Behavior = Callable[..., Any]


class Uncounted:
    """Wraps such handlers so that each request is answered. Owned by a server."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[int, tuple[Handler, Handler]] = {}  # by id of the first

    def wrap(self, handler: Handler) -> Handler:
        """The same as before for the same handler; of the same kind."""
        known = self._known.get(id(handler))
        if known is None:
            if len(self._known) >= KEPT:
                self._known.clear()
            known = self._known[id(handler)] = handler, self._wrapped(handler)
        return known[1]

    def _wrapped(self, handler: Handler) -> Handler:
        kind, begun = kind_of(handler), partial(_Request, self._clock)
        wrap: Callable[[Behavior, Begun], Behavior]
        if kind in (AsyncResponse, AsyncWriter):
            wrap = _coroutine
        elif kind is AsyncResponses:
            wrap = _generator
        elif handler.response_streaming:
            wrap = _iterator
        else:
            wrap = _function
        make = getattr(grpc, f"{arity_of(handler)}_rpc_method_handler")
        wrapped: Handler = make(
            wrap(behavior_of(handler), begun),
            handler.request_deserializer,
            handler.response_serializer,
        )
        return wrapped


class _Request:
    """A request that a coroutine or an async generator serves, in the running task."""

    def __init__(self, clock: Clock, context: Any) -> None:
        self._clock = clock
        self._context = context
        self._task = asyncio.current_task()
        self._begun_at = clock()

    async def failed(self, error: BaseException) -> None:
        """Reports a handler's error to the client, unless grpcio does or the client has
        left."""
        if self._context.done() or raised.is_told(error):
            return
        if isinstance(error, grpc.aio.AbortError):
            return  # of another request: grpcio tells that
        if (answer := self._answer(error)) is None:
            return
        try:
            await self._context.abort(*answer)
        except grpc.aio.AbortError:
            raised.log_failure(error)
            if not isinstance(error, KeyboardInterrupt | SystemExit):
                raise
        except grpc.aio.BaseError:
            pass  # its client has gone

    def _answer(self, error: BaseException) -> tuple[StatusCode, str] | None:
        """Code and details. None: the end of the request, and not of the handler."""
        code, words = self._code(), raised.told(error)
        if isinstance(error, GeneratorExit):
            # Where nobody runs it, it is not raised, but closes the coroutine.
            return (code, words) if self._is_running() else None
        if isinstance(error, asyncio.CancelledError):
            if not cancellations():
                return code, f"Unexpected {type(error)}: {raised.CANCELLED}"
            if self._is_overdue():
                return None
            return StatusCode.CANCELLED, raised.TASK_CANCELLED
        return code, words

    def _code(self) -> StatusCode:
        code = status_of(self._context.code() or StatusCode.UNKNOWN)
        return StatusCode.UNKNOWN if code is StatusCode.OK else code

    def _is_running(self) -> bool:
        try:
            return asyncio.current_task() is self._task
        except RuntimeError:  # no loop runs
            return False

    def _is_overdue(self) -> bool:
        lasted = self._clock() - self._begun_at
        ended = interrupted(lasted, self._context.time_remaining())
        return ended is StatusCode.DEADLINE_EXCEEDED


Begun = Callable[[Any], _Request]


def _coroutine(behavior: Behavior, begun: Begun) -> Behavior:
    async def respond(request: Any, context: Any) -> Any:
        here = begun(context)
        try:
            return await behavior(request, context)
        except BaseException as error:
            await here.failed(error)
            raise

    return respond


def _generator(behavior: Behavior, begun: Begun) -> Behavior:
    async def respond(request: Any, context: Any) -> AsyncIterator[Any]:
        here = begun(context)
        try:
            async with aclosing(behavior(request, context)) as responses:
                async for response in responses:
                    try:
                        yield response
                    except GeneratorExit:  # grpcio wants no more
                        return
        except BaseException as error:
            await here.failed(error)
            raise

    return respond


def _function(behavior: Behavior, _: Begun) -> Behavior:
    def respond(request: Any, context: Any) -> Any:
        try:
            return behavior(request, context)
        except BaseException as error:
            _failed_in_thread(error)
            raise

    return respond


def _iterator(behavior: Behavior, _: Begun) -> Behavior:
    def respond(request: Any, context: Any) -> Iterator[Any]:
        try:
            for response in behavior(request, context):
                try:
                    yield response
                except GeneratorExit:  # grpcio wants no more
                    return
        except BaseException as error:
            _failed_in_thread(error)
            raise

    return respond


def _failed_in_thread(error: BaseException) -> None:
    """Raises what grpcio tells the client of, where it would not tell of this."""
    if isinstance(error, grpc.aio.AbortError | KeyboardInterrupt | SystemExit):
        return
    if not raised.is_told(error, in_thread=True):
        raise RuntimeError(raised.text_of(error)) from error
