"""The user's interceptors: a call through them, as grpc.aio makes it."""

from collections.abc import Callable, Sequence
from typing import Any

import grpc
from grpc._compression import augment_metadata
from grpc.aio import _interceptor as interceptor


def beneath(call: Any) -> Any:
    """The call that was sent beneath interceptors; None while they are at it."""
    task = getattr(call, "_interceptors_task", None)
    if task is None:
        return call
    if not task.done() or task.cancelled() or task.exception():
        return None
    return task.result()


def with_compression(
    metadata: Any, compression: grpc.Compression | None
) -> grpc.aio.Metadata:
    """Metadata as interceptors see it: grpc.aio tells of a call's compression there."""
    return grpc.aio.Metadata(*(augment_metadata(metadata, compression) or ()))


def intercepted(
    kind: str,
    interceptors: Sequence[Any],
    request: Any,
    details: tuple[Any, ...],
    path: str,
    send: Callable[[Any, Any], Any],
    loop: Any,
) -> Any:
    """A call through the user's interceptors, as grpc.aio makes it.

    The last continuation calls `send(request, client_call_details)`, so that
    interceptors run once for a call, however many attempts it takes.
    """
    return _INTERCEPTED[kind](
        [*interceptors, _Last(send)],
        request,
        *details,
        None,  # the channel: only what comes after the last interceptor wants it
        path.encode(),
        None,
        None,
        loop,
    )


class _Last:
    """Ends a chain of interceptors with a function of ours, instead of a call.

    As an interceptor, for the chain's own end is another thing in each grpcio.
    """

    def __init__(self, send: Callable[[Any, Any], Any]) -> None:
        self._send = send

    async def intercept(self, _: Any, client_call_details: Any, request: Any) -> Any:
        return self._send(request, client_call_details)

    intercept_unary_unary = intercept_unary_stream = intercept
    intercept_stream_unary = intercept_stream_stream = intercept


_INTERCEPTED: dict[str, Any] = {
    "unary_unary": interceptor.InterceptedUnaryUnaryCall,
    "unary_stream": interceptor.InterceptedUnaryStreamCall,
    "stream_unary": interceptor.InterceptedStreamUnaryCall,
    "stream_stream": interceptor.InterceptedStreamStreamCall,
}
