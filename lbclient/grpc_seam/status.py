"""How a grpc.aio call ended: its status, its error, and whether a server had it."""

import re
from collections.abc import Awaitable, Sequence
from inspect import CORO_CREATED, getcoroutinestate
from typing import Any, TypeVar

import grpc

from lbclient.core.coroutines import step
from lbclient.grpc_seam.channels import is_ready
from lbclient.grpc_seam.interceptors import beneath
from lbclient.grpc_seam.private import is_news

Trailers = Sequence[tuple[str, str | bytes]]
T = TypeVar("T")


def final_status(call: Any) -> tuple[int, Trailers]:
    """Number of the status, and trailing metadata, of a call that is done.

    The public way costs 4 us more a call, in objects that nobody wants; it serves
    call objects that are not grpc.aio's own (instrumentation wraps them).
    """
    if getattr(call, "_lbclient_cause", ""):  # `cause_of`, on the hot path
        return UNAVAILABLE, ()
    try:
        code: int = call._cython_call._status.code()
        if code not in _CODES:
            code = UNKNOWN
        return code, call._cython_call._status.trailing_metadata() or ()
    except AttributeError as error:
        is_news(error)
        code = _code_of(call).value[0]
        # None of a call that was cancelled while interceptors were at it.
        return code, tuple(step(call.trailing_metadata()) or ())


def _code_of(call: Any) -> grpc.StatusCode:
    try:
        code: grpc.StatusCode = step(call.code())
    except KeyError:
        return grpc.StatusCode.UNKNOWN
    return code


UNKNOWN: int = grpc.StatusCode.UNKNOWN.value[0]
INTERNAL: int = grpc.StatusCode.INTERNAL.value[0]
UNAVAILABLE: int = grpc.StatusCode.UNAVAILABLE.value[0]
CANCELLED: int = grpc.StatusCode.CANCELLED.value[0]
DEADLINE_EXCEEDED: int = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
# The core's words for a stream that no handler has seen: above the last one of a
# GOAWAY, or refused (REFUSED_STREAM is 7; RFC 9113, section 8.7).
_REFUSED = re.compile(
    r"(Stream removed \()?(RST_STREAM \()?Received RST_STREAM with error code 7\b"
)
_LEFT_OUT = re.compile(r"(Stream removed \()?GOAWAY received;")
_NOT_CONNECTED = re.compile("failed to connect to all addresses")
_PROVISIONAL = "Internal error from Core"
# grpc.aio's words for a call that was cancelled, or dropped, on this side.
_ENDED_HERE = (
    "Locally cancelled by application!",
    "Cancelled upon garbage collection!",
)
# Up to 1.80 the core hands on a status that is none of these, such as a Go service's
# own, and grpc.aio raises KeyError for it. Newer ones make it UNKNOWN.
_CODES = {code.value[0]: code for code in grpc.StatusCode}


def was_not_sent(call: Any, channel: Any, is_believed: bool) -> bool:
    """Whether no server has taken a call that is over, so that it may be sent again.

    The core knows, but tells it in words only, and a handler can say the same words, of
    a call that it made itself. So they are believed where that cannot be: with trailers
    a handler spoke, and one of ours always has some; where a connection was lost or
    called off it is not ready.
    """
    code, trailers = final_status(call)
    if code != UNAVAILABLE or trailers:
        return False
    try:
        details = call._cython_call._status.details()
    except AttributeError as error:
        is_news(error)
        details = step(call.details())
    if is_believed and (_REFUSED.match(details) or _LEFT_OUT.match(details)):
        return True
    is_lost = _NOT_CONNECTED.match(details) or _LEFT_OUT.match(details)
    return bool(is_lost) and not is_ready(channel)


def was_not_begun(call: Any) -> bool:
    """Whether a call was cancelled before grpc.aio began it, which it leaves to a task.

    For certain only while its done callbacks run.
    """
    is_unary = isinstance(call, grpc.aio.UnaryUnaryCall | grpc.aio.StreamUnaryCall)
    try:
        task = call._call_response if is_unary else call._preparation
    except AttributeError as error:
        is_news(error)
        return False
    work = None if task is None else task.get_coro()  # None: an eager task that ended
    return work is not None and getcoroutinestate(work) == CORO_CREATED


def was_ended_there(call: Any) -> bool:
    """Whether a call that is CANCELLED was ended by its server, not on this side.

    So the core of a server ends what it has no room for before any Python sees it, and
    so ends what runs in a server that goes without `stop`: one cannot be told from the
    other. Who gives a call up, or closes its channel, cancels the call object. (What
    `stop` ends, and a connection that is lost, is UNAVAILABLE; a handler that raises
    CancelledError leaves its call open.)
    """
    try:
        is_local = call._cython_call.is_locally_cancelled()
    except AttributeError as error:
        if not is_news(error):  # instrumentation wraps it
            return False
        is_local = step(call.details()) in _ENDED_HERE
    return not is_local and time_left(call) != 0.0


def time_left(call: Any) -> float | None:
    """Seconds until a call's deadline; None: it has none.

    A call with interceptors does not tell it, but the one beneath them does. If there
    is none, they have raised what it ended with; then none is left, as a deadline that
    passed is nearly always the client's own.
    """
    try:
        left: float | None = call.time_remaining()
    except NotImplementedError:
        inner = beneath(call)
        return 0.0 if inner is None or inner is call else time_left(inner)
    return left


def error_of(call: Any) -> grpc.aio.AioRpcError | None:
    """What awaiting a call that failed raises; None where only the call can tell."""
    if cause := cause_of(call):
        return _given_up(call, cause)
    try:
        trailers = call._cython_call._status.trailing_metadata()
        return grpc.aio.AioRpcError(
            _CODES.get(call._cython_call._status.code(), grpc.StatusCode.UNKNOWN),
            grpc.aio.Metadata.from_tuple(_received(call)),
            grpc.aio.Metadata.from_tuple(trailers or ()),
            call._cython_call._status.details(),
            call._cython_call._status.debug_error_string(),
        )
    except AttributeError as error:
        return _asked(call) if is_news(error) else None


async def answer_of(call: Any, answer: Awaitable[T]) -> T:
    """Awaits what a call answers. All that it may end with is an AioRpcError."""
    try:
        return await answer
    except KeyError:  # see `_CODES`
        none = grpc.aio.Metadata()
        unknown = grpc.aio.AioRpcError(grpc.StatusCode.UNKNOWN, none, none)
        raise error_of(call) or unknown from None


def _asked(call: Any) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(
        _code_of(call),
        step(call.initial_metadata()),
        step(call.trailing_metadata()),
        step(call.details()),
        step(call.debug_error_string()),
    )


def _given_up(call: Any, cause: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE,
        grpc.aio.Metadata.from_tuple(_received(call)),
        grpc.aio.Metadata(),
        cause,
        "",
    )


def _received(call: Any) -> tuple[Any, ...]:
    """Initial metadata of a call that is over; none where only the call can tell."""
    try:
        received = getattr(call, "_lbclient_headers", None)
        return received or call._cython_call._initial_metadata or ()
    except AttributeError as error:
        return tuple(step(call.initial_metadata())) if is_news(error) else ()


def is_provisional(call: Any) -> bool:
    """Whether a call that is done will yet be told how it really ended.

    A write that fails makes grpc.aio say INTERNAL, and run the done callbacks; the
    status, of why it failed, comes a little later.
    """
    try:
        status = call._cython_call._status
        is_so = status.code() == INTERNAL and status.details() == _PROVISIONAL
    except AttributeError as error:
        if not is_news(error):
            return False
        return bool(
            _code_of(call).value[0] == INTERNAL and step(call.details()) == _PROVISIONAL
        )
    return bool(is_so)


def is_of_a_write(error: Exception) -> bool:
    """Whether an error is grpc.aio's own of a write that failed. It takes the place of
    the status of its call, also if the call was over."""
    return (
        isinstance(error, grpc.aio.AioRpcError)
        and error.code() is grpc.StatusCode.INTERNAL
        and error.details() == _PROVISIONAL
    )


def lacks_headers(error: Exception, call: Any) -> bool:
    """Whether grpc.aio's error of a call is without the response headers that we have
    received in its place."""
    has_some = isinstance(error, grpc.aio.AioRpcError) and error.initial_metadata()
    return not has_some and bool(getattr(call, "_lbclient_headers", None))


def has_begun(call: Any) -> bool:
    """Whether a call that failed had an answer that its caller may have seen."""
    return bool(_received(call))


def cause_of(call: Any) -> str:
    """Why we ended a call that its caller did not cancel; "" if we did not."""
    cause: str = getattr(call, "_lbclient_cause", "")
    return cause
