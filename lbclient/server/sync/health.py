"""Health services on a synchronous server, without a thread for each stream.

The services are those of asyncio's servers (`lbclient.server.report.health`); they run
on the server's loop. grpcio hands a stream over with a callback that sends, as it does
for `grpc_health`'s `experimental_non_blocking`. Requests take one of few threads that
are for health alone, and sends one of few others: a client that opens a stream and
sends no request holds up none that is open.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from typing import Any

import grpc
from grpc import StatusCode

from lbclient.log import Log
from lbclient.server.report.health import HealthServices
from lbclient.server.requests.handler import Handler
from lbclient.server.sync.loop_thread import LoopThread

THREADS = 16  # for requests, and as many to send; a send waits only for its client
LONGEST_SEND = 10.0  # seconds until the stream of such a client is cancelled

logger = Log(__name__)


class SyncHealth:
    """Serves health services on a synchronous server, without a thread for each stream.
    Owned by the server. `find` is called on the thread that looks up handlers."""

    def __init__(self, services: HealthServices, loop: LoopThread) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(THREADS, "lbclient health")
        self._senders = ThreadPoolExecutor(THREADS, "lbclient health sends")
        self._tasks: set[asyncio.Task[None]] = set()
        self.handlers = {
            path: self._method(handler) for path, handler in services.methods().items()
        }

    def _method(self, handler: Handler) -> Handler:
        streams = handler.response_streaming
        behavior: Any = partial(self._stream if streams else self._answer, handler)
        behavior.experimental_thread_pool = self._pool
        behavior.experimental_non_blocking = streams
        make = (
            grpc.unary_stream_rpc_method_handler
            if streams
            else grpc.unary_unary_rpc_method_handler
        )
        read, write = handler.request_deserializer, handler.response_serializer
        return make(behavior, read, write)

    def _answer(self, handler: Any, request: Any, context: Any) -> Any:
        told = _Told(context)
        try:
            return self._loop.run(handler.unary_unary(request, told))
        except _Aborted as answer:
            context.abort(*answer.args)

    def _stream(
        self,
        handler: Any,
        request: Any,
        context: Any,
        send: Callable[[Any], None] | None = None,
    ) -> Any:
        if send is None:
            # An interceptor has wrapped this: a user's with `intercept_health`, or one
            # outside of ours that `put_first` could not move. A stream would hold a
            # thread of calls: clients that are told this use unary checks.
            context.set_code(StatusCode.UNIMPLEMENTED)
            context.set_details("an interceptor lets no health stream pass by")
            return ()
        stream = handler.unary_stream(request, _Told(context))
        follow = self._follow(stream, context, send)
        return self._loop.call(self._begin, follow, context)

    def _begin(self, follow: Coroutine[Any, Any, None], context: Any) -> None:
        task = self._loop.loop.create_task(follow)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        cancel = partial(self._loop.loop.call_soon_threadsafe, task.cancel)
        if not context.add_callback(cancel):
            task.cancel()  # the client has left

    async def _follow(
        self, stream: AsyncGenerator[bytes, None], context: Any, send: Any
    ) -> None:
        try:
            async with aclosing(stream):
                async for message in stream:
                    await self._send(context, send, message)
        except _Aborted as answer:
            context.set_code(answer.args[0])
            context.set_details(answer.args[1])
        except Exception as error:
            logger.exception("a health stream failed", reason=error)
            context.set_code(StatusCode.UNKNOWN)
            context.set_details(repr(error))
        finally:
            send(None)  # ends the stream, and does not wait

    async def _send(self, context: Any, send: Any, message: bytes) -> None:
        sending = self._loop.loop.run_in_executor(self._senders, send, message)
        # Not `wait_for`, which may swallow the cancellation by a client that leaves.
        await asyncio.wait((sending,), timeout=LONGEST_SEND)
        if not sending.done():
            context.cancel()  # which ends the send, too
            raise asyncio.CancelledError
        sending.result()

    def stop(self) -> None:
        for pool in (self._pool, self._senders):
            pool.shutdown(wait=False)

    def __repr__(self) -> str:
        return f"<{len(self._tasks)} streams>"


class _Aborted(Exception):
    """Code and details."""


class _Told:
    """What the services see of grpcio's context: asyncio's methods."""

    def __init__(self, context: Any) -> None:
        self._context = context

    async def abort(self, code: StatusCode, details: str = "") -> None:
        raise _Aborted(code, details)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)
