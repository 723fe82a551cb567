"""Puts a queue of ours between gRPC's core and grpcio's server.

grpcio's server asks its core for one request at a time, in a method that a subclass can
override. Where a grpcio has no such method its server is left as it is.

What instruments `grpc.aio.server` replaces it, and puts interceptors before those that
a program gives. Only where grpcio makes the server itself are they all seen.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from functools import cache, partial
from importlib import import_module
from threading import Lock
from time import thread_time
from typing import Any, Protocol, TypeVar, cast

from lbclient.grpc_seam.private import find, is_news, version

T = TypeVar("T")
Metadata = tuple[tuple[str, str | bytes], ...]

# One request of so many is timed, and the gain of the mean that it enters. As they are
# asked for by multiples of eight, it is now one and now another of those.
TIMED, GAIN = 7, 1 / 16
# grpcio, whose server waits for what a method of it returns, for each request.
ASKS_BY_METHOD_SINCE = 1, 84

_making = Lock()


class Queue(Protocol):
    def take_from(self, core: "RequestSource") -> None: ...

    def next(self, future: "asyncio.Future[Any]") -> None:
        """Gives the future the next request, or what went wrong, now or later."""


class AtOnce(asyncio.Future[Any]):
    """A future that runs its first done callback immediately if it is done already and
    the server is running.

    grpcio waits for a request by `asyncio.wait`, and would not hear of one that is
    there until the loop's next turn, so that it would begin one request in two turns.
    When it ends it waits by `asyncio.gather`, which has to hear later.
    """

    is_running: Callable[[], bool]
    _is_asked = False

    def add_done_callback(
        self, fn: Callable[[Any], object], /, *, context: Context | None = None
    ) -> None:
        was_asked, self._is_asked = self._is_asked, True
        if self.done() and not was_asked and self.is_running():
            fn(self)
        else:
            super().add_done_callback(fn, context=context)


class RequestSource:
    """What one server's requests come from. `drop_seconds` of the loop's thread is what
    it took of late to take a request that nobody kept; 0.0: not known yet."""

    def __init__(self, request_call: Callable[[], Any]) -> None:
        self._request_call = request_call
        self._asked = 0
        self.drop_seconds = 0.0

    def ask(
        self, take: Callable[[Any], bool], fail: Callable[[BaseException], None]
    ) -> None:
        """Hands the next request to `take`, which says whether it keeps it, or what
        went wrong to `fail`, later.

        grpcio's coroutine awaits one future. A task for it would cost more, and would
        be cancelled, with the request that it was given, when a loop is closed.
        """
        self._asked += 1
        began_at = 0.0 if self._asked % TIMED else thread_time()
        asking = self._request_call()

        def answered(_: "asyncio.Future[None]") -> None:
            came_at, asked = thread_time() if began_at else 0.0, self._asked
            is_kept = True
            try:
                asking.send(None)
            except StopIteration as end:
                is_kept = take(end.value)
            except BaseException as error:
                fail(error)
            # The core has ended by now what was not kept. Who takes it may have asked
            # for many others, which is their time.
            if came_at and not is_kept and asked == self._asked:
                self._time(asked_for + thread_time() - came_at)

        try:
            future = asking.send(None)
        except StopIteration as end:  # it need not wait
            take(end.value)
        else:
            future.add_done_callback(answered)
        asked_for = thread_time() - began_at if began_at else 0.0

    def _time(self, seconds: float) -> None:
        mean = self.drop_seconds
        self.drop_seconds = mean + (seconds - mean) * GAIN if mean else seconds


def metadata_of(request: Any) -> Metadata:
    """The metadata of a request that the core has handed over; none if nobody knows.

    If nobody keeps the request, gRPC's core ends it as CANCELLED.
    """
    context = find("grpc._cython.cygrpc:_ServicerContext")
    if context is None:
        return ()
    return tuple(context(request, None, None, None).invocation_metadata())


@cache
def _subclass() -> Any:
    """grpcio's server with a queue; None where a grpcio has no such class."""
    path = "grpc._cython.cygrpc:AioServer._request_call"
    ask = find(path)
    if ask is None:
        return None
    base: Any = find(path.rpartition(".")[0])
    ask_by_method: Any = None
    if version() >= ASKS_BY_METHOD_SINCE:
        ask_by_method = find("grpc._cython.cygrpc:AioServer._make_request_call_future")

    class WithQueue(base):  # type: ignore[misc]
        queue: Queue | None = None

        async def _request_call(self) -> Any:
            if self.queue is None:
                return await ask(self)
            return await self._ask_by_method(None)

        def _ask_by_method(self, method: bytes | None) -> Any:
            """As grpcio waits for each method's requests and all others'."""
            if self.queue is None or method is not None:
                return ask_by_method(self, method)
            future = AtOnce()
            future.is_running = self.is_running
            self.queue.next(future)
            return future

        if ask_by_method is not None:
            _make_request_call_future = _ask_by_method

        def enter(self, queue: Queue) -> None:
            queue.take_from(RequestSource(partial(ask, self)))
            self.queue = queue

    return WithQueue


class _Cygrpc:
    """The module, as `grpc.aio.Server` sees it while one of ours is made.

    Of interceptors that grpcio's server is given `ours` becomes the outermost. It
    is left out if it is the only one.
    """

    def __init__(self, cygrpc: Any, kind: Any, ours: Any) -> None:
        self._cygrpc = cygrpc
        self._kind = kind
        self._ours = ours
        self.intercepts = False

    def AioServer(self, *arguments: Any) -> Any:
        return self._kind(*map(self._ordered, arguments))

    def _ordered(self, argument: Any) -> Any:
        ours = self._ours
        if not (isinstance(argument, list | tuple) and ours in argument):
            return argument
        others = [one for one in argument if one is not ours]
        self.intercepts = bool(others)
        return (ours, *others) if others else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cygrpc, name)


def with_queue(
    make: Callable[[list[Any] | None], T],
    queue: Queue,
    ours: Any,
    interceptors: Sequence[Any],
) -> tuple[T, bool]:
    """The server that `make` makes with interceptors, which takes its requests from
    `queue`; and whether it has other interceptors than `ours`, which is then the first.
    """
    own, before = _subclass(), find("grpc.aio._server:cygrpc")
    if own is None or before is None:
        return make([ours, *interceptors] if interceptors else None), bool(interceptors)
    with _making:
        objects: Any = import_module("grpc.aio._server")
        objects.cygrpc = seen = _Cygrpc(before, own, ours)
        try:
            # A list, as `grpc.server` documents: some instrumentation inserts into it.
            made: Any = make([ours, *interceptors])
        finally:
            objects.cygrpc = before
    try:
        inner = made._server
    except AttributeError as error:
        is_news(error)
    else:
        if isinstance(inner, own):
            inner.enter(queue)
    return cast(T, made), seen.intercepts
