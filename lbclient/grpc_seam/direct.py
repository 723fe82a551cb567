"""Checks whether grpcio has what a unary call needs that skips its method object."""

from functools import cache
from inspect import signature
from operator import attrgetter
from typing import Any

from lbclient.grpc_seam.private import find, is_news, mentions, tell_missing

_PATHS = (
    "grpc.aio._call:UnaryUnaryCall",
    "grpc._cython.cygrpc:_AioCall",
    "grpc._cython.cygrpc:AioRpcStatus.code",
    "grpc._cython.cygrpc:AioRpcStatus.debug_error_string",
    "grpc._cython.cygrpc:AioRpcStatus.details",
    "grpc._cython.cygrpc:AioRpcStatus.trailing_metadata",
    "grpc.aio._utils:_timeout_to_deadline",
)
# What a direct call asks of grpc.aio's call object, from its first moment on.
_OF_CALL = ("_cython_call", "_call_response", "_request", "_metadata")
# And of the one in Cython. `status` asks the call itself where it has no such name, and
# a direct call, which looks for its error, would ask `status`.
_OF_INNER = ("_status", "_initial_metadata")
_CALL_PARAMETERS = [
    *("self", "request", "deadline", "metadata", "credentials", "wait_for_ready"),
    *("channel", "method", "request_serializer", "response_deserializer", "loop"),
    "registered_call_handle",
]
_arguments_of = attrgetter(
    *("_channel", "_method", "_request_serializer", "_response_deserializer"),
    *("_loop", "_registered_call_handle"),
)


def call_arguments(method: Any, channel: Any) -> tuple[Any, ...] | None:
    """What grpc.aio's `UnaryUnaryCall` wants of its method, after `wait_for_ready`.

    None where the method must make its calls itself: interceptors that
    instrumentation has put into the channel, a channel whose `close` would not find
    the call, or a grpcio that we do not know.
    """
    if not _is_known() or type(method) is not find(
        "grpc.aio._channel:UnaryUnaryMultiCallable"
    ):
        return None
    try:
        if method._interceptors or channel._active_calls is None:
            return None
        arguments: tuple[Any, ...] = _arguments_of(method)
    except AttributeError as error:
        is_news(error)
        return None
    return arguments


def with_codecs(arguments: tuple[Any, ...], codecs: tuple[Any, Any]) -> tuple[Any, ...]:
    """The same arguments, for a call that codes its messages itself."""
    return (*arguments[:2], *codecs, *arguments[4:])


@cache
def _is_known() -> bool:
    """Whether this grpcio's call object is the one that `own_call` has in mind."""
    found = [find(path) for path in _PATHS]
    if None in found:
        return False
    call, inner, *_ = found
    missing = [name for name in _OF_CALL if not mentions(call, name)]
    missing += [name for name in _OF_INNER if not hasattr(inner, name)]
    for name in missing:
        tell_missing(name, "in UnaryUnaryCall")
    return not missing and list(signature(call).parameters) == _CALL_PARAMETERS[1:]
