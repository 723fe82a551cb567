"""What a health check that nobody answered says of the backend, and in which words."""

from typing import NamedTuple

import grpc

from lbclient.client.health.refused_services import status_of
from lbclient.core.text import printable


class Unanswered(NamedTuple):
    """A health check without an answer. `why`: nobody is there; `status` is the one
    that came at once and over a connection, as of a proxy or an interceptor.
    `is_unseen`: it is that of a core that has no room."""

    why: str
    status: str = ""
    is_unseen: bool = False


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
