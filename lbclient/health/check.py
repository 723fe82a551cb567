"""Asks one backend once how it is, over a connection that is there or not.

The same services as `watch`, in the same order; whoever offers neither and answers
nevertheless is taken to be serving.
"""

import asyncio
import logging

import grpc
from google.protobuf.message import DecodeError

from lbclient import wire
from lbclient.model import TaskState
from lbclient.text import printable
from lbclient.v1 import compat_pb2

logger = logging.getLogger(__name__)

# Statuses that say "not now". Any other one means that the method is not offered:
# UNIMPLEMENTED above all, but a server may also ask for rights or a known method.
PASSING = frozenset(
    {
        grpc.StatusCode.OK,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)
TRIES = 5  # where the core of a task that has too much ends them unseen


async def check(
    channel: grpc.aio.Channel, timeout: float, has_served: bool
) -> wire.Health | str:
    """Its state, and its report if it is ours; or why there is no answer."""
    try:
        reply = await _ask(channel, wire.CHECK_METHOD, timeout)
        if reply is not None and (health := wire.parse_health(reply)) is not None:
            return health
        state = await ask_serving(channel, timeout, has_served)
    except grpc.aio.AioRpcError as error:
        return reason_of(error)
    return wire.Health(TaskState.SERVING if state is None else state)


async def ask_serving(
    channel: grpc.aio.Channel, timeout: float, has_served: bool
) -> TaskState | None:
    """What grpc.health.v1 says; None: it is not offered for the server as a whole.

    Raises AioRpcError if there is no answer.
    """
    reply = await _ask(channel, wire.SERVING_CHECK_METHOD, timeout)
    try:
        status = None if reply is None else compat_pb2.ServingReply.FromString(reply)
    except DecodeError:
        status = None
    if status is None or status.status == compat_pb2.ServingReply.SERVICE_UNKNOWN:
        return None
    return serving_state(status.status, has_served)


def reason_of(error: grpc.aio.AioRpcError) -> str:
    """Why nobody answered, in grpcio's words; it tells them to failed calls only.

    Where somebody did answer, the words are a stranger's.
    """
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "cannot connect: no answer in time"
    details = error.details() or "no reason"
    return f"cannot connect: {printable(details.rpartition('last error: ')[2])}"


async def _ask(channel: grpc.aio.Channel, method: str, timeout: float) -> bytes | None:
    """The answer; None if this is not offered. Raises for no answer.

    CANCELLED is none yet: so a task ends what it has no room for, and it is there.
    RESOURCE_EXHAUSTED is an answer that says nothing: a rate limit for health checks,
    perhaps of a proxy, does not say that calls fail.
    """
    ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
    for tries in range(1, TRIES + 1):
        try:
            return await ask(b"", timeout=timeout)
        except grpc.aio.AioRpcError as error:
            code = error.code()
            if code not in PASSING or code is grpc.StatusCode.RESOURCE_EXHAUSTED:
                logger.debug("%s: %s", method, printable(error.details() or code.name))
                return None
            if code is not grpc.StatusCode.CANCELLED or tries == TRIES:
                raise
        await asyncio.sleep(timeout / TRIES)
    raise AssertionError("the last one returns or raises")


def serving_state(status: int, has_served: bool) -> TaskState:
    """What grpc.health.v1 means: not yet before it first served, then not any more."""
    if status == compat_pb2.ServingReply.SERVING:
        return TaskState.SERVING
    return TaskState.LAME_DUCK if has_served else TaskState.STARTING
