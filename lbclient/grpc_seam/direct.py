"""grpc.aio's own call object, made without its method object."""

from inspect import signature
from typing import Any

from grpc.aio import _call as call_objects
from grpc.aio import _channel as channel_objects
from grpc.aio._utils import _timeout_to_deadline

UnaryUnaryCall = call_objects.UnaryUnaryCall
UnaryUnaryMethod = channel_objects.UnaryUnaryMultiCallable
deadline_after = _timeout_to_deadline  # by the clock that the core goes by
_CALL_PARAMETERS = [
    *("self", "request", "deadline", "metadata", "credentials", "wait_for_ready"),
    *("channel", "method", "request_serializer", "response_deserializer", "loop"),
    "registered_call_handle",
]


def call_arguments(method: Any) -> tuple[Any, ...] | None:
    """What grpc.aio's `UnaryUnaryCall` wants of its method, after `wait_for_ready`.

    None where the method must make its calls itself: interceptors that
    instrumentation has put into the channel, or a grpcio that we do not know.
    """
    if type(method) is not UnaryUnaryMethod or method._interceptors:
        return None
    if list(signature(UnaryUnaryCall.__init__).parameters) != _CALL_PARAMETERS:
        return None
    return (
        method._channel,
        method._method,
        method._request_serializer,
        method._response_deserializer,
        method._loop,
        method._registered_call_handle,
    )
