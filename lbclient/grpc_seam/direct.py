"""Checks whether grpcio has what our own kinds of calls need of it, and gets it."""

from functools import cache
from inspect import signature
from operator import attrgetter
from typing import Any

from lbclient.grpc_seam.private import find, is_news, mentions, tell_missing

# By kind of method: its call object, and what makes those.
_CLASSES = {
    "unary_unary": (
        "grpc.aio._call:UnaryUnaryCall",
        "grpc.aio._channel:UnaryUnaryMultiCallable",
    ),
    "unary_stream": (
        "grpc.aio._call:UnaryStreamCall",
        "grpc.aio._channel:UnaryStreamMultiCallable",
    ),
    "stream_unary": (
        "grpc.aio._call:StreamUnaryCall",
        "grpc.aio._channel:StreamUnaryMultiCallable",
    ),
    "stream_stream": (
        "grpc.aio._call:StreamStreamCall",
        "grpc.aio._channel:StreamStreamMultiCallable",
    ),
}
_OF_ALL = (
    "grpc._cython.cygrpc:_AioCall",
    "grpc._cython.cygrpc:AioRpcStatus.code",
    "grpc._cython.cygrpc:AioRpcStatus.debug_error_string",
    "grpc._cython.cygrpc:AioRpcStatus.details",
    "grpc._cython.cygrpc:AioRpcStatus.trailing_metadata",
    "grpc.aio._utils:_timeout_to_deadline",
)
# `own_streams` has a class for each kind of stream, and is imported with all or not.
_OF_STREAMS = (
    *(classes[0] for kind, classes in _CLASSES.items() if kind != "unary_unary"),
    "grpc._cython.cygrpc:ExecuteBatchError",
    "grpc._cython.cygrpc:ReceiveInitialMetadataOperation",
    "grpc._cython.cygrpc:ReceiveMessageOperation",
    "grpc._cython.cygrpc:SendCloseFromClientOperation",
    "grpc._cython.cygrpc:SendInitialMetadataOperation",
    "grpc._cython.cygrpc:SendMessageOperation",
    "grpc._cython.cygrpc:_AioCall.set_internal_error",
    "grpc._cython.cygrpc:execute_batch",
)
# What `own_call` and `own_streams` ask of grpc.aio's call object, from its first moment
# on.
_READ = ("_preparation", "_read", "_raise_for_status", "_response_deserializer")
_WRITTEN = (
    *("_consume_request_iterator", "_write", "_done_writing"),
    *("_metadata_sent", "_done_writing_flag", "_request_serializer"),
)
_BEGUN = "_prepare_rpc", "_async_request_poller", "_context"
_OF_CALL = {
    "unary_unary": ("_call_response", "_request"),
    "unary_stream": (*_READ, "_send_unary_request", "_request", "_context"),
    "stream_unary": (
        *("_response_deserializer", "_call_response", "_conduct_rpc"),
        *("_async_request_poller", "_context", *_WRITTEN),
    ),
    "stream_stream": (*_READ, *_WRITTEN, *_BEGUN),
}
_OF_ALL_CALLS = ("_cython_call", "_metadata", "_loop")
# And of the one in Cython. `status` asks the call itself where it has no such name, and
# a direct call, which looks for its error, would ask `status`.
_OF_INNER = ("_status", "_initial_metadata")
_OF_INNER_STREAMS = "_handle_status_once_received", "done"
_CALL_PARAMETERS = [
    *("deadline", "metadata", "credentials", "wait_for_ready"),
    *("channel", "method", "request_serializer", "response_deserializer", "loop"),
    "registered_call_handle",
]
_arguments_of = attrgetter(
    *("_channel", "_method", "_request_serializer", "_response_deserializer"),
    *("_loop", "_registered_call_handle"),
)


def call_arguments(kind: str, method: Any, channel: Any) -> tuple[Any, ...] | None:
    """What grpc.aio's call object wants of its method, after `wait_for_ready`.

    None where the method must make its calls itself: interceptors that
    instrumentation has put into the channel, a channel whose `close` would not find
    the call, or a grpcio that we do not know.
    """
    if not _is_known(kind) or type(method) is not find(_CLASSES[kind][1]):
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
def _is_known(kind: str) -> bool:
    """Whether this grpcio's call object is the one that our classes have in mind."""
    is_stream = kind != "unary_unary"
    paths = (*_CLASSES[kind], *_OF_ALL, *(_OF_STREAMS if is_stream else ()))
    found = [find(path) for path in paths]
    if None in found:
        return False
    call, _, inner, *_ = found
    asked = (*_OF_ALL_CALLS, *_OF_CALL[kind])
    missing = [name for name in asked if not mentions(call, name)]
    asked = (*_OF_INNER, *(_OF_INNER_STREAMS if is_stream else ()))
    missing += [name for name in asked if not hasattr(inner, name)]
    for name in missing:
        tell_missing(name, f"in {call.__qualname__}")
    return not missing and list(signature(call).parameters)[1:] == _CALL_PARAMETERS
