"""The health stream of an lbclient server, with checks beside it while calls wait.

`lbclient.v1.BackendHealth` tells state and load together, every so often. A server may
have no room for another stream: then it is asked for one again and again, with pauses
that grow, and what it says with each refusal, or when it is asked once, is its state
meanwhile. That is no silence: it owes no reports.
"""

import asyncio
import logging

from lbclient import wire
from lbclient.background.tasks import leaving_no_trace, until_one_ends
from lbclient.client.health.check_turns import CheckTurns
from lbclient.client.health.connection_health import ConnectionHealth
from lbclient.client.health.stream_checks import StreamChecks
from lbclient.client.health.streams import (
    NotOfferedError,
    RefusedError,
    Streams,
    TaskNotServing,
    longer_for,
)
from lbclient.log import Log
from lbclient.v1 import health_pb2

logger = Log(__name__)


class OwnStream:
    """Follows the health stream of one of lbclient's servers. Owned by a health watch.
    `refusals` counts refusals of the stream in a row."""

    def __init__(
        self,
        health: ConnectionHealth,
        streams: Streams,
        turns: CheckTurns,
        checks: StreamChecks,
    ) -> None:
        self.refusals = 0
        self._health = health
        self._streams = streams
        self._turns = turns
        self._checks = checks
        self._has_complained = False

    async def follow(self, interval: float, pause: float) -> float:
        """Tells state and report every `interval`, until the stream ends or breaks.

        Returns the pause before the next one. Raises NotOfferedError where the server
        is not ours.
        """
        try:
            await self._read_and_check(interval, pause)
        except RefusedError as refusal:
            is_serving = await self._checks.ask_instead(refusal, pause)
            pause = longer_for(is_serving, pause, self.refusals)
            self.refusals += 1
        except TaskNotServing:
            pass
        return pause

    async def _read_and_check(self, interval: float, pause: float) -> None:
        stream = leaving_no_trace(self._read(interval))
        checks = leaving_no_trace(self._check_beside(stream, pause))
        try:
            await until_one_ends(stream, checks)
            if self._checks.has_ended_streams or checks.done():
                await checks  # which has ended the stream, and may still be asking
            else:
                stream.result()
        finally:
            await _end(stream, checks)
            # An error of theirs has this frame in its traceback: no circle, which would
            # keep their calls, and these the connection, until it is collected.
            del stream, checks

    async def _check_beside(self, stream: asyncio.Task[None], pause: float) -> None:
        """Asks beside the stream, whenever `ask_now` wants it."""
        checks = self._checks
        while not checks.has_ended_streams:
            await self._turns.wait_asked()
            answer = await checks.ask_beside([stream], pause)
            # As long as the stream is open it tells the state.
            if checks.has_ended_streams and isinstance(answer, wire.Health):
                self._health.learn(answer)

    async def _read(self, interval: float) -> None:
        def take(message: bytes) -> None:
            if (health := wire.parse_health(message)) is not None:
                self.refusals = 0
                self._health.take_health(health)
            elif self._health.is_ours:
                self._complain(message)
            else:
                # A server that answers anything: a proxy, or a catch-all handler.
                raise NotOfferedError(f"{wire.WATCH_METHOD}: {message[:80]!r}")

        request = health_pb2.HealthRequest(report_interval=interval)
        try:
            await self._streams.follow(
                wire.WATCH_METHOD, request.SerializeToString(), take
            )
        except NotOfferedError as error:
            if not self._health.is_ours:
                raise
            # It is offered.
            logger.debug("the health watch broke: %s", error, reason=error)

    def _complain(self, message: bytes) -> None:
        """Logs it once, or a backend could fill the log."""
        level = logging.DEBUG if self._has_complained else logging.WARNING
        self._has_complained = True
        logger.log(level, "a health report does not parse: %r", message[:80])

    def __repr__(self) -> str:
        return f"<{self.refusals} refusals in a row>"


async def _end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # or asyncio would log that nobody has looked
