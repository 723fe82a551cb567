"""Asks a backend for its state by unary checks, again and again.

So a server that is not ours is asked, with streams beside that for its load; and any
server on whose connection streams block calls.
"""

import asyncio
from asyncio import FIRST_COMPLETED

import grpc

from lbclient.background.flag import Flag
from lbclient.client.health.check import NoState
from lbclient.client.health.check_turns import CheckTurns, loop_time
from lbclient.client.health.connection_health import ConnectionHealth
from lbclient.client.health.standard_streams import StandardStreams
from lbclient.client.health.stream_checks import StreamChecks
from lbclient.client.health.streams import longer_for
from lbclient.core.backends.stream_permit import LONGEST_ANSWER
from lbclient.core.model import TaskState
from lbclient.wire import Health

ASKED = "polled by unary health checks: streams blocked calls"


class RepeatedChecks:
    """Asks a backend for its state by unary checks, again and again. Owned by a health
    watch."""

    def __init__(
        self,
        health: ConnectionHealth,
        streams: StandardStreams,
        turns: CheckTurns,
        checks: StreamChecks,
    ) -> None:
        self._health = health
        self._streams = streams
        self._turns = turns
        self._checks = checks

    async def follow_without_streams(self, pause: float) -> None:
        """Follows by checks alone while streams block calls, until they may be tried
        again."""
        refusals = 0
        permit = self._checks.permit
        while not permit.may_stream(loop_time()):
            await self._checks.wait_turn()
            try:
                answer = await self._checks.ask(LONGEST_ANSWER)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(pause)
                continue
            is_believed = self._health.take_answer(answer, ASKED)
            if _has_none(answer):
                await asyncio.sleep(permit.expires_at - loop_time())
                return
            refusals = refusals + 1 if _is_refused(answer) else 0
            await self._wait_after(is_believed, refusals, pause)

    async def follow(self, has_watch: bool, pause: float) -> None:
        """A server that is not ours; its state by a stream, too, with `has_watch`.

        Ends when the streams were ended as they were in the way.
        """
        health, checks = self._health, self._checks
        async with asyncio.TaskGroup() as group:
            # Before the first check, which tells whether there is room for them.
            health.hold_states()  # until then no call comes
            load = group.create_task(
                self._streams.follow_load(self._turns.every, pause)
            )
            has_load = group.create_task(_wait_for(health.has_load))
            streams, watch = [load], None
            if has_watch:
                watch = group.create_task(self._streams.follow_status(pause))
                streams.append(watch)
            await asyncio.sleep(0)
            answer = await checks.ask_beside(streams, pause)
            await asyncio.wait(  # for the load, which is told before the state
                [load, has_load],
                timeout=checks.patience.seconds,
                return_when=FIRST_COMPLETED,
            )
            has_load.cancel()
            health.release_states()
            refusals = 0
            while True:
                is_believed = True
                if watch is None or watch.done():
                    is_believed = health.take_answer(answer)
                if checks.has_ended_streams:
                    break
                if _has_none(answer) and all(s.done() for s in streams):
                    await Flag().wait()  # there is nobody to ask
                refusals = refusals + 1 if _is_refused(answer) else 0
                await self._wait_after(is_believed, refusals, pause)
                answer = await checks.ask_beside(streams, pause)
            for stream in streams:
                stream.cancel()

    async def _wait_after(self, is_believed: bool, refusals: int, pause: float) -> None:
        """Waits until the next check is due. `refusals` counts statuses in a row that
        told no state."""
        if not is_believed:
            await asyncio.sleep(self._health.pause_for_another_task(pause))
        elif refusals:
            is_serving = self._health.state in (None, TaskState.SERVING)
            await asyncio.sleep(longer_for(is_serving, pause, refusals - 1))
        else:
            await self._turns.wait()

    def __repr__(self) -> str:
        return f"<{self._health!r}, asked {self._turns!r}>"


def _has_none(answer: Health | NoState) -> bool:
    return isinstance(answer, NoState) and not answer.is_offered


def _is_refused(answer: Health | NoState) -> bool:
    return isinstance(answer, NoState) and answer.is_offered


async def _wait_for(event: Flag) -> None:
    await event.wait()
