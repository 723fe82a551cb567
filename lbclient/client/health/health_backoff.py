"""When a backend is asked again that has ended health requests unseen.

gRPC's core ends requests that its server has no room for (CANCELLED, and no other word
of it), health requests among them. To ask such a server again at once keeps it from
ever serving. Streams, checks and looks of one backend share the pauses, also from one
connection to the next: a new connection is no reason to ask sooner.
"""

import asyncio
from contextlib import suppress
from math import inf
from random import Random

import grpc

from lbclient.background.flag import Flag
from lbclient.client.health.statuses import UNANSWERED
from lbclient.core.backoff import Backoff, jittered

# Seconds. The first ones are short, as a server that has little room may take the next
# request: four are asked within a CHECK's patience of 2 s. The longest one bounds what
# many clients do to a server, and how late they see that it is well again.
PAUSES = Backoff(0.25, 30.0)


class HealthBackoff:
    """Grants turns to health requests of one backend. Owned by a backend. `unseen`
    counts requests that ended without an answer since the last answer.

    Without such ones any number may ask at once; with them, one at a time.
    """

    __slots__ = ("_is_open", "_next_at", "_rng", "unseen")

    def __init__(self, rng: Random) -> None:
        self.unseen = 0
        self._next_at = -inf  # by the loop's time
        self._is_open = Flag()
        self._rng = rng

    def pause(self) -> float:
        """Seconds until the next turn."""
        return max(0.0, self._next_at - asyncio.get_running_loop().time())

    async def wait_turn(self) -> None:
        """Returns when a request may be sent, which then has this turn."""
        while self.pause():
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._next_at):
                    await self._is_open.wait()
        if self.unseen:
            self._put_off()

    def ended(self, code: grpc.StatusCode) -> None:
        """A request ended with this status, without a message; some are answers."""
        if code is grpc.StatusCode.CANCELLED:
            self.unseen += 1
            self._put_off()
        elif code not in UNANSWERED:
            self.answered()

    def answered(self) -> None:
        """The backend answered: who waits for a turn may ask."""
        self.unseen = 0
        self._next_at = -inf
        self._is_open.set()

    def _put_off(self) -> None:
        self._is_open.clear()
        pause = jittered(PAUSES.after(self.unseen), self._rng)
        self._next_at = asyncio.get_running_loop().time() + pause

    def __repr__(self) -> str:
        return f"<{self.unseen} ended unseen>"
