"""Errors of calls that fail in the client, without an answer of a backend."""

from typing import Self

import grpc

from lbclient.core.errors import LbError


class LocalRpcError(LbError, grpc.aio.AioRpcError):
    """A call that failed on this side. `except grpc.aio.AioRpcError` catches it."""

    CODE = grpc.StatusCode.UNAVAILABLE
    REASON = "unavailable"  # in metrics

    @classmethod
    def because(cls, details: str) -> Self:
        return cls(cls.CODE, grpc.aio.Metadata(), grpc.aio.Metadata(), details, "")


class NoBackend(LocalRpcError):
    """No backend could take the call: the fleet's or the network's fault.

    The call was not sent, or no backend accepted it. The details say how many backends
    are in which state.
    """

    REASON = "no-backend"


class BackendsFull(LocalRpcError):
    """Every backend is at `active_limit`, or too many calls wait already.

    The call was not sent. If that happens to a retry, the call ends with the error of
    its last attempt instead. Run more backends, or send fewer calls at a time.
    """

    CODE = grpc.StatusCode.RESOURCE_EXHAUSTED
    REASON = "full"


class Throttled(LocalRpcError):
    """The backends refuse so much that this call would most likely be refused, too.

    The call was not sent. The details have the counts of the last two minutes.
    """

    REASON = "throttled"


class OutOfQuota(Throttled):
    """The call was not sent: backends refuse most of this customer's requests because
    its quota is used up.

    Calls of other customers on this channel are sent.
    """

    CODE = grpc.StatusCode.RESOURCE_EXHAUSTED
    REASON = "quota"


class DeadlineWhileWaiting(LocalRpcError):
    """The deadline passed before any backend could take the call, or take it again.

    If it has notes (`__notes__`) it was sent before: they tell how its attempts failed.
    """

    CODE = grpc.StatusCode.DEADLINE_EXCEEDED
    REASON = "deadline"


REASONS = tuple(
    kind.REASON
    for kind in (NoBackend, BackendsFull, Throttled, OutOfQuota, DeadlineWhileWaiting)
)
