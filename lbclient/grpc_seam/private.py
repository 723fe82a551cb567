"""grpcio's private names: what each is good for, and what is said where one is missing.

None is looked for before it is wanted, and behind each is a public way. Names at the
top of a module are found by `find`. Attributes of an object are simply asked for:
`is_news` says of the AttributeError whether it is grpcio that has changed.
"""

import logging
import re
from functools import cache
from importlib import import_module
from typing import Any

import grpc

logger = logging.getLogger(__name__)

_WRAPPED = "unary calls are wrapped, which takes more CPU for each"
_ASKED = "what is asked of a call that is over takes more CPU"
_UNCOUNTED = "nobody knows how many requests wait inside of gRPC"
_UNSEEN = "requests wait inside of gRPC, unseen, in no order but their own"
_INTERCEPTED = "calls with interceptors make a channel each, which takes more CPU"
_REPEATED = "calls that stream their requests are not sent again when they are given up"

COSTS = {
    "grpc.aio._call:UnaryUnaryCall": _WRAPPED,
    "grpc.aio._channel:UnaryUnaryMultiCallable": _WRAPPED,
    "grpc.aio._utils:_timeout_to_deadline": _WRAPPED,
    "grpc._cython.cygrpc:_AioCall": _WRAPPED,
    "grpc._cython.cygrpc:AioRpcStatus.code": _WRAPPED,
    "grpc._cython.cygrpc:AioRpcStatus.debug_error_string": _WRAPPED,
    "grpc._cython.cygrpc:AioRpcStatus.details": _WRAPPED,
    "grpc._cython.cygrpc:AioRpcStatus.trailing_metadata": _WRAPPED,
    "_interceptors": _WRAPPED,
    "_method": _WRAPPED,
    "_request_serializer": _WRAPPED,
    "_response_deserializer": _WRAPPED,
    "_loop": _WRAPPED,
    "_registered_call_handle": _WRAPPED,
    "_request": _WRAPPED,
    "_metadata": _WRAPPED,
    "_channel": _WRAPPED,
    "_channel.check_connectivity_state": "each look whether a channel is connected"
    " takes more CPU",
    "_active_calls": "each call takes 0.5 us more, and those of strangers on a channel"
    " that is given up end as cancelled",
    "_cython_call": _WRAPPED,
    "_cython_call._status": _WRAPPED,
    "_cython_call._status.code": _ASKED,
    "_cython_call._status.trailing_metadata": _ASKED,
    "_cython_call._status.details": _ASKED,
    "_cython_call._status.debug_error_string": _ASKED,
    "_cython_call._initial_metadata": f"{_WRAPPED}; {_ASKED}",
    "_cython_call.is_locally_cancelled": "calls that a server's core ends, for want of"
    " room, are not sent again",
    "_cython_call.cancel": _REPEATED,
    "_call_response": f"{_WRAPPED}; a call that is cancelled before it is sent counts"
    " as sent",
    "_preparation": "a call for a stream that is cancelled before it is sent counts as"
    " sent",
    "_async_request_poller": _REPEATED,
    "_done_writing_flag": "a call that is written to, and dropped, stays open until its"
    " channel is closed",
    "grpc.aio._interceptor:InterceptedUnaryUnaryCall": _INTERCEPTED,
    "grpc.aio._interceptor:InterceptedUnaryStreamCall": _INTERCEPTED,
    "grpc.aio._interceptor:InterceptedStreamUnaryCall": _INTERCEPTED,
    "grpc.aio._interceptor:InterceptedStreamStreamCall": _INTERCEPTED,
    "_interceptors_task": "`lbclient.info` knows less of calls with interceptors",
    "grpc._cython.cygrpc:channelz_get_server": _UNCOUNTED,
    "grpc._cython.cygrpc:channelz_get_servers": _UNCOUNTED,
    "grpc._cython.cygrpc:AioServer._request_call": _UNSEEN,
    "grpc.aio._server:cygrpc": _UNSEEN,
    "_server": _UNSEEN,
}

# Where grpc.aio's own calls and channels are from. Others, such as instrumentation's
# and interceptors', look like them from the outside.
_OWN = frozenset(
    {
        "grpc._cython.cygrpc",
        "grpc.aio._call",
        "grpc.aio._channel",
        "grpc.aio._server",
    }
)

_told: set[str] = set()


@cache
def find(path: str) -> Any:
    """What is at `module:name`; None, with a line in the log, in a grpcio without."""
    module, _, names = path.partition(":")
    try:
        found: Any = import_module(module)
        for name in names.split("."):
            found = getattr(found, name)
    except ImportError as error:
        tell_missing((error.name or module).rpartition(".")[2], path)
        return None
    except AttributeError as error:
        tell_missing(error.name or names, path)
        return None
    return found


def is_news(error: AttributeError) -> bool:
    """Whether an object of grpc.aio's own lacks the name; says so, once."""
    kind = type(error.obj)
    if kind.__module__ not in _OWN:
        return False
    tell_missing(error.name or "", f"in {kind.__qualname__}")
    return True


def tell_missing(name: str, where: str) -> None:
    """Says once that grpcio has no such name any more, and what that costs."""
    if name not in _told:
        _told.add(name)
        costs = [
            part
            for path, cost in COSTS.items()
            if name in re.split("[.:]", path)
            for part in cost.split("; ")
        ]
        logger.warning(
            "grpcio %s has no %s (%s), a private name of its own: %s",
            grpc.__version__,
            name,
            where,
            "; ".join(dict.fromkeys(costs)),
        )


def mentions(kind: type, name: str) -> bool:
    """Whether methods of a class speak of the attribute, as those that set it do."""
    functions = (value for base in kind.__mro__ for value in vars(base).values())
    codes = (getattr(function, "__code__", None) for function in functions)
    return any(code is not None and name in code.co_names for code in codes)
