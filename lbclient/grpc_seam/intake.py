"""Puts a queue of ours between gRPC's core and grpcio's server.

grpcio's server asks its core for one request at a time, in a method that a subclass can
override. Where a grpcio has no such method its server is left as it is.
"""

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from threading import Lock
from typing import Any, Protocol, TypeVar

import grpc
from grpc._cython import cygrpc

T = TypeVar("T")

logger = logging.getLogger(__name__)

_making = Lock()


class Queue(Protocol):
    def take_from(self, core: "Core") -> None: ...

    def next(self) -> Awaitable[Any]: ...


class Core:
    """What one server's requests come from."""

    def __init__(self, request_call: Callable[[], Any]) -> None:
        self._request_call = request_call

    def ask(
        self, take: Callable[[Any], None], fail: Callable[[BaseException], None]
    ) -> None:
        """Hands the next request to `take`, or what went wrong to `fail`, later.

        grpcio's coroutine awaits one future. A task for it would cost more, and would
        be cancelled, with the request that it was given, when a loop is closed.
        """
        asking = self._request_call()

        def answered(_: "asyncio.Future[None]") -> None:
            try:
                asking.send(None)
            except StopIteration as end:
                take(end.value)
            except BaseException as error:
                fail(error)

        try:
            future = asking.send(None)
        except StopIteration as end:  # it need not wait
            take(end.value)
        else:
            future.add_done_callback(answered)


def _subclass() -> Any:
    """None where a grpcio has no class, or another one than is needed."""
    try:
        base: Any = cygrpc.AioServer
        ask = base._request_call

        class WithQueue(base):  # type: ignore[misc]
            queue: Queue | None = None

            async def _request_call(self) -> Any:
                if self.queue is None:
                    return await ask(self)
                return await self.queue.next()

            def enter(self, queue: Queue) -> None:
                queue.take_from(Core(partial(ask, self)))
                self.queue = queue

    except (AttributeError, TypeError) as error:
        logger.warning(
            "requests wait inside of gRPC, unseen: this grpcio, %s, has another server"
            " than is known here: %s",
            grpc.__version__,
            error,
        )
        return None
    return WithQueue


class _Cygrpc:
    """The module, as `grpc.aio.Server` sees it while one of ours is made."""

    def __init__(self, server: Any) -> None:
        self.AioServer = server

    def __getattr__(self, name: str) -> Any:
        return getattr(cygrpc, name)


def with_queue(make: Callable[[], T], queue: Queue) -> T:
    """The server that `make` makes, which takes its requests from `queue`."""
    with _making:
        own, objects = _subclass(), _server_module()
        if own is None or objects is None:
            return make()
        before = objects.cygrpc
        objects.cygrpc = _Cygrpc(own)
        try:
            made = make()
        finally:
            objects.cygrpc = before
    inner = getattr(made, "_server", None)
    if isinstance(inner, own):
        inner.enter(queue)
    return made


def _server_module() -> Any:
    found = sys.modules.get("grpc.aio._server")
    return found if hasattr(found, "cygrpc") else None
