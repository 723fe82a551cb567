"""grpcio's private names, and what it costs when a version of grpcio lacks one.

Each name is looked up when it is first needed, never at import, and has a public way
behind it. `find` looks up names in modules. Attributes of objects are just used; after
an AttributeError `is_news` tells whether grpcio has changed, or the object is not its.
"""

import re
from functools import cache
from importlib import import_module
from typing import Any

import grpc

from lbclient.log import Log

logger = Log(__name__)

_WRAPPED = "unary calls are wrapped, which takes more CPU per call"
LAYERS = "streaming calls take more CPU per message"
_BOTH = f"{_WRAPPED}; {LAYERS}"
_ASKED = "reading the status of a call takes more CPU"
_UNCOUNTED = "the number of requests that wait inside of gRPC is unknown"
_UNSEEN = "requests wait inside of gRPC, unseen, and not by criticality"
_NOT_FIRST = (
    "where instrumentation replaces `grpc.aio.server`, its interceptors are asked about"
    " health checks and refusals, too"
)
_INTERCEPTED = "each call with interceptors makes a channel, which takes more CPU"
_ONE_BY_ONE = "wake-ups of the event loop are read one by one, which takes more CPU"
_REPEATED = "calls that stream requests are not retried when lbclient gives them up"

COSTS = {
    "grpc.aio._call:UnaryUnaryCall": _WRAPPED,
    "grpc.aio._channel:UnaryUnaryMultiCallable": _WRAPPED,
    "grpc.aio._call:UnaryStreamCall": LAYERS,
    "grpc.aio._call:StreamUnaryCall": LAYERS,
    "grpc.aio._call:StreamStreamCall": LAYERS,
    "grpc.aio._channel:UnaryStreamMultiCallable": LAYERS,
    "grpc.aio._channel:StreamUnaryMultiCallable": LAYERS,
    "grpc.aio._channel:StreamStreamMultiCallable": LAYERS,
    "grpc.aio._utils:_timeout_to_deadline": _BOTH,
    "grpc._cython.cygrpc:_AioCall": _BOTH,
    "grpc._cython.cygrpc:AioRpcStatus.code": _BOTH,
    "grpc._cython.cygrpc:AioRpcStatus.debug_error_string": _BOTH,
    "grpc._cython.cygrpc:AioRpcStatus.details": _BOTH,
    "grpc._cython.cygrpc:AioRpcStatus.trailing_metadata": _BOTH,
    "grpc._cython.cygrpc:ExecuteBatchError": LAYERS,
    "grpc._cython.cygrpc:ReceiveInitialMetadataOperation": LAYERS,
    "grpc._cython.cygrpc:ReceiveMessageOperation": LAYERS,
    "grpc._cython.cygrpc:SendCloseFromClientOperation": LAYERS,
    "grpc._cython.cygrpc:SendInitialMetadataOperation": LAYERS,
    "grpc._cython.cygrpc:SendMessageOperation": LAYERS,
    "grpc._cython.cygrpc:_AioCall.set_internal_error": LAYERS,
    "grpc._cython.cygrpc:execute_batch": LAYERS,
    "_conduct_rpc": LAYERS,
    "_consume_request_iterator": LAYERS,
    "_context": LAYERS,
    "_done_writing": LAYERS,
    "_handle_status_once_received": LAYERS,
    "_metadata_sent": LAYERS,
    "_prepare_rpc": LAYERS,
    "_raise_for_status": LAYERS,
    "_read": LAYERS,
    "_send_unary_request": LAYERS,
    "_write": LAYERS,
    "_interceptors": f"{_BOTH}; where instrumentation intercepts calls of backends,"
    " health checks have spans",
    "_method": _BOTH,
    "_request_serializer": _BOTH,
    "_response_deserializer": _BOTH,
    "_loop": _BOTH,
    "_registered_call_handle": _BOTH,
    "_request": _BOTH,
    "_metadata": _BOTH,
    "_channel": _BOTH,
    "_channel.check_connectivity_state": "checking whether a channel is connected takes"
    " more CPU",
    "_active_calls": f"{_BOTH}; calls that others make on an inner channel"
    " end as CANCELLED when lbclient gives it up",
    "_cython_call": _BOTH,
    "_cython_call._status": _BOTH,
    "_cython_call._status.code": _ASKED,
    "_cython_call._status.trailing_metadata": _ASKED,
    "_cython_call._status.details": _ASKED,
    "_cython_call._status.debug_error_string": _ASKED,
    "_cython_call._initial_metadata": f"{_BOTH}; {_ASKED}",
    "_cython_call.is_locally_cancelled": _ASKED,
    "_cython_call.cancel": _REPEATED,
    "_call_response": f"{_WRAPPED}; a call that is cancelled before it is sent"
    " counts as an attempt",
    "_preparation": f"{LAYERS}; a streaming call that is cancelled before it is sent"
    " counts as an attempt",
    "_async_request_poller": _REPEATED,
    "_done_writing_flag": f"{LAYERS}; with interceptors, a write after `done_writing`"
    " is not refused",
    "grpc.aio._interceptor:InterceptedUnaryUnaryCall": _INTERCEPTED,
    "grpc.aio._interceptor:InterceptedUnaryStreamCall": _INTERCEPTED,
    "grpc.aio._interceptor:InterceptedStreamUnaryCall": _INTERCEPTED,
    "grpc.aio._interceptor:InterceptedStreamStreamCall": _INTERCEPTED,
    "_interceptors_task": "if interceptors send a call more than once, `lbclient.info`"
    " may tell of the wrong one; where instrumentation intercepts calls of backends, "
    f"{_REPEATED}",
    "grpc._cython.cygrpc:channelz_get_server": _UNCOUNTED,
    "grpc._cython.cygrpc:channelz_get_servers": _UNCOUNTED,
    "grpc._cython.cygrpc:AioServer._request_call": f"{_UNSEEN}; {_NOT_FIRST}",
    "grpc._cython.cygrpc:AioServer._make_request_call_future": "requests may begin in"
    " more turns of the event loop",
    "grpc._cython.cygrpc:PollerCompletionQueue": _ONE_BY_ONE,
    "grpc._cython.cygrpc:_ServicerContext": "in a flood, refusals take more CPU",
    "grpc.aio._server:cygrpc": f"{_UNSEEN}; {_NOT_FIRST}",
    "_server": _UNSEEN,
    "_state.interceptor_pipeline.interceptors": "where instrumentation replaces"
    " `grpc.server`, a synchronous server refuses health streams, and clients use unary"
    " checks instead",
}

# Where grpcio's own calls, channels and servers are from. Others, such as
# instrumentation's and interceptors', look like them from the outside.
_OWN = frozenset(
    {
        "grpc._cython.cygrpc",
        "grpc._interceptor",
        "grpc._server",
        "grpc.aio._call",
        "grpc.aio._channel",
        "grpc.aio._server",
    }
)

_told: set[str] = set()


def version() -> tuple[int, ...]:
    """grpcio's, as (major, minor)."""
    return tuple(map(int, grpc.__version__.split(".")[:2]))


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
    """Whether an object of grpcio's own lacks the name; says so, once."""
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
            "grpcio %s has no %s (%s), a private name that lbclient uses: %s",
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
