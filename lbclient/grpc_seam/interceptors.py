"""The user's interceptors: a call through them, as grpc.aio makes it."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import grpc

from lbclient import originals
from lbclient.grpc_seam.private import find, mentions, tell_missing

# By which the core is told of a call's compression: GRPC_COMPRESSION_REQUEST_ALGORITHM.
_COMPRESSION_KEY = "grpc-internal-encoding-request"
_COMPRESSIONS = {
    grpc.Compression.NoCompression: "identity",
    grpc.Compression.Deflate: "deflate",
    grpc.Compression.Gzip: "gzip",
}


def beneath(call: Any) -> Any:
    """The call that was sent beneath interceptors; None while they are at it."""
    task = getattr(call, "_interceptors_task", None)
    if task is None:
        last = getattr(call, "_lbclient_last", None)
        return call if last is None else last.sent
    if not task.done() or task.cancelled() or task.exception():
        return None
    return task.result()


def last_beneath(call: Any) -> Any:
    """The call that was sent last beneath interceptors; None before there is one.

    For where the interceptors are still at it, have raised, or have answered with a
    response or an iterator of their own.
    """
    last = getattr(call, "_lbclient_last", None)
    return None if last is None else last.sent


def with_compression(
    metadata: Any, compression: grpc.Compression | None
) -> grpc.aio.Metadata:
    """Metadata as interceptors see it: grpc.aio tells of a call's compression there."""
    pairs = tuple(metadata or ())
    if compression:
        pairs = (*pairs, (_COMPRESSION_KEY, _COMPRESSIONS[compression]))
    return grpc.aio.Metadata(*pairs)


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
    last = _LAST[kind](send)
    make = find(_PATHS[kind])
    if make is None:
        call = _publicly(kind, [*interceptors, last], request, details, path)
    else:
        _tell_if_opaque(make)
        call = make(
            [*interceptors, last],
            request,
            *details,
            None,  # the channel: only what comes after the last interceptor wants it
            path.encode(),
            None,
            None,
            loop,
        )
    call._lbclient_last = last
    return call


def _publicly(
    kind: str,
    interceptors: Sequence[Any],
    request: Any,
    details: tuple[Any, ...],
    path: str,
) -> Any:
    """The same on a channel that never connects, for no call gets to its end."""
    timeout, metadata, credentials, wait_for_ready = details
    with originals.making():
        make = grpc.aio.insecure_channel
        channel = make("ipv4:127.0.0.1:1", interceptors=interceptors)
    return getattr(channel, kind)(path)(
        request,
        timeout=timeout,
        metadata=metadata,
        credentials=credentials,
        wait_for_ready=wait_for_ready,
    )


@cache
def _tell_if_opaque(make: type) -> None:
    """Tells if `beneath` will not see through a call to the one that was sent."""
    if not mentions(make, "_interceptors_task"):
        tell_missing("_interceptors_task", f"in {make.__qualname__}")


class _Last:
    """Ends a chain of interceptors with a function of ours, instead of a call.

    As an interceptor, for the chain's own end is another thing in each grpcio.
    """

    sent: Any = None

    def __init__(self, send: Callable[[Any, Any], Any]) -> None:
        self._send = send

    async def intercept(self, _: Any, client_call_details: Any, request: Any) -> Any:
        self.sent = self._send(request, client_call_details)
        return self.sent

    intercept_unary_unary = intercept_unary_stream = intercept
    intercept_stream_unary = intercept_stream_stream = intercept


_LAST: dict[str, Any] = {
    kind: type("Last", (_Last, base), {})
    for kind, base in (
        ("unary_unary", grpc.aio.UnaryUnaryClientInterceptor),
        ("unary_stream", grpc.aio.UnaryStreamClientInterceptor),
        ("stream_unary", grpc.aio.StreamUnaryClientInterceptor),
        ("stream_stream", grpc.aio.StreamStreamClientInterceptor),
    )
}
_PATHS = {
    "unary_unary": "grpc.aio._interceptor:InterceptedUnaryUnaryCall",
    "unary_stream": "grpc.aio._interceptor:InterceptedUnaryStreamCall",
    "stream_unary": "grpc.aio._interceptor:InterceptedStreamUnaryCall",
    "stream_stream": "grpc.aio._interceptor:InterceptedStreamStreamCall",
}
