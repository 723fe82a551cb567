"""One unary health check of one backend, over its connection or a new one.

The same services as `watch`, in the same order. A server that offers neither and
answers nevertheless is taken to be serving.
"""

import asyncio
from typing import NamedTuple

import grpc
from google.protobuf.message import DecodeError

from lbclient import wire
from lbclient.client.health.health_backoff import HealthBackoff
from lbclient.client.health.statuses import (
    NOT_OFFERED_CODES,
    UNANSWERED,
    Unanswered,
    status_of,
    unanswered,
)
from lbclient.core.model import LoadReport, TaskState
from lbclient.core.text import printable
from lbclient.grpc_seam import answer_of, without_interceptors
from lbclient.log import Log
from lbclient.v1 import compat_pb2

logger = Log(__name__)


class NoState(NamedTuple):
    """An answer to a health check that tells no state: a status of the server's.

    `is_offered`: it has such a service, or may have one that it refuses to us. Else the
    server has no such method, or does not know the service that it is asked for, which
    is the server as a whole. Every other status tells nothing of a state: a rate limit,
    a handler that raised, a proxy's error, a want of rights. `status` is in words; "":
    the plain one of a server without the service.
    """

    is_offered: bool
    status: str = ""

    def reason(self) -> str:
        return f"it answers, and its health checks are refused: {self.status}"


class Reply(NamedTuple):
    """The answer to a health check. `report` is in the trailers."""

    message: bytes
    report: LoadReport | None


async def check(
    channel: grpc.aio.Channel,
    timeout: float,
    known: TaskState,
    backoff: HealthBackoff,
) -> wire.Health | Unanswered:
    """Asks for a server's state, and its report if it is ours; or tells why there is no
    answer. Asks again if it was ended unseen, while the next turn comes in time.

    `known` is the state that it told last, which an answer without a state leaves.
    """
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + timeout
    while True:
        begun_at = loop.time()
        try:
            answer = await ask(channel, timeout, known, backoff)
            break
        except grpc.aio.AioRpcError as error:
            is_unseen = error.code() is grpc.StatusCode.CANCELLED
            if not is_unseen or loop.time() + backoff.pause() >= give_up_at:
                is_late = loop.time() - begun_at > timeout / 2
                return unanswered(channel, error, is_late)
        await backoff.wait_turn()
    if isinstance(answer, wire.Health):
        return answer
    if not answer.is_offered:
        return wire.Health(TaskState.SERVING)
    if known is TaskState.SERVING:
        return wire.Health(TaskState.SERVING, reason=answer.reason())
    return wire.Health(known)


async def ask(
    channel: grpc.aio.Channel,
    timeout: float,
    known: TaskState | None,
    backoff: HealthBackoff,
) -> wire.Health | NoState:
    """Asks by our own service, else by grpc.health.v1; in a turn of `backoff`.

    Raises AioRpcError if there is no answer.
    """
    reply = await _ask(channel, wire.CHECK_METHOD, timeout, backoff)
    if isinstance(reply, Reply):
        health = wire.parse_health(reply.message)
        if health is not None:
            return health
    answer = await ask_serving(channel, timeout, known, backoff)
    if isinstance(answer, wire.Health) or answer.is_offered:
        return answer
    # One that refuses ours has one, perhaps.
    return reply if isinstance(reply, NoState) and reply.is_offered else answer


async def ask_serving(
    channel: grpc.aio.Channel,
    timeout: float,
    known: TaskState | None,
    backoff: HealthBackoff,
) -> wire.Health | NoState:
    """What grpc.health.v1 says of the server as a whole.

    One of ours that has our own service refused to us tells its load in the trailers.
    Raises AioRpcError if there is no answer.
    """
    reply = await _ask(channel, wire.SERVING_CHECK_METHOD, timeout, backoff)
    if isinstance(reply, NoState):
        return reply
    try:
        status = compat_pb2.ServingReply.FromString(reply.message).status
    except DecodeError:
        return NoState(is_offered=False)
    if status == compat_pb2.ServingReply.SERVICE_UNKNOWN:
        return NoState(is_offered=False)
    state = serving_state(status, known)
    reason = serving_reason(status)
    return wire.Health(state, reply.report, reason=reason, is_own=False)


async def _ask(
    channel: grpc.aio.Channel, method: str, timeout: float, backoff: HealthBackoff
) -> Reply | NoState:
    """The reply, or what its status means. Raises AioRpcError if there is no answer.

    CANCELLED is none: so the core of a task ends what it has no room for.
    RESOURCE_EXHAUSTED is an answer that says nothing: a rate limit for health checks,
    perhaps of a proxy, does not say that calls fail.
    """
    unary: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
    unary = without_interceptors(channel.unary_unary(method))
    try:
        call = unary(b"", timeout=timeout)
        message = await answer_of(call, call)
        report = wire.find_report(await call.trailing_metadata() or ())
        backoff.answered()
        return Reply(message, report)
    except grpc.aio.AioRpcError as error:
        code = error.code()
        backoff.ended(code)
        if code in UNANSWERED:
            raise
        said = printable(error.details() or code.name)
        logger.debug("%s: %s", method, said, reason=said)
        plain = code is grpc.StatusCode.UNIMPLEMENTED
        is_offered = code not in NOT_OFFERED_CODES
        return NoState(is_offered, "" if plain else status_of(error))


def serving_state(status: int, known: TaskState | None) -> TaskState:
    """What grpc.health.v1 means: not yet before it first served, then not any more."""
    if status == compat_pb2.ServingReply.SERVING:
        return TaskState.SERVING
    has_served = known in (TaskState.SERVING, TaskState.LAME_DUCK)
    return TaskState.LAME_DUCK if has_served else TaskState.STARTING


def serving_reason(status: int) -> str:
    """What it says in its own words, unless it serves: whether it is starting or a lame
    duck is our guess."""
    if status == compat_pb2.ServingReply.SERVING:
        return ""
    names = compat_pb2.ServingReply.ServingStatus.DESCRIPTOR.values_by_number
    said = names[status].name if status in names else f"status {status}"
    return f"it says {said} (grpc.health.v1)"
