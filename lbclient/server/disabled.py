"""With `LBCLIENT_DISABLE`: grpc.aio's own server, and grpc.health.v1 on it.

Whoever checks health, such as Kubernetes, must not take the server for a broken one
because the switch was thrown. All else is grpc.aio's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import grpc
import grpc.aio

from lbclient import wire
from lbclient.server.report.health import ANY_SERVICE
from lbclient.v1 import compat_pb2

Reply = compat_pb2.ServingReply


class KnownServices:
    """Answers whether a service serves, for those that a server registers."""

    def __init__(self) -> None:
        self._names = {wire.SERVING_CHECK_METHOD.split("/")[1]}

    def add(self, name: str) -> None:
        self._names.add(name)

    def of(
        self, handlers: Iterable[grpc.GenericRpcHandler]
    ) -> tuple[grpc.GenericRpcHandler, ...]:
        """Adds the services of handlers, and returns the handlers."""
        handlers = tuple(handlers)
        for handler in handlers:
            if isinstance(handler, grpc.ServiceRpcHandler):
                self.add(handler.service_name())
        return handlers

    def status(self, service: str, is_over: bool) -> compat_pb2.ServingReply:
        if service and not self._names & {service, ANY_SERVICE}:
            return Reply(status=Reply.SERVICE_UNKNOWN)
        return Reply(status=Reply.NOT_SERVING if is_over else Reply.SERVING)

    def __repr__(self) -> str:
        return f"<{len(self._names)} services>"


class PlainBase:
    """Hands services and ports on to a server of grpcio; knows the services."""

    def __init__(
        self,
        inner: Any,
        services: KnownServices,
        handlers: Iterable[grpc.GenericRpcHandler],
    ) -> None:
        self._inner = inner
        self._services = services
        self.add_generic_rpc_handlers(handlers)

    def add_generic_rpc_handlers(
        self, generic_rpc_handlers: Iterable[grpc.GenericRpcHandler]
    ) -> None:
        handlers = self._services.of(generic_rpc_handlers)
        self._inner.add_generic_rpc_handlers(handlers)

    def add_registered_method_handlers(
        self,
        service_name: str,
        method_handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]],
    ) -> None:
        self._services.add(service_name)
        self._inner.add_registered_method_handlers(service_name, method_handlers)

    def add_insecure_port(self, address: str) -> Any:
        return self._inner.add_insecure_port(address)

    def add_secure_port(
        self, address: str, server_credentials: grpc.ServerCredentials
    ) -> Any:
        return self._inner.add_secure_port(address, server_credentials)


class PlainServer(PlainBase, grpc.aio.Server):
    """Hands everything on to grpc.aio's; adds health checks at `start`."""

    def __init__(
        self, inner: grpc.aio.Server, handlers: Iterable[grpc.GenericRpcHandler]
    ) -> None:
        self._health = _Health()
        self._is_started = False
        super().__init__(inner, self._health.services, handlers)

    async def start(self) -> None:
        if not self._is_started:
            self._is_started = True
            # After the user's, so that a health service of the user's goes first.
            self._inner.add_generic_rpc_handlers((self._health,))
        await self._inner.start()

    async def stop(self, grace: float | None) -> None:
        self._health.over.set()
        await self._inner.stop(grace)

    async def wait_for_termination(self, timeout: float | None = None) -> bool:
        return bool(await self._inner.wait_for_termination(timeout))

    def __repr__(self) -> str:
        return "<grpc.aio's own server, as LBCLIENT_DISABLE is set>"


class _Health(grpc.GenericRpcHandler):
    """grpc.health.v1: it serves until it stops."""

    def __init__(self) -> None:
        self.services = KnownServices()
        self.over = asyncio.Event()
        read, write = compat_pb2.ServingRequest.FromString, Reply.SerializeToString
        self._methods: dict[str, Any] = {
            wire.SERVING_CHECK_METHOD: grpc.unary_unary_rpc_method_handler(
                self._check, read, write
            ),
            wire.SERVING_WATCH_METHOD: grpc.unary_stream_rpc_method_handler(
                self._watch, read, write
            ),
        }

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return self._methods.get(handler_call_details.method)

    def _status(self, service: str) -> compat_pb2.ServingReply:
        return self.services.status(service, self.over.is_set())

    async def _check(
        self, request: compat_pb2.ServingRequest, context: Any
    ) -> compat_pb2.ServingReply:
        status = self._status(request.service)
        if status.status == Reply.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service here")
        return status

    async def _watch(
        self, request: compat_pb2.ServingRequest, _context: Any
    ) -> AsyncIterator[compat_pb2.ServingReply]:
        yield self._status(request.service)
        await self.over.wait()
        yield self._status(request.service)
