"""The health checks that a backend's lifecycle orders, and what came of them.

A CHECK goes over the connection. A LOOK goes over another one, which is then closed: a
backend without a connection is asked so, and one whose connection does not answer.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import grpc

from lbclient import wire
from lbclient.background.flag import Flag
from lbclient.client.driver import Driver
from lbclient.client.health.check import check
from lbclient.client.health.health_backoff import HealthBackoff
from lbclient.client.health.statuses import Unanswered
from lbclient.client.health.streams import STREAM_END_GRACE
from lbclient.client.reported import Reported
from lbclient.core.backends.connection_state import Order
from lbclient.core.coroutines import step
from lbclient.core.model import State, TaskState
from lbclient.core.protocols import Clock

READY = grpc.ChannelConnectivity.READY

LOOK_TIMEOUT = 5.0  # seconds, as for an attempt to connect
LATE = 1.25  # times the timeout: the loop was busy, else the check ended in time

# What an answer to a health check that tells no state leaves as it is.
TASK_STATE = {
    State.STARTING: TaskState.STARTING,
    State.LAME_DUCK: TaskState.LAME_DUCK,
}


class OrderedChecks:
    """Runs the health checks that a backend's lifecycle orders. Owned by a backend.
    `asked_at`, by the loop's time, is when the last CHECK began.

    An order waits until a task can carry it out.
    """

    def __init__(
        self,
        driver: Driver,
        reported: Reported,
        clock: Clock,
        dial_other: Callable[[], Awaitable[grpc.aio.Channel]],
        has_others: Callable[[bool], bool],
        backoff: HealthBackoff,
    ) -> None:
        """`dial_other` makes the channel for a LOOK, as soon as one may be made.
        `has_others`: whether others get the calls that this one does not; of others
        that answer health checks, if the argument says so."""
        self.asked_at = 0.0
        self._lifecycle, self._take = driver.lifecycle, driver.take
        self._reported = reported
        self._clock = clock
        self._dial_other = dial_other
        self._has_others = has_others
        self._backoff = backoff
        self._is_asked = Flag()
        self._is_to_look = Flag()

    def order(self, order: Order) -> None:
        """Orders a CHECK or a LOOK."""
        (self._is_asked if order is Order.CHECK else self._is_to_look).set()

    def cancel_orders(self) -> None:
        self._is_asked.clear()
        self._is_to_look.clear()

    # --- over the connection --------------------------------------------------

    async def check_as_ordered(
        self, channel: grpc.aio.Channel, patience: float
    ) -> None:
        """Checks whenever one is ordered. An answer may take `patience` seconds."""
        late = LATE * patience
        while True:
            await self._is_asked.wait()
            self._is_asked.clear()
            await self._backoff.wait_turn()
            self.asked_at = asyncio.get_running_loop().time()
            began_at = self._clock()
            health = await self._ask(channel, patience)
            if isinstance(health, Unanswered) and self._clock() - began_at > late:
                # It was us who stood still, perhaps before the question was sent.
                await self._backoff.wait_turn()
                health = await self._ask(channel, patience)
            doubts, now = self._lifecycle.doubts, self._clock()
            if not isinstance(health, Unanswered):
                state, reason = self._reported.answered(health)
                self._take(doubts.check_answered(state, now, reason))
            elif health.is_unseen:
                has_others = self._has_others(True)
                self._take(doubts.check_refused(health.status, now, has_others))
            else:
                self._take(doubts.check_unanswered(now))

    # --- over another one -----------------------------------------------------

    async def wait_for_look(self) -> None:
        """Returns when a LOOK was ordered."""
        await self._is_to_look.wait()
        self._is_to_look.clear()

    async def look(self) -> None:
        await self._backoff.wait_turn()
        channel = await self._dial_other()
        try:
            health = await self._ask(channel, LOOK_TIMEOUT)
            is_there = isinstance(health, Unanswered) and await _stays_ready(channel)
        finally:
            step(channel.close())
        now = self._clock()
        if isinstance(health, Unanswered):
            has_others = self._has_others(is_there)
            why, status, _ = health
            self._take(
                self._lifecycle.look_unanswered(why, now, is_there, has_others, status)
            )
            return
        is_away = self._lifecycle.is_away()
        state, reason = self._reported.believed(health)
        self._take(self._lifecycle.look_answered(state, now, reason))
        if is_away:
            self._reported.seen(health, now)

    # --------------------------------------------------------------------------

    async def _ask(
        self, channel: grpc.aio.Channel, timeout: float
    ) -> wire.Health | Unanswered:
        return await check(channel, timeout, self._known(), self._backoff)

    def _known(self) -> TaskState:
        """Returns the last state, for answers to health checks that tell none."""
        return TASK_STATE.get(self._lifecycle.state, TaskState.SERVING)

    def __repr__(self) -> str:
        return (
            f"<asked: {self._is_asked.is_set()}, to look: {self._is_to_look.is_set()}>"
        )


async def _stays_ready(channel: grpc.aio.Channel) -> bool:
    """Whether it is connected; a call can end a moment before that is known."""
    if channel.get_state() is READY:
        with suppress(TimeoutError):
            async with asyncio.timeout(STREAM_END_GRACE):
                await channel.wait_for_state_change(READY)
    return channel.get_state() is READY
