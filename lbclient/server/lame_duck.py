"""How a task leaves: it serves until its clients have gone elsewhere, then says GOAWAY.

Clients that watch its health learn within a round trip that it leaves, but what they
had sent by then still arrives; so a moment without a request is not the end, only a
quiet while is (SRE book, ch. 20). All others, pick_first's clients for instance, learn
of it by HTTP/2's GOAWAY alone: they go on sending until they get that.
"""

import asyncio
from collections.abc import Callable
from math import inf
from typing import Any

from lbclient.protocols import Clock
from lbclient.server.monitor import LoadMonitor

POLL_INTERVAL = 0.02  # seconds; fine enough for any sensible lame_duck_quiet

# A third of the period is kept for what is in flight when GOAWAY is sent.
PARTS = 3

# When GOAWAY is sent gRPC's core cancels the requests that have arrived and that Python
# has not seen yet. So it is sent when there are as few as ever in some looks: none.
LOOKS, MOST_LOOKS = 10, 200
LOOK_INTERVAL = 0.002  # seconds


class Leave:
    """When a lame duck stops. Told of each request that comes meanwhile.

    `watchers` counts the health streams by connection; the server keeps it.
    `count_unseen` is the number of requests that have arrived and that no handler has
    seen, give or take a constant; None: nobody knows.
    """

    def __init__(
        self,
        monitor: LoadMonitor,
        watchers: dict[str, int],
        quiet: float,
        period: float,
        clock: Clock,
        count_unseen: Callable[[], int | None],
    ) -> None:
        now = clock()
        self._end_at = now + period
        self._monitor = monitor
        self._watchers = watchers
        self._quiet = quiet
        self._count_unseen = count_unseen
        self._goaway_at = self._end_at - period / PARTS
        self._clock = clock
        self._came_at = now  # the last request
        self._heeded_at = now  # the last one on a connection that watches
        self._active_at = -inf  # as far as was looked
        self._is_stopped = False

    def stopped(self) -> None:
        """The server has: there is nothing left to wait for."""
        self._is_stopped = True

    def came(self, context: Any) -> None:
        """A request of this context began."""
        self._came_at = now = self._clock()
        if context.peer() in self._watchers:
            self._heeded_at = now

    def is_over(self) -> bool:
        """Whether GOAWAY is due: all is quiet, nobody listens, or time is up."""
        now = self._clock()
        # Whoever watches was told a while ago, and has sent nothing since.
        is_unheard = self._came_at > self._heeded_at and (
            now - self._heeded_at >= self._quiet
        )
        return is_unheard or self._is_quiet(now) or now >= self._goaway_at

    def _is_quiet(self, now: float) -> bool:
        if self._is_stopped:
            return True
        if self._monitor.active:
            self._active_at = now
        return now - max(self._came_at, self._active_at) >= self._quiet

    async def wait(self) -> float:
        """Until GOAWAY is due. Returns how long what is in flight may still take."""
        while not self.is_over():  # noqa: ASYNC110 - of several things, and of time
            await asyncio.sleep(POLL_INTERVAL)
        await self._wait_lull()
        self._came_at = now = self._clock()  # or may come, until GOAWAY is read
        return max(0.0, self._end_at - now)

    async def _wait_lull(self) -> None:
        fewest = inf
        for look in range(MOST_LOOKS):
            unseen = self._count_unseen()
            if unseen is None or (look >= LOOKS and unseen <= fewest):
                return
            fewest = min(fewest, unseen)
            await asyncio.sleep(LOOK_INTERVAL)

    async def wait_quiet(self) -> None:
        """Until no request is left, nor has been for a while since GOAWAY."""
        while not self._is_quiet(self._clock()):  # noqa: ASYNC110 - as in `wait`
            await asyncio.sleep(POLL_INTERVAL)
