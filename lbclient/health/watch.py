"""Follows one backend's health over its connection, by the best means it offers.

`lbclient.v1.BackendHealth` tells state and load. A server that is not ours gets
`grpc.health.v1` for its state and ORCA's out-of-band stream for its load, together;
one that offers neither is taken to be serving as long as it is connected.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError

from lbclient import wire
from lbclient.model import LoadReport, TaskState
from lbclient.v1 import compat_pb2, health_pb2

logger = logging.getLogger(__name__)


class Tell(Protocol):
    """Where what is learned goes; `reason` where the task did not say it itself."""

    def __call__(
        self, state: TaskState | None, report: LoadReport | None, reason: str = ""
    ) -> None: ...


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


class NotOfferedError(Exception):
    """The server answers, but does not know this kind of health check."""


async def follow(
    channel: grpc.aio.Channel, interval: float, pause: float, tell: Tell
) -> None:
    """Tells every state and report; ends `pause` after a stream of ours broke.

    A server of ours tells state and report together, every `interval`. Others
    speak when something changes, one thing at a time; for them it never ends.
    """
    try:
        await _backend_health(channel, interval, tell)
    except NotOfferedError:
        async with asyncio.TaskGroup() as group:
            group.create_task(_serving_status(channel, pause, tell))
            group.create_task(_orca(channel, interval, pause, tell))
            group.create_task(asyncio.Event().wait())
    await asyncio.sleep(pause)


async def _read(
    channel: grpc.aio.Channel,
    method: str,
    request: bytes,
    take: Callable[[bytes], None],
) -> None:
    """Hands on the raw messages of a server stream until it ends or breaks."""
    watch: grpc.aio.UnaryStreamMultiCallable[bytes, bytes]
    watch = channel.unary_stream(method)
    call = watch(request)
    try:
        while isinstance(message := await call.read(), bytes):  # not EOF
            take(message)
    except grpc.aio.AioRpcError as error:
        if error.code() not in PASSING:
            raise NotOfferedError(f"{method}: {error.details()}") from None
        logger.debug("%s ended: %s", method, error.details())
    finally:
        call.cancel()


async def _backend_health(
    channel: grpc.aio.Channel, interval: float, tell: Tell
) -> None:
    understood = False

    def take(message: bytes) -> None:
        nonlocal understood
        if (health := wire.parse_health(message)) is not None:
            understood = True
            tell(*health)
        elif understood:
            logger.warning("a health report does not parse: %r", message[:80])
        else:
            # A server that answers anything: a proxy, or a catch-all handler.
            raise NotOfferedError(f"{wire.WATCH_METHOD}: {message[:80]!r}")

    request = health_pb2.HealthRequest(report_interval=interval).SerializeToString()
    try:
        await _read(channel, wire.WATCH_METHOD, request, take)
    except NotOfferedError as error:
        if not understood:
            raise
        logger.debug("the health watch broke: %s", error)  # it is offered: once more


async def _serving_status(channel: grpc.aio.Channel, pause: float, tell: Tell) -> None:
    served = False

    def take(message: bytes) -> None:
        nonlocal served
        try:
            reply = compat_pb2.ServingReply.FromString(message)
        except DecodeError:
            raise NotOfferedError(f"{wire.SERVING_WATCH_METHOD}: {message!r}") from None
        if reply.status == compat_pb2.ServingReply.SERVICE_UNKNOWN:
            # It speaks of single services only.
            raise NotOfferedError(f"{wire.SERVING_WATCH_METHOD}: nothing of the server")
        if reply.status == compat_pb2.ServingReply.SERVING:
            served = True
            tell(TaskState.SERVING, None)
        else:
            # Not yet before it first served; not any more after that.
            tell(TaskState.LAME_DUCK if served else TaskState.STARTING, None)

    request = compat_pb2.ServingRequest().SerializeToString()
    try:
        while True:
            await _read(channel, wire.SERVING_WATCH_METHOD, request, take)
            await asyncio.sleep(pause)
    except NotOfferedError as error:
        logger.debug("no health service: %s", error)
        tell(TaskState.SERVING, None, "it is connected and has no health service")


async def _orca(
    channel: grpc.aio.Channel, interval: float, pause: float, tell: Tell
) -> None:
    def take(message: bytes) -> None:
        if (report := wire.parse_report(message)) is not None:
            tell(None, report)

    seconds, rest = divmod(interval, 1)
    request = compat_pb2.LoadReportRequest(
        report_interval=Duration(seconds=int(seconds), nanos=int(rest * 1e9))
    ).SerializeToString()
    try:
        while True:
            await _read(channel, wire.ORCA_METHOD, request, take)
            await asyncio.sleep(pause)
    except NotOfferedError as error:
        logger.debug("no out-of-band load reports: %s", error)
