"""Lets in calls that have the service's token, on the backend."""

from collections.abc import AsyncIterator, Awaitable, Callable
from hmac import compare_digest
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

if TYPE_CHECKING:  # in grpcio itself they take no parameters
    Handler = grpc.RpcMethodHandler[Any, Any] | None
    Context = grpc.aio.ServicerContext[Any, Any]


class TokenRequired(grpc.aio.ServerInterceptor):
    """lbclient's own health checks pass by: they need no token."""

    def __init__(self, token: str) -> None:
        if not token:
            raise ValueError("CATALOG_TOKEN is not set: anybody could call")
        self._expected = f"Bearer {token}".encode()

    async def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Awaitable[Handler]]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler":
        metadata = dict(handler_call_details.invocation_metadata or ())
        given = metadata.get("authorization", "")
        sent = given.encode() if isinstance(given, str) else given
        if compare_digest(sent, self._expected):
            return await continuation(handler_call_details)
        return grpc.stream_stream_rpc_method_handler(_refuse)


async def _refuse(_: object, context: "Context") -> AsyncIterator[bytes]:
    """Serves methods of all kinds: a refusal looks the same.

    A generator, as OpenTelemetry's interceptor expects of methods that stream.
    """
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no valid token")
    yield b""
