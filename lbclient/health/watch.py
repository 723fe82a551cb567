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


NO_SERVICE = "it is connected and has no health service"


class NotOfferedError(Exception):
    """The server answers, but does not know this kind of health check."""


class HealthWatch:
    """One backend's, over one connection. `udp_port` is what it last told of that.

    `is_ours` once it spoke as our servers do, which report every so often. As long as
    a stream of it is open, `is_broken` is not set: what is lost is lost with all.
    """

    def __init__(self, channel: grpc.aio.Channel, tell: Tell) -> None:
        self.udp_port = 0
        self.is_ours = False
        self.is_broken = asyncio.Event()
        self.is_broken.set()
        self._channel = channel
        self._tell = tell
        self._open = 0  # streams that have spoken
        self._has_served = False

    async def follow(self, interval: float, pause: float) -> None:
        """Tells every state and report; ends `pause` after a stream of ours broke.

        A server of ours tells state and report together, every `interval`. Others
        speak when something changes, one thing at a time; for them it never ends.
        """
        try:
            await self._backend_health(interval)
        except NotOfferedError:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._serving_status(pause))
                group.create_task(self._orca(interval, pause))
                group.create_task(asyncio.Event().wait())
        await asyncio.sleep(pause)

    async def _read(
        self, method: str, request: bytes, take: Callable[[bytes], None]
    ) -> None:
        """Hands on the raw messages of a server stream until it ends or breaks."""
        watch: grpc.aio.UnaryStreamMultiCallable[bytes, bytes]
        watch = self._channel.unary_stream(method)
        call = watch(request)
        is_open = False
        try:
            while isinstance(message := await call.read(), bytes):  # not EOF
                if not is_open:
                    is_open = True
                    self._opened(1)
                take(message)
        except grpc.aio.AioRpcError as error:
            if error.code() not in PASSING:
                raise NotOfferedError(f"{method}: {error.details()}") from None
            logger.debug("%s ended: %s", method, error.details())
        finally:
            call.cancel()
            if is_open:
                self._opened(-1)

    def _opened(self, more: int) -> None:
        self._open += more
        if self._open:
            self.is_broken.clear()
        else:
            self.is_broken.set()

    async def _backend_health(self, interval: float) -> None:
        def take(message: bytes) -> None:
            if (health := wire.parse_health(message)) is not None:
                self.is_ours = True
                self.udp_port = health.udp_port
                self._tell(health.state, health.report)
            elif self.is_ours:
                logger.warning("a health report does not parse: %r", message[:80])
            else:
                # A server that answers anything: a proxy, or a catch-all handler.
                raise NotOfferedError(f"{wire.WATCH_METHOD}: {message[:80]!r}")

        request = health_pb2.HealthRequest(report_interval=interval)
        try:
            await self._read(wire.WATCH_METHOD, request.SerializeToString(), take)
        except NotOfferedError as error:
            if not self.is_ours:
                raise
            logger.debug("the health watch broke: %s", error)  # it is offered

    async def _serving_status(self, pause: float) -> None:
        def take(message: bytes) -> None:
            try:
                status = compat_pb2.ServingReply.FromString(message).status
            except DecodeError:
                said = f"{wire.SERVING_WATCH_METHOD}: {message!r}"
                raise NotOfferedError(said) from None
            if status == compat_pb2.ServingReply.SERVICE_UNKNOWN:
                # It speaks of single services only.
                said = f"{wire.SERVING_WATCH_METHOD}: nothing of the server"
                raise NotOfferedError(said)
            state = serving_state(status, self._has_served)
            self._has_served = self._has_served or state is TaskState.SERVING
            self._tell(state, None)

        request = compat_pb2.ServingRequest().SerializeToString()
        try:
            while True:
                await self._read(wire.SERVING_WATCH_METHOD, request, take)
                await asyncio.sleep(pause)
        except NotOfferedError as error:
            logger.debug("no health service: %s", error)
            self._tell(TaskState.SERVING, None, NO_SERVICE)

    async def _orca(self, interval: float, pause: float) -> None:
        def take(message: bytes) -> None:
            if (report := wire.parse_report(message)) is not None:
                self._tell(None, report)

        seconds, rest = divmod(interval, 1)
        request = compat_pb2.LoadReportRequest(
            report_interval=Duration(seconds=int(seconds), nanos=int(rest * 1e9))
        ).SerializeToString()
        try:
            while True:
                await self._read(wire.ORCA_METHOD, request, take)
                await asyncio.sleep(pause)
        except NotOfferedError as error:
            logger.debug("no out-of-band load reports: %s", error)


def serving_state(status: int, has_served: bool) -> TaskState:
    """What grpc.health.v1 means: not yet before it first served, then not any more."""
    if status == compat_pb2.ServingReply.SERVING:
        return TaskState.SERVING
    return TaskState.LAME_DUCK if has_served else TaskState.STARTING
