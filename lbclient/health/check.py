"""Asks one backend once how it is, over a connection that is there or not.

The same services as `watch`, in the same order; whoever offers neither and answers
nevertheless is taken to be serving.
"""

import asyncio

import grpc
from google.protobuf.message import DecodeError

from lbclient import wire
from lbclient.health.watch import PASSING, serving_state
from lbclient.model import TaskState
from lbclient.v1 import compat_pb2

TRIES = 5  # where the core of a task that has too much ends them unseen


async def check(
    channel: grpc.aio.Channel, timeout: float, has_served: bool
) -> wire.Health | str:
    """Its state, and its report if it is ours; or why there is no answer."""
    try:
        reply = await _ask(channel, wire.CHECK_METHOD, timeout)
        if reply is not None and (health := wire.parse_health(reply)) is not None:
            return health
        reply = await _ask(channel, wire.SERVING_CHECK_METHOD, timeout)
    except grpc.aio.AioRpcError as error:
        return reason_of(error)
    try:
        status = None if reply is None else compat_pb2.ServingReply.FromString(reply)
    except DecodeError:
        status = None
    if status is None or status.status == compat_pb2.ServingReply.SERVICE_UNKNOWN:
        return wire.Health(TaskState.SERVING)
    return wire.Health(serving_state(status.status, has_served))


def reason_of(error: grpc.aio.AioRpcError) -> str:
    """Why nobody answered, in grpcio's words; it tells them to failed calls only."""
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "cannot connect: no answer in time"
    details = error.details() or "no reason"
    return f"cannot connect: {details.rpartition('last error: ')[2]}"


async def _ask(channel: grpc.aio.Channel, method: str, timeout: float) -> bytes | None:
    """The answer; None if this is not offered. Raises for no answer.

    CANCELLED is none yet: so a task ends what it has no room for, and it is there.
    """
    ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
    for tries in range(1, TRIES + 1):
        try:
            return await ask(b"", timeout=timeout)
        except grpc.aio.AioRpcError as error:
            if error.code() not in PASSING:
                return None
            if error.code() is not grpc.StatusCode.CANCELLED or tries == TRIES:
                raise
        await asyncio.sleep(timeout / TRIES)
    raise AssertionError("the last one returns or raises")
