"""Requests that have arrived and that nothing has looked at yet.

gRPC's core keeps them in a queue of its own, unseen, and hands over one in every few
turns of the loop. Where more comes than can be served that queue becomes as long as
the deadlines, and whoever is served has just stopped waiting. So where handlers have
the loop for long, requests are taken out of it as soon as they arrive, and wait here:
it is known how many they are and how long each has waited.

Where handlers take many short steps, as in a proxy, only a few are. All events of the
core come one by one, and those of requests that have begun must not wait behind all
that have not. Few at once are enough for the server to take less CPU than grpcio's.

A queue that is not empty for a while is no burst. Of such a queue those that have
waited for long are let go, the least critical first, which takes a third of what a
refusal does; so what is served next is fresh. Their clients see CANCELLED, as where the
core ends a request. (Controlled delay: CoDel, RFC 8289; "Fail at Scale", ACM Queue
2015.)
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from lbclient import wire
from lbclient.admission import PATIENCE
from lbclient.criticality import DEFAULT, Criticality, parse
from lbclient.protocols import Clock

Metadata = Iterable[tuple[str, str | bytes]]

# Requests that the core is asked for ahead of time, and so hands over at once: as a
# rule, and at most where handlers have the loop for long. There they are twice as many
# each time that all of them came.
FEW, MOST = 16, 1024
EAGER = 1.0  # seconds since handlers had the loop for long
# Seconds for which the queue is not empty until it is no burst. A turn of the loop
# counts for STEP at most: much comes during a stall, and is soon worked off.
STANDING, STEP = 0.5, 0.02
# Seconds that a SHEDDABLE request may wait then; the others by `PATIENCE` longer.
LONGEST = 0.05
MOST_LET_GO = 100  # in one turn of the loop
# Seconds of waiting that count as one request that wants to run.
UNIT = 0.02


class Core(Protocol):
    """Where requests come from. Nobody but `metadata` looks into one."""

    def ask(
        self, take: Callable[[Any], None], fail: Callable[[BaseException], None]
    ) -> None:
        """Hands the next request to `take`, or what went wrong to `fail`, later."""

    def metadata(self, request: Any) -> Metadata:
        """What the request came with; nothing where that cannot be told."""


class Waiting(NamedTuple):
    request: Any
    since: float


class Intake:
    """Owned by the server, used on its loop's thread only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._core: Core | None = None
        self._waiting: deque[Waiting] = deque()
        self._asked = 0
        self._ahead = FEW // 2
        self._wanted: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        self._is_closed = False
        self._eager_until = 0.0
        self._handed_at = 0.0
        self._stood = 0.0  # seconds for which it was not empty
        self._times_asked = self._missing = 0
        self.taken = 0  # requests, whatever becomes of them
        self.let_go = 0

    def take_from(self, core: Core) -> None:
        self._core = core

    def be_eager(self, now: float) -> None:
        """Handlers have the loop for long: for a while all is taken that comes."""
        self._eager_until = now + EAGER

    def __len__(self) -> int:
        return len(self._waiting)

    def load(self, now: float) -> float:
        """Requests that wait, by how long the first of them has."""
        if not self._waiting:
            return 0.0
        return min(len(self._waiting), (now - self._waiting[0].since) / UNIT)

    async def next(self) -> Any:
        """The request to be served next, once there is one.

        Raises what the core says if it has no more.
        """
        self._ask()
        while not self._waiting:
            self._stood = 0.0
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            self._wanted = asyncio.get_running_loop().create_future()
            await self._wanted
            if self._is_closed:
                self._ask()  # else nothing tells that the core has ended
        now = self._clock()
        self._stood += min(now - self._handed_at, STEP)
        self._handed_at = now
        if self._stood >= STANDING:
            self._let_go_stale(now)
        return self._waiting.popleft().request

    def was_behind(self) -> bool:
        """Whether more came each time than was asked for, since this was called.

        Then the others wait in the core. Those that come at once do not all arrive in
        one turn of the loop, so much of what was asked for is enough.
        """
        is_behind = self._missing > self._times_asked * FEW / 4
        self._times_asked = self._missing = 0
        return is_behind and not self._is_eager()

    def _is_eager(self) -> bool:
        return self._eager_until > 0.0 and self._clock() < self._eager_until

    def _ask(self) -> None:
        assert self._core is not None
        ahead = FEW
        if self._is_eager():
            if not self._asked:
                self._ahead = min(2 * self._ahead, MOST)
            ahead = self._ahead
        if ahead <= self._asked:
            return
        self._times_asked += 1
        self._missing += ahead - self._asked
        for _ in range(ahead - self._asked):
            self._asked += 1
            self._core.ask(self._take, self._fail)

    def _take(self, request: Any) -> None:
        self._asked -= 1
        self.taken += 1
        if self._is_closed:
            self.let_go += 1
            self._wake()
            return
        self._waiting.append(Waiting(request, self._clock()))
        self._wake()

    def _fail(self, error: BaseException) -> None:
        self._asked -= 1
        self._error = error
        self._wake()

    def close(self) -> None:
        """Lets all go: grpcio stops, and serves none of what waits.

        Else it would wait for them.
        """
        self._is_closed = True
        self.let_go += len(self._waiting)
        self._waiting.clear()

    def _wake(self) -> None:
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)

    def _let_go_stale(self, now: float) -> None:
        """But for one, which is to be handed over."""
        kept = []
        for _ in range(MOST_LET_GO):
            if len(self._waiting) < 2 or now - self._waiting[0].since < LONGEST:
                break
            oldest = self._waiting.popleft()
            if now - oldest.since < LONGEST * PATIENCE[self._criticality(oldest)]:
                kept.append(oldest)
            else:
                self.let_go += 1
        self._waiting.extendleft(reversed(kept))

    def _criticality(self, waiting: Waiting) -> Criticality:
        assert self._core is not None
        for key, value in self._core.metadata(waiting.request):
            if key == wire.CRITICALITY_KEY:
                return parse(value)[0]
        return DEFAULT

    def __repr__(self) -> str:
        return f"<{len(self)} wait, {self.let_go} were let go>"
