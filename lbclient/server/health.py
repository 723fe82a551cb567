"""The services by which clients learn of state and load without sending requests.

Ours, grpc.health.v1 for everybody's health checks, and ORCA's out-of-band reports
for gRPC's own weighted round robin. Served by method path: generated servicers
refuse a grpcio that is older than their generator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any, TypeAlias

import grpc
import grpc.aio

from lbclient import wire
from lbclient.config import ServerConfig
from lbclient.model import TaskState
from lbclient.server.reporter import Reporter
from lbclient.v1 import compat_pb2, health_pb2, load_pb2

ANY_SERVICE = "*"  # the name of one that answers for all
INTERVAL_CEILING = 3600.0  # seconds; also what `ServerConfig` allows at most

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class HealthServices:
    """Owned by the server. No stream outlives its `stop`."""

    def __init__(
        self, reporter: Reporter, config: ServerConfig, services: Collection[str]
    ) -> None:
        self._reporter = reporter
        self._config = config
        self._services = services

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        watched, serving = health_pb2.HealthRequest, compat_pb2.ServingRequest
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            wire.CHECK_METHOD: grpc.unary_unary_rpc_method_handler(
                self._check,
                watched.FromString,
                health_pb2.HealthReport.SerializeToString,
            ),
            wire.WATCH_METHOD: grpc.unary_stream_rpc_method_handler(
                self._watch,
                watched.FromString,
                health_pb2.HealthReport.SerializeToString,
            ),
            wire.SERVING_CHECK_METHOD: grpc.unary_unary_rpc_method_handler(
                self._check_serving,
                serving.FromString,
                compat_pb2.ServingReply.SerializeToString,
            ),
            wire.SERVING_WATCH_METHOD: grpc.unary_stream_rpc_method_handler(
                self._watch_serving,
                serving.FromString,
                compat_pb2.ServingReply.SerializeToString,
            ),
            wire.ORCA_METHOD: grpc.unary_stream_rpc_method_handler(
                self._stream_load,
                compat_pb2.LoadReportRequest.FromString,
                load_pb2.LoadReport.SerializeToString,
            ),
        }
        return [_service(path, handler) for path, handler in methods.items()]

    async def _check(
        self, _request: health_pb2.HealthRequest, _context: Context
    ) -> health_pb2.HealthReport:
        return self._reporter.health()

    async def _watch(self, request: health_pb2.HealthRequest, context: Context) -> None:
        wanted = wire.sound(request.report_interval) or self._config.report_interval
        interval = _clamp(wanted, wire.REPORT_INTERVAL_FLOOR)
        await self._stream(context, self._reporter.health, interval)

    async def _stream_load(
        self, request: compat_pb2.LoadReportRequest, context: Context
    ) -> None:
        wanted = request.report_interval.seconds + request.report_interval.nanos / 1e9
        interval = _clamp(wanted, self._config.orca_min_interval)
        await self._stream(context, self._reporter.load, interval)

    async def _check_serving(
        self, request: compat_pb2.ServingRequest, context: Context
    ) -> compat_pb2.ServingReply:
        if not self._knows(request.service):
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"no service {request.service!r} here"
            )
        return self._serving(request.service)

    async def _watch_serving(
        self, request: compat_pb2.ServingRequest, context: Context
    ) -> None:
        await self._stream(context, lambda: self._serving(request.service), None)

    def _knows(self, service: str) -> bool:
        known = self._services
        return not service or service in known or ANY_SERVICE in known

    def _serving(self, service: str) -> compat_pb2.ServingReply:
        if not self._knows(service):
            status = compat_pb2.ServingReply.SERVICE_UNKNOWN
        elif self._reporter.state is TaskState.SERVING:
            status = compat_pb2.ServingReply.SERVING
        else:
            status = compat_pb2.ServingReply.NOT_SERVING
        return compat_pb2.ServingReply(status=status)

    async def _stream(
        self, context: Context, report: Callable[[], Any], interval: float | None
    ) -> None:
        """Now, at every change of state, every interval; until the server stops."""
        reporter = self._reporter
        with reporter.watching():
            while True:
                changed = reporter.changed()
                await context.write(report())
                if reporter.stopping:
                    return
                await asyncio.wait((changed,), timeout=interval)


def _clamp(interval: float, floor: float) -> float:
    return min(max(interval, floor), INTERVAL_CEILING)


def _service(
    path: str, handler: grpc.RpcMethodHandler[Any, Any]
) -> grpc.GenericRpcHandler:
    _, service, method = path.split("/")
    return grpc.method_handlers_generic_handler(service, {method: handler})
