"""With `LBCLIENT_DISABLE`: grpcio's own synchronous server, with grpc.health.v1."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import Any

import grpc

from lbclient import wire
from lbclient.server.disabled import KnownServices, PlainBase
from lbclient.v1 import compat_pb2

Reply = compat_pb2.ServingReply

# A client that opens a stream and sends no request holds one until it leaves.
THREADS = 16


class PlainSyncServer(PlainBase, grpc.Server):
    """Hands everything on to grpcio's; adds health checks at `start`."""

    def __init__(
        self, inner: grpc.Server, handlers: Iterable[grpc.GenericRpcHandler]
    ) -> None:
        self._health = _Health()
        super().__init__(inner, self._health.services, handlers)

    def start(self) -> None:
        # After the user's, so that a health service of the user's goes first.
        self._inner.add_generic_rpc_handlers((self._health.handler(),))
        self._inner.start()

    def stop(self, grace: float | None) -> Any:
        self._health.end()
        return self._inner.stop(grace)

    def wait_for_termination(self, timeout: float | None = None) -> Any:
        return self._inner.wait_for_termination(timeout)

    def __repr__(self) -> str:
        return "<grpcio's own server, as LBCLIENT_DISABLE is set>"


class _Health:
    """Serves until it stops. Checks and streams hold none of the pool's threads."""

    def __init__(self) -> None:
        self.services = KnownServices()
        self._is_over = False
        self._lock = Lock()
        self._watching: list[tuple[str, Callable[[Any], None]]] = []
        self._pool = ThreadPoolExecutor(THREADS, "lbclient health")

    def handler(self) -> grpc.GenericRpcHandler:
        service, check = wire.SERVING_CHECK_METHOD.split("/")[1:]
        watch = wire.SERVING_WATCH_METHOD.split("/")[2]
        read, write = compat_pb2.ServingRequest.FromString, Reply.SerializeToString
        # Functions that carry what grpcio reads of a behavior.
        answer: Any = partial(self._check)
        follow: Any = partial(self._watch)
        answer.experimental_thread_pool = follow.experimental_thread_pool = self._pool
        follow.experimental_non_blocking = True
        methods = {
            check: grpc.unary_unary_rpc_method_handler(answer, read, write),
            watch: grpc.unary_stream_rpc_method_handler(follow, read, write),
        }
        return grpc.method_handlers_generic_handler(service, methods)

    def _status(self, service: str) -> compat_pb2.ServingReply:
        return self.services.status(service, self._is_over)

    def _check(
        self, request: compat_pb2.ServingRequest, context: grpc.ServicerContext
    ) -> compat_pb2.ServingReply:
        status = self._status(request.service)
        if status.status == Reply.SERVICE_UNKNOWN:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such service here")
        return status

    def _watch(
        self,
        request: compat_pb2.ServingRequest,
        context: grpc.ServicerContext,
        send: Callable[[Any], None],
    ) -> None:
        watching = request.service, send
        with self._lock:
            self._watching.append(watching)
        context.add_callback(partial(self._forget, watching))
        send(self._status(request.service))
        if self._is_over:
            send(None)

    def _forget(self, watching: tuple[str, Callable[[Any], None]]) -> None:
        with self._lock:
            if watching in self._watching:
                self._watching.remove(watching)

    def end(self) -> None:
        with self._lock:
            self._is_over = True
            watching, self._watching = self._watching, []
        for service, send in watching:
            self._pool.submit(self._end_stream, service, send)
        # The pool stays open: grpcio hands it checks until the server has stopped, and
        # a closed pool would end the thread that serves.

    def _end_stream(self, service: str, send: Callable[[Any], None]) -> None:
        send(self._status(service))
        send(None)
