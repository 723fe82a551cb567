"""What a status says that ends a health check or a health stream."""

from typing import NamedTuple

import grpc

from lbclient.core.text import printable

# A server without the method, or without a service of that name, gives these.
NOT_OFFERED_CODES = frozenset(
    {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND}
)

# Statuses that mean "nobody answered yet": the question is asked again.
PASSING = frozenset(
    {
        grpc.StatusCode.OK,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)
# Of those, the ones that somebody may have said, or nobody; RESOURCE_EXHAUSTED is an
# answer.
UNANSWERED = PASSING - {grpc.StatusCode.RESOURCE_EXHAUSTED}
# Of those, the ones that a proxy gives at once. A server that is full gives CANCELLED,
# and may have room later.
UNHEARD = UNANSWERED - {grpc.StatusCode.CANCELLED}


class Unanswered(NamedTuple):
    """Says why a health check had no answer. `why` is the reason in words. `status` is
    the status that came over a connection before the deadline, as from a proxy or an
    interceptor; "": none came. `is_unseen`: gRPC's core ended the check, as its server
    has no room.
    """

    why: str
    status: str = ""
    is_unseen: bool = False


def status_of(error: grpc.aio.AioRpcError) -> str:
    """Returns the status's name and, where the server gave some, its words.

    >>> nothing = grpc.aio.Metadata()
    >>> denied = grpc.StatusCode.UNAUTHENTICATED
    >>> status_of(grpc.aio.AioRpcError(denied, nothing, nothing, "no token"))
    'UNAUTHENTICATED: no token'
    """
    name, details = error.code().name, printable(error.details() or "")
    return f"{name}: {details}" if details else name


def unanswered(
    channel: grpc.aio.Channel, error: grpc.aio.AioRpcError, is_late: bool
) -> Unanswered:
    """`is_late`: a deadline that passed is ours; a server can say so at once."""
    is_ours = is_late and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    is_there = channel.get_state() is grpc.ChannelConnectivity.READY
    status = status_of(error) if is_there and not is_ours else ""
    is_unseen = bool(status) and error.code() is grpc.StatusCode.CANCELLED
    return Unanswered(reason_of(error), status, is_unseen)


def reason_of(error: grpc.aio.AioRpcError) -> str:
    """Why nobody answered, in grpcio's words; it tells them to failed calls only.

    Where somebody did answer, the words are a stranger's.
    """
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "cannot connect: no answer in time"
    details = error.details() or "no reason"
    return f"cannot connect: {printable(details.rpartition('last error: ')[2])}"
