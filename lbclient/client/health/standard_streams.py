"""Health and load streams of other servers: grpc.health.v1's Watch, and ORCA's.

Each is opened again when it ends, with longer pauses while it is refused. One that the
server does not offer is left out.
"""

import asyncio

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError

from lbclient import wire
from lbclient.client.health.connection_health import ConnectionHealth
from lbclient.client.health.stream_checks import StreamChecks
from lbclient.client.health.streams import (
    NotOfferedError,
    RefusedError,
    Streams,
    TaskNotServing,
    longer,
)
from lbclient.log import Log
from lbclient.v1 import compat_pb2

logger = Log(__name__)


class StandardStreams:
    """Follows `grpc.health.v1` and ORCA streams of a server other than lbclient's.
    Owned by a health watch. Each method returns if the server does not offer its
    stream."""

    def __init__(
        self, health: ConnectionHealth, streams: Streams, checks: StreamChecks
    ) -> None:
        self._health = health
        self._streams = streams
        self._checks = checks

    async def follow_status(self, pause: float) -> None:
        """The state, by grpc.health.v1."""
        request, refusals = compat_pb2.ServingRequest().SerializeToString(), 0
        method, take = wire.SERVING_WATCH_METHOD, self._take_status
        try:
            while True:
                again = pause
                try:
                    has_spoken = await self._streams.follow(method, request, take)
                    refusals = 0 if has_spoken else refusals + 1
                except RefusedError as refusal:
                    await self._checks.ask_instead(refusal, pause)
                    refusals += 1
                except TaskNotServing:
                    again = self._health.pause_for_another_task(pause)
                await asyncio.sleep(longer(again, refusals))
        except NotOfferedError as error:
            logger.debug("no health service: %s", error, reason=error)
            self._health.assume_serving()

    def _take_status(self, message: bytes) -> None:
        method = wire.SERVING_WATCH_METHOD
        try:
            status = compat_pb2.ServingReply.FromString(message).status
        except DecodeError:
            raise NotOfferedError(f"{method}: {message[:80]!r}") from None
        if status == compat_pb2.ServingReply.SERVICE_UNKNOWN:
            # It speaks of single services only.
            raise NotOfferedError(f"{method}: nothing of the server")
        self._health.take_status(status)

    async def follow_load(self, interval: float, pause: float) -> None:
        """The load, by ORCA's out-of-band reports."""

        def take(message: bytes) -> None:
            if (report := wire.parse_report(message)) is not None:
                self._health.take_report(report)

        seconds, rest = divmod(interval, 1)
        request = compat_pb2.LoadReportRequest(
            report_interval=Duration(seconds=int(seconds), nanos=int(rest * 1e9))
        ).SerializeToString()
        refusals = 0
        try:
            while True:
                try:
                    has_spoken = await self._streams.follow(
                        wire.ORCA_METHOD, request, take
                    )
                    refusals = 0 if has_spoken else refusals + 1
                except RefusedError as refusal:
                    logger.debug("refused: %s", refusal, reason=refusal)
                    refusals += 1
                await asyncio.sleep(longer(pause, refusals))
        except NotOfferedError as error:
            logger.debug("no out-of-band load reports: %s", error, reason=error)

    def __repr__(self) -> str:
        return repr(self._streams)
