"""The request being served: its deadline reaches its calls, their refusals its client.

A server of ours sets it for each request, and the tasks begun there inherit it. Of
three layers only the one right above the one that refuses may retry, or the lowest got
27 times the load (SRE book, ch. 21): so the request remembers that a call of its own
was refused, and tells its client not to try again.

Nothing here runs unless a call fails, or deadlines are handed down.
"""

from contextvars import ContextVar
from enum import IntEnum
from typing import Protocol

import grpc

from lbclient import wire
from lbclient.core.refusal import Refusal
from lbclient.core.retries.retry import parse_pushback
from lbclient.wire.local_errors import BackendsFull, NoBackend, OutOfQuota, Throttled


class Below(IntEnum):
    """The worst that became of a request's own calls, as far as retries go."""

    WELL = 0
    # Retried there, not to be, or nobody is: it failed, but was not refused.
    IN_VAIN = 1
    OUT_OF_QUOTA = 2  # one customer is, and nobody else is to hear "overloaded"
    REFUSED = 3


class Request(Protocol):
    """The request that is being served."""

    below: Below

    @property
    def is_strained(self) -> bool:
        """Whether its server would like a cheaper answer."""

    def time_remaining(self) -> float | None: ...


_request: ContextVar[Request | None] = ContextVar("request", default=None)
enter = _request.set
current = _request.get


def limited(timeout: float | None) -> float | None:
    """The timeout of a call that shall end with the request it is made for."""
    request = current()
    left = None if request is None else request.time_remaining()
    if left is None:
        return timeout
    return left if timeout is None else min(timeout, left)


def learn(error: BaseException | None, was_retried: bool = False) -> None:
    """A call made here has failed like that."""
    request = current()
    if request is None:
        return
    found = below(error)
    if was_retried:
        found = max(found, Below.IN_VAIN)
    if found > request.below:
        request.below = found


def below(error: BaseException | None) -> Below:
    """What an error says that a call has raised, on any channel, also grpcio's."""
    if isinstance(error, OutOfQuota):
        return Below.OUT_OF_QUOTA
    if isinstance(error, Throttled | BackendsFull):
        return Below.REFUSED
    if isinstance(error, NoBackend):
        return Below.IN_VAIN
    trailers = _trailers(error)
    refusal = wire.find_refusal(trailers)
    if refusal is not None:
        return said(refusal)
    told = [str(value) for key, value in trailers if key == wire.PUSHBACK_KEY]
    pushback = parse_pushback(told)
    return Below.IN_VAIN if pushback is not None and pushback < 0.0 else Below.WELL


def said(refusal: Refusal) -> Below:
    """What a word means to the layer above."""
    return Below.OUT_OF_QUOTA if refusal is Refusal.QUOTA else Below.REFUSED


def _trailers(error: BaseException | None) -> tuple[tuple[str, str | bytes], ...]:
    if not isinstance(error, grpc.RpcError):
        return ()
    ask = getattr(error, "trailing_metadata", None)  # grpc.RpcError itself has none
    return tuple(ask() or ()) if callable(ask) else ()


def refusal_in(error: BaseException) -> grpc.aio.AioRpcError | None:
    """The refusal that a handler lets escape, alone or with its likes in a group.

    Or that it has nobody to ask.
    """
    if isinstance(error, BaseExceptionGroup):
        others = error.split(grpc.RpcError)[1]
        found = None if others else error.subgroup(_is_refusal)
        return None if found is None else refusal_in(found.exceptions[0])
    return error if _is_refusal(error) else None  # type: ignore[return-value]


def _is_refusal(error: BaseException) -> bool:
    if isinstance(error, NoBackend):
        return True
    return isinstance(error, grpc.RpcError) and below(error) >= Below.OUT_OF_QUOTA


# Not the handler's own, though it may hand on all that it was told.
_FROM_BELOW = frozenset({wire.REFUSAL_KEY, wire.PUSHBACK_KEY, wire.LOAD_KEY})
_NOT_AGAIN = (wire.PUSHBACK_KEY, "-1")
_OUT_OF_QUOTA = ((wire.REFUSAL_KEY, Refusal.QUOTA.value), _NOT_AGAIN)
_REFUSED = ((wire.REFUSAL_KEY, Refusal.DONT_RETRY.value), _NOT_AGAIN)


def handed_up(
    own: tuple[tuple[str, str | bytes], ...], found: Below
) -> tuple[tuple[str, str | bytes], ...]:
    """A handler's own trailers, and why its client is not to try again.

    Who hands on that the customer is out of quota below means that, whatever else was
    refused.
    """
    kept = tuple(item for item in own if item[0] not in _FROM_BELOW)
    if found < Below.OUT_OF_QUOTA:
        return (*kept, _NOT_AGAIN)
    if found is Below.OUT_OF_QUOTA or wire.find_refusal(own) is Refusal.QUOTA:
        return kept + _OUT_OF_QUOTA
    return kept + _REFUSED
