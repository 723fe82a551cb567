"""When a draining server sends GOAWAY, and when it ends the connections after that.

Clients that watch the server's health learn within a round trip that it is a lame
duck, and then send their calls elsewhere. The other clients learn it from HTTP/2's
GOAWAY alone: until then they go on calling. GOAWAY leaves calls in flight alone, so
it does not wait for them (SRE book, ch. 20).
"""

import asyncio
from collections.abc import Callable, Mapping
from math import inf

from lbclient.core.protocols import Clock

POLL_INTERVAL = 0.02  # seconds; fine enough for any sensible lame_duck_quiet
GRACE_SHARE = 1 / 3  # of lame_duck_period, for calls in flight after GOAWAY

# gRPC's core cancels requests that have arrived, but that Python has not seen yet, when
# it sends GOAWAY. These are counted some times first, and GOAWAY is sent when they are
# no more than the fewest so far, which most probably are none. That takes 20 ms, and
# 0.4 s at most where requests come all the time.
MIN_SAMPLES, MAX_SAMPLES = 10, 200
SAMPLE_INTERVAL = 0.002  # seconds


class Drain:
    """Decides when a draining server goes on. Owned by the server.

    `watchers` has the connections with a health stream; the server keeps it up to date.
    `count_unseen` returns the number of requests that have arrived and that Python has
    not seen, plus an unknown constant; or None where grpcio cannot tell the number.
    `request_name` is the name of the asyncio tasks that serve the server's requests.
    `agree` is called while no client that watches health calls: whether the others
    that leave together with this server are so far, too.
    """

    def __init__(
        self,
        watchers: Mapping[str, int],
        quiet: float,
        period: float,
        clock: Clock,
        count_unseen: Callable[[], int | None],
        request_name: str,
        agree: Callable[[], bool] = lambda: True,
    ) -> None:
        now = clock()
        self._agree = agree
        self._watchers = watchers
        self._quiet = quiet
        self._clock = clock
        self._count_unseen = count_unseen
        self._request_name = request_name
        self._last_watcher_request_at = now
        self._end_at = now + period
        self._goaway_at = self._end_at - period * GRACE_SHARE
        self._is_stopped = False

    def stopped(self) -> None:
        """The server has stopped: there is nothing left to wait for."""
        self._is_stopped = True

    def request_began(self, peer: str) -> None:
        """Notes a request on the connection of this peer. Any thread may call it."""
        if peer in self._watchers:
            self._last_watcher_request_at = self._clock()

    def is_goaway_due(self) -> bool:
        """Whether no client that watches health calls any more, or time is up."""
        now = self._clock()
        if now >= self._goaway_at or self._is_stopped:
            return True
        only_non_watchers_call = now - self._last_watcher_request_at >= self._quiet
        return only_non_watchers_call and self._agree()

    async def wait_for_goaway(self) -> float:
        """Waits until GOAWAY is due. Returns the seconds left for calls in flight."""
        while not self.is_goaway_due():  # noqa: ASYNC110 - the clock is the caller's
            await asyncio.sleep(POLL_INTERVAL)
        await self._wait_for_few_unseen()
        return max(0.0, self._end_at - self._clock())

    async def _wait_for_few_unseen(self) -> None:
        fewest = inf
        for sample in range(MAX_SAMPLES):
            unseen = self._count_unseen()
            if unseen is None or (sample >= MIN_SAMPLES and unseen <= fewest):
                return
            fewest = min(fewest, unseen)
            await asyncio.sleep(SAMPLE_INTERVAL)

    async def wait_until_served(self) -> None:
        """Waits until the server has had no request for `quiet` seconds.

        A request lasts from the lookup of its handler until its response is sent, as a
        large message takes long to arrive or to leave. Streams that last as long as
        their connection, such as those of server reflection, are no requests.
        """
        while True:
            while requests := self._requests():
                await asyncio.wait(requests)
            await asyncio.sleep(self._quiet)  # one may have crossed GOAWAY
            if not self._requests():
                return

    def _requests(self) -> list[asyncio.Task[object]]:
        name = self._request_name
        return [task for task in asyncio.all_tasks() if task.get_name() == name]
