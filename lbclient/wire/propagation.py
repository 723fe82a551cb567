"""The request being served: its deadline reaches its calls, their refusals its client.

A server of lbclient sets the request in the context of its handler, and tasks that
begin there inherit it. Only the layer right above the one that refuses may retry: if
each of three layers did, the lowest one would get 27 times the load (SRE book, ch. 21).
So the request remembers that one of its own calls was refused, and tells its client not
to retry.

Nothing here runs unless a call fails, or deadlines are propagated.
"""

from contextvars import ContextVar
from enum import IntEnum
from typing import Protocol

import grpc

from lbclient import wire
from lbclient.core.refusal import Refusal
from lbclient.core.retries.retry import parse_pushback
from lbclient.wire.local_errors import BackendsFull, NoBackend, OutOfQuota, Throttled


class DownstreamResult(IntEnum):
    """The worst outcome of a request's own calls, as far as retries are concerned."""

    OK = 0
    # It failed, but was not refused: it was retried here already, the server said not
    # to, or there is no backend.
    NO_RETRY = 1
    OUT_OF_QUOTA = 2  # one customer is: others are not to hear "overloaded"
    REFUSED = 3


class Request(Protocol):
    """The request that is being served."""

    downstream: DownstreamResult

    @property
    def is_strained(self) -> bool:
        """Whether its server is so busy that a cheaper answer is preferred."""

    def time_remaining(self) -> float | None: ...


_request: ContextVar[Request | None] = ContextVar("request", default=None)
enter = _request.set
current = _request.get


def limited(timeout: float | None) -> float | None:
    """The timeout of a call, which is to end with the request that it is made for."""
    request = current()
    left = None if request is None else request.time_remaining()
    if left is None:
        return timeout
    return left if timeout is None else min(timeout, left)


def learn(error: BaseException | None, was_retried: bool = False) -> None:
    """Notes the error of a call that was made for the request being served."""
    request = current()
    if request is None:
        return
    found = downstream_result(error)
    if was_retried:
        found = max(found, DownstreamResult.NO_RETRY)
    if found > request.downstream:
        request.downstream = found


def downstream_result(error: BaseException | None) -> DownstreamResult:
    """What the error of a call says; the channel may also be grpcio's own."""
    if isinstance(error, OutOfQuota):
        return DownstreamResult.OUT_OF_QUOTA
    if isinstance(error, Throttled | BackendsFull):
        return DownstreamResult.REFUSED
    if isinstance(error, NoBackend):
        return DownstreamResult.NO_RETRY
    trailers = _trailers(error)
    refusal = wire.find_refusal(trailers)
    if refusal is not None:
        return result_of(refusal)
    told = [str(value) for key, value in trailers if key == wire.PUSHBACK_KEY]
    pushback = parse_pushback(told)
    return (
        DownstreamResult.NO_RETRY
        if pushback is not None and pushback < 0.0
        else DownstreamResult.OK
    )


def result_of(refusal: Refusal) -> DownstreamResult:
    """What a refusal means to the layer above."""
    return (
        DownstreamResult.OUT_OF_QUOTA
        if refusal is Refusal.QUOTA
        else DownstreamResult.REFUSED
    )


def _trailers(error: BaseException | None) -> tuple[tuple[str, str | bytes], ...]:
    if not isinstance(error, grpc.RpcError):
        return ()
    ask = getattr(error, "trailing_metadata", None)  # grpc.RpcError itself has none
    return tuple(ask() or ()) if callable(ask) else ()


def refusal_in(error: BaseException) -> grpc.aio.AioRpcError | None:
    """The refusal, or `NoBackend`, that a handler raises, alone or in a group of them;
    None if it raises something else, too.
    """
    if isinstance(error, BaseExceptionGroup):
        others = error.split(grpc.RpcError)[1]
        found = None if others else error.subgroup(_is_refusal)
        return None if found is None else refusal_in(found.exceptions[0])
    return error if _is_refusal(error) else None  # type: ignore[return-value]


def _is_refusal(error: BaseException) -> bool:
    if isinstance(error, NoBackend):
        return True
    return (
        isinstance(error, grpc.RpcError)
        and downstream_result(error) >= DownstreamResult.OUT_OF_QUOTA
    )


# Keys that are not the handler's own, though it may pass on all trailers of its call.
_FROM_DOWNSTREAM = frozenset({wire.REFUSAL_KEY, wire.PUSHBACK_KEY, wire.LOAD_KEY})
_NOT_AGAIN = (wire.PUSHBACK_KEY, "-1")
_OUT_OF_QUOTA = ((wire.REFUSAL_KEY, Refusal.QUOTA.value), _NOT_AGAIN)
_REFUSED = ((wire.REFUSAL_KEY, Refusal.DONT_RETRY.value), _NOT_AGAIN)


def with_downstream_refusal(
    own: tuple[tuple[str, str | bytes], ...], found: DownstreamResult
) -> tuple[tuple[str, str | bytes], ...]:
    """A handler's own trailers, and why its client is not to retry.

    If the handler passes on that its customer is out of quota, that is the reason,
    whatever else was refused.
    """
    kept = tuple(item for item in own if item[0] not in _FROM_DOWNSTREAM)
    if found < DownstreamResult.OUT_OF_QUOTA:
        return (*kept, _NOT_AGAIN)
    if (
        found is DownstreamResult.OUT_OF_QUOTA
        or wire.find_refusal(own) is Refusal.QUOTA
    ):
        return kept + _OUT_OF_QUOTA
    return kept + _REFUSED
