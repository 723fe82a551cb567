"""The outermost interceptor: every request begins here, and every answer reports.

It and the handler run in one task of grpcio's, so a callback on that task sees the
end of the request however it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from grpc import StatusCode

from lbclient import wire
from lbclient.server.calls import Call, Handler, Refusal, kind_of
from lbclient.server.reporter import Reporter

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
    }
)

KINDS_KEPT = 1024  # methods; a generic handler may serve any name that clients invent

Continuation = Callable[[grpc.HandlerCallDetails], Awaitable["Handler | None"]]


class Interceptor(grpc.aio.ServerInterceptor):
    """Owned by the server. `limit` is of requests served at a time."""

    def __init__(self, reporter: Reporter, limit: int | None) -> None:
        self._reporter = reporter
        self._limit = limit
        self._kinds: dict[str, tuple[Handler, type[Call]]] = {}

    async def intercept_service(
        self,
        continuation: Continuation,
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        method = handler_call_details.method
        if method in UNCOUNTED:
            return await continuation(handler_call_details)
        reporter = self._reporter
        begun_at = reporter.clock()
        reporter.monitor.begin()
        if self._limit is not None and reporter.monitor.active > self._limit:
            # Not grpcio's own limit: that one counts watchers, and refuses without
            # a report.
            return self._refuse(
                begun_at,
                StatusCode.RESOURCE_EXHAUSTED,
                "Concurrent RPC limit exceeded!",
            )
        try:
            handler = await continuation(handler_call_details)
            if handler is None:
                return self._refuse(
                    begun_at, StatusCode.UNIMPLEMENTED, "Method not found!"
                )
            call = self._kind(method, handler)(reporter, handler, begun_at)
        except Exception as error:
            return self._refuse(begun_at, StatusCode.UNKNOWN, "", error)
        except asyncio.CancelledError:
            reporter.finish(StatusCode.CANCELLED, begun_at)
            raise
        task: asyncio.Task[Any] | None = asyncio.current_task()
        assert task is not None
        task.add_done_callback(call.ended)
        return call

    def _refuse(
        self,
        begun_at: float,
        code: StatusCode,
        details: str,
        error: Exception | None = None,
    ) -> Refusal:
        self._reporter.finish(code, begun_at)
        return Refusal(self._reporter, code, details, error)

    def _kind(self, method: str, handler: Handler) -> type[Call]:
        known = self._kinds.get(method)
        if known is not None and known[0] is handler:
            return known[1]
        if len(self._kinds) >= KINDS_KEPT:
            self._kinds.clear()
        kind = kind_of(handler)
        self._kinds[method] = (handler, kind)
        return kind
