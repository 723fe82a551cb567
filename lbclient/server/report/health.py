"""The services by which clients learn of state and load without sending requests.

Ours, grpc.health.v1 for everybody's health checks, and ORCA's out-of-band reports
for gRPC's own weighted round robin. Served by method path: generated servicers
refuse a grpcio that is older than their generator.

A stream beyond the bounds of `streams` is refused, in words of its kind. To our
clients and to ORCA's it is RESOURCE_EXHAUSTED, which both try again after a pause; the
trailers have the load report. A gRPC client that checks health takes any status but
UNIMPLEMENTED for an unhealthy server (gRFC A17), so a serving task says that, and the
client sends its calls as to a server without a health service.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from typing import Any, NamedTuple, TypeAlias

import grpc
import grpc.aio

from lbclient import wire
from lbclient.config import ServerConfig
from lbclient.core.model import TaskState
from lbclient.core.text import printable
from lbclient.server.report.reporter import Reporter
from lbclient.server.report.streams import (
    Full,
    ReportStreams,
    StreamKind,
    pace_beyond,
    pace_within,
)
from lbclient.server.workers.membership import membership
from lbclient.v1 import compat_pb2, health_pb2

ANY_SERVICE = "*"  # the name of one that answers for all

# What gRPC says of a connection that nobody else can read: by TLS, by ALTS, or within
# this machine. A peer behind a proxy that ends TLS is that proxy.
PRIVATE = b"TSI_PRIVACY_AND_INTEGRITY"

KINDS = {  # of streams, by path
    wire.WATCH_METHOD: StreamKind.HEALTH,
    wire.SERVING_WATCH_METHOD: StreamKind.SERVING,
    wire.ORCA_METHOD: StreamKind.LOAD,
}

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class _Plan(NamedTuple):
    """What a stream is told, at which pace; `once` ends the first message."""

    told: Callable[[], bytes]
    pace: float
    once: bytes = b""


class HealthServices:
    """Serves the health and load services of lbclient, `grpc.health.v1` and ORCA. Owned
    by the server. No stream outlives its `stop`."""

    def __init__(
        self,
        reporter: Reporter,
        streams: ReportStreams,
        config: ServerConfig,
        services: Collection[str],
    ) -> None:
        self._reporter = reporter
        self._streams = streams
        self._config = config
        self._services = services
        self._member = membership()
        words = {
            Full.CONNECTION: f"at most {config.max_streams_per_connection} streams of"
            " this kind on a connection: ServerConfig.max_streams_per_connection",
            Full.SERVER: f"at most {config.max_streams} streams of health and load on"
            " this server: ServerConfig.max_streams",
            Full.OPENINGS: "too many streams of health and load begin at a time",
            Full.SLOTS: "a connection may have too few streams to spare one for health"
            " and load: the option grpc.max_concurrent_streams",
        }
        self._refused = {
            (kind, reason): _Refused(reporter, kind, words[reason])
            for kind in StreamKind
            for reason in Full
        }

    def handlers(self) -> dict[str, grpc.GenericRpcHandler]:
        """The handlers by path of the method."""
        return {
            path: _Method(path, handler, self._refuses, KINDS.get(path))
            for path, handler in self.methods().items()
        }

    def methods(self) -> dict[str, Handler]:
        """The methods by path. Streams refuse what `handlers` refuses earlier."""
        watched, serving = health_pb2.HealthRequest, compat_pb2.ServingRequest
        unary = grpc.unary_unary_rpc_method_handler
        # What they send is encoded once for all of them: bytes.
        stream = grpc.unary_stream_rpc_method_handler
        return {
            wire.CHECK_METHOD: unary(
                self._check,
                watched.FromString,
                health_pb2.HealthReport.SerializeToString,
            ),
            wire.WATCH_METHOD: stream(
                self._following(StreamKind.HEALTH, self._watch), watched.FromString
            ),
            wire.SERVING_CHECK_METHOD: unary(
                self._check_serving,
                serving.FromString,
                compat_pb2.ServingReply.SerializeToString,
            ),
            wire.SERVING_WATCH_METHOD: stream(
                self._following(StreamKind.SERVING, self._watch_serving),
                serving.FromString,
            ),
            wire.ORCA_METHOD: stream(
                self._following(StreamKind.LOAD, self._stream_load),
                compat_pb2.LoadReportRequest.FromString,
            ),
        }

    async def _check(
        self, request: health_pb2.HealthRequest, context: Context
    ) -> health_pb2.HealthReport:
        reporter = self._reporter
        cost = wire.sound(request.fleet_cost)
        reporter.fleet_cost.hear(context.peer(), cost, reporter.clock())
        report = reporter.health()
        report.MergeFromString(self._udp_session(context))
        return report

    def _watch(self, request: health_pb2.HealthRequest, context: Context) -> _Plan:
        wanted = wire.sound(request.report_interval) or self._config.report_interval
        told = self._reporter.encoded_health
        return _Plan(told, pace_within(wanted), self._udp_session(context))

    def _udp_session(self, context: Context) -> bytes:
        """A new session, to append to a health report; empty: there are none, or
        others could read it."""
        sessions = self._reporter.udp_sessions
        if sessions is None or not sessions.port:
            return b""
        if PRIVATE not in context.auth_context().get("security_level", ()):
            return b""
        report = health_pb2.HealthReport(udp_session=sessions.issue())
        return report.SerializeToString()

    def _stream_load(
        self, request: compat_pb2.LoadReportRequest, _context: Context
    ) -> _Plan:
        wanted = request.report_interval.seconds + request.report_interval.nanos / 1e9
        pace = pace_beyond(max(wanted, self._config.orca_min_interval))
        return _Plan(self._reporter.encoded_load, pace)

    async def _check_serving(
        self, request: compat_pb2.ServingRequest, context: Context
    ) -> compat_pb2.ServingReply:
        # The reply has no room for the load, as that of our own Check has.
        context.set_trailing_metadata(self._reporter.trailers())
        if not self._knows(request.service):
            await context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"no service {printable(request.service)!r} here",
            )
        return self._serving(request.service, by_task=True)

    def _watch_serving(
        self, request: compat_pb2.ServingRequest, _context: Context
    ) -> _Plan:
        def told() -> bytes:
            return self._serving(request.service).SerializeToString()

        return _Plan(told, 0.0)

    def _knows(self, service: str) -> bool:
        known = self._services
        return not service or service in known or ANY_SERVICE in known

    def _serving(self, service: str, by_task: bool = False) -> compat_pb2.ServingReply:
        """`by_task`: of all its workers. Streams speak for who has the connection."""
        if not self._knows(service):
            status = compat_pb2.ServingReply.SERVICE_UNKNOWN
        elif self._reporter.state is TaskState.SERVING or (
            by_task and self._member is not None and self._member.serving
        ):
            status = compat_pb2.ServingReply.SERVING
        else:
            status = compat_pb2.ServingReply.NOT_SERVING
        return compat_pb2.ServingReply(status=status)

    def _following(
        self, kind: StreamKind, plan: Callable[[Any, Context], _Plan]
    ) -> Callable[[Any, Context], AsyncIterator[bytes]]:
        """The handler of a stream: now, and whenever it is due; until the server stops.

        A generator function, the kind of streaming handler that all interceptors know.
        """

        async def follow(request: Any, context: Context) -> AsyncIterator[bytes]:
            told, pace, once = plan(request, context)
            stream = self._streams.enter(kind, context.peer(), pace)
            if isinstance(stream, Full):
                self._refusal(kind, stream).tell(context)
                return
            try:
                while True:
                    is_last = self._reporter.stopping
                    yield told() + once
                    once = b""
                    if is_last:
                        return
                    await stream.due()
            finally:
                self._streams.leave(stream)

        return follow

    def _refuses(self, kind: StreamKind) -> _Refused | None:
        """Whether a stream is refused. Asked where grpcio looks the handler up, the
        cheapest place."""
        reason = self._streams.closed_to(kind)
        return None if reason is None else self._refusal(kind, reason)

    def _refusal(self, kind: StreamKind, reason: Full) -> _Refused:
        return self._refused[kind, reason]


class _Refused:
    """A handler, as far as grpcio looks, of whatever arity: it reads no request."""

    request_streaming = response_streaming = True
    request_deserializer = response_serializer = None

    def __init__(self, reporter: Reporter, kind: StreamKind, details: str) -> None:
        self._reporter = reporter
        self._kind = kind
        self._details = details

    async def stream_stream(self, _requests: Any, context: Any) -> None:
        self.tell(context)

    def tell(self, context: Any) -> None:
        reporter = self._reporter
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
        if self._kind is StreamKind.SERVING:
            code = grpc.StatusCode.UNAVAILABLE
            if reporter.state is TaskState.SERVING:
                code = grpc.StatusCode.UNIMPLEMENTED
        context.set_code(code)
        context.set_details(self._details)
        context.set_trailing_metadata(reporter.trailers())


class _Method(grpc.ServiceRpcHandler):
    """Finds the handler of one method, or what refuses it."""

    def __init__(
        self,
        path: str,
        handler: Handler,
        refuses: Callable[[StreamKind], _Refused | None],
        kind: StreamKind | None,
    ) -> None:
        self._path = path
        self._handler = handler
        self._refuses = refuses
        self._kind = kind

    def service_name(self) -> str:
        return self._path.split("/")[1]

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        if handler_call_details.method != self._path:
            return None
        refused = None if self._kind is None else self._refuses(self._kind)
        return self._handler if refused is None else refused
