"""Unary health checks beside a health stream, which show whether it blocks calls.

A stream takes a stream of the connection from calls, and in a server of threads a
thread. If a check beside it is not answered the stream is ended; if the next one is
then answered quickly, streams are suspended (see `stream_permit`).
"""

import asyncio
from collections.abc import Callable, Sequence

import grpc

from lbclient import wire
from lbclient.client.health.check import NoState, ask, ask_serving
from lbclient.client.health.check_turns import (
    LEAST_PAUSE,
    CheckTurns,
    loop_time,
)
from lbclient.client.health.connection_health import ConnectionHealth
from lbclient.client.health.health_backoff import HealthBackoff
from lbclient.client.health.streams import RefusedError, Streams
from lbclient.core.backends.stream_permit import (
    LONGEST_ANSWER,
    CheckPatience,
    StreamPermit,
)
from lbclient.core.model import TaskState
from lbclient.log import Log

logger = Log(__name__)

LATE = 1.25  # intervals after which a report is overdue; the quarter is for its way
NO_ROOM = "it answers, and has no room for a health stream"


class StreamChecks:
    """Sends unary health checks, and ends health streams that block them. Owned by a
    health watch, which clears `has_ended_streams`: a stream was ended because it
    blocked a check. `patience` adapts the timeout of checks beside streams."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        health: ConnectionHealth,
        streams: Streams,
        turns: CheckTurns,
        permit: StreamPermit,
        owes_nothing: Callable[[], None],
        backoff: HealthBackoff,
    ) -> None:
        self.patience = CheckPatience()
        self.permit = permit
        self.has_ended_streams = False
        self._channel = channel
        self._health = health
        self._streams = streams
        self._turns = turns
        self._owes_nothing = owes_nothing
        self._backoff = backoff

    async def wait_turn(self) -> None:
        """Returns when the backend may be asked."""
        await self._backoff.wait_turn()

    async def ask(self, timeout: float) -> wire.Health | NoState:
        """Asks once `wait_turn` returned. Raises AioRpcError if there is no answer."""
        health = self._health
        by = ask_serving if health.is_other and not health.is_ours else ask
        return await by(self._channel, timeout, health.state, self._backoff)

    async def ask_instead(self, refusal: RefusedError, timeout: float) -> bool:
        """Checks a backend that refuses streams. Returns whether it serves."""
        logger.debug("refused: %s", refusal, reason=refusal)
        report = refusal.report
        if report is not None and report.state is not None:
            self._health.is_ours = True
            health = wire.Health(report.state, report)
        else:
            state, backoff = self._health.state, self._backoff
            await backoff.wait_turn()
            try:
                answer = await ask(self._channel, timeout, state, backoff)
            except grpc.aio.AioRpcError:
                return True
            if isinstance(answer, NoState):
                self._health.take_answer(answer)
                return self._health.state in (None, TaskState.SERVING)
            health = answer
        is_serving = health.state is TaskState.SERVING
        self._health.learn(health, NO_ROOM if is_serving else "")
        return is_serving

    async def ask_beside(
        self, streams: Sequence[asyncio.Task[None]], pause: float
    ) -> wire.Health | NoState:
        """Checks the backend until it answers, and returns the answer. Ends streams
        that block checks, and suspends streams if the next check is then answered
        quickly."""
        is_ended = is_slow = False
        while True:
            await self._backoff.wait_turn()
            is_beside = self._streams.begun > 0
            timeout, began_at = self._timeout(is_beside), loop_time()
            try:
                answer = await self.ask(timeout)
            except grpc.aio.AioRpcError as error:
                # A server can answer DEADLINE_EXCEEDED at once: that is not late.
                is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                if not is_late or loop_time() - began_at < timeout / 2:
                    # Refused, perhaps, as the streams that were ended still count.
                    await asyncio.sleep(LEAST_PAUSE if is_ended else pause)
                elif not is_beside:
                    is_slow = True
                elif self._are_in_the_way(began_at, timeout):
                    is_ended = await self._end_streams(streams) or is_ended
                continue
            took = loop_time() - began_at
            if not is_ended:
                self.patience.answered(took)
            elif not is_slow and took < self.patience.seconds:
                self.permit.suspend(loop_time())
            elif not is_slow:
                self.patience.answered_late(took)
            return answer

    def _timeout(self, is_beside: bool) -> float:
        """Of a check. Beside a stream of ours until that has spoken, too, which it does
        every so often: so much is known of the connection."""
        if not is_beside:
            return LONGEST_ANSWER
        if not self._health.is_ours:
            return self.patience.seconds
        return self.patience.seconds + LATE * max(self._turns.every, self._health.floor)

    def _are_in_the_way(self, began_at: float, timeout: float) -> bool:
        """Whether a check that was not answered says so of the streams beside it."""
        if loop_time() - began_at >= 2 * timeout:
            return False  # it was us who stood still
        # Where a stream of ours is silent, too, the server is frozen, or the connection
        # is dead.
        return not self._health.is_ours or self._streams.spoke_at > began_at

    async def _end_streams(self, streams: Sequence[asyncio.Task[None]]) -> bool:
        """Returns whether one of them was open."""
        count, (in_flight, _) = self._streams.begun, self._turns.traffic()
        if not count:
            return False
        self.has_ended_streams = True
        running = [stream for stream in streams if not stream.done()]
        for stream in running:
            stream.cancel()
        if running:
            await asyncio.wait(running)
        if self._health.is_ours:
            self._owes_nothing()
        said = self.permit.record_ended(count, in_flight, loop_time())
        logger.info("closed health streams: %s", said, reason=said)
        return True

    def __repr__(self) -> str:
        return f"<beside {self._streams!r}>"
