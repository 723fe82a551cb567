"""When the next unary check of a watched backend is due.

A server that is not ours is asked every so often. A server of ours tells its state by
its stream, and is checked beside the stream where calls wait and none is answered.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from math import inf

from lbclient.background.flag import Flag
from lbclient.client.health.connection_health import ConnectionHealth
from lbclient.client.health.streams import Streams
from lbclient.core.backends.checks import RAREST_CHECK
from lbclient.core.backends.stream_permit import LONGEST_ANSWER

LEAST_PAUSE = 0.1  # seconds between two checks of a server that is not ours

# Tells how many calls are in flight, and how many were ever answered.
Traffic = Callable[[], tuple[int, int]]


class CheckTurns:
    """Says when the next unary health check of a backend is due. Owned by a health
    watch. Servers other than lbclient's are checked `every` seconds."""

    def __init__(
        self, health: ConnectionHealth, streams: Streams, traffic: Traffic
    ) -> None:
        self.every = 0.0
        self._health = health
        self._streams = streams
        self.traffic = traffic
        self._is_due = Flag()
        # Calls that wait at a server of ours, as `look` saw them last.
        self._answered = self._stalled = 0
        self._stalled_at = -inf
        self._pause = 0.0

    def ask_every(self, interval: float) -> None:
        """Sets the interval of checks of a server that is not ours. The next one comes
        at once if that is more often than before."""
        if interval < self.every and not self._health.is_ours:
            self._is_due.set()
        self.every = interval

    def ask_now(self) -> None:
        """A call missed its deadline: are streams of ours in the way?"""
        if self._streams.open:
            self._is_due.set()

    def look(self) -> None:
        """Now and then: asks a server of ours beside its stream where calls wait.

        While the same calls wait it is asked ever more seldom: they may just be long.
        """
        if not self._health.is_ours:
            return
        (in_flight, answered), now = self.traffic(), loop_time()
        if answered != self._answered or not in_flight:
            self._answered, self._stalled = answered, 0
            self._stalled_at, self._pause = now, self.every
        elif in_flight > self._stalled:
            self._pause = self.every
        if in_flight and now >= self._stalled_at + self._pause:
            self._stalled, self._stalled_at = in_flight, now
            self._pause = min(2 * self._pause, RAREST_CHECK)
            self.ask_now()

    async def wait_asked(self) -> None:
        """Waits until `ask_now` wants a check."""
        await self._is_due.wait()
        self._is_due.clear()

    async def wait(self) -> None:
        """A check without streams is put off while more and more calls wait, for a few
        seconds at most. Beside streams it is not: they may be what calls wait for."""
        give_up_at = loop_time() + self.every + LONGEST_ANSWER
        while True:
            self._is_due.clear()
            in_flight_before, answered_before = self.traffic()
            with suppress(TimeoutError):
                async with asyncio.timeout(self.every):
                    await asyncio.sleep(LEAST_PAUSE)
                    await self._is_due.wait()
            in_flight, answered = self.traffic()
            is_stuck = in_flight > in_flight_before and answered == answered_before
            if self._streams.begun or not is_stuck or loop_time() >= give_up_at:
                return

    def __repr__(self) -> str:
        return f"<every {self.every:.1f} s, {self._stalled} calls stalled>"


def loop_time() -> float:
    return asyncio.get_running_loop().time()
