"""Takes requests from gRPC's core, several at once, and hands them to grpcio.

gRPC's core keeps the requests that have arrived in a queue of its own and hands over
one for each that it was asked for. grpcio asks for one at a time. Here several are
asked for at once, which takes less time for each, and so that a burst finds room: of
more than 600 that wait in the core it ends some. There is a bound on those that
are asked for and those that wait here, together: the core's events come one after the
other, and events of requests that have begun must not wait behind new requests.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from lbclient.server.overload.ranks import Ranks


class Bounds(NamedTuple):
    ahead: int  # requests asked for that have not come, at most
    most: int  # requests asked for that grpcio does not serve yet, at most


# With room for a burst. No more are asked for ahead: where a loop is closed and nobody
# has stopped its server, grpcio logs an error for each.
READY = Bounds(ahead=768, most=4096)
# For a queue that stands: what is still in the core it can end, at no cost. In a turn
# of the loop some sixteen come: a server that asked for fewer took 0.2 times more CPU
# for each of 64 calls at a time.
BEHIND = Bounds(ahead=16, most=64)
# For one of which most is dropped, which takes little time. Beside clients that leave
# the loop half of a core more may come than it can drop. With 256 a turn was so long
# that all that was let in came too late: it takes several turns to serve a request.
# With 64 the core ended a quarter of the most critical at ten times the capacity.
DROPPING = Bounds(ahead=128, most=512)
# In one turn of a loop that handlers keep for long so many come.
DROPPING_BESIDE_LONG = Bounds(ahead=256, most=512)
LAST_ANSWERS = 1.0  # seconds that a stopped core may take for them
# Requests that grpcio is handed in one turn of the loop, at most. Where much is dropped
# turns are long, and with fewer the processor would go to dropping alone. More would
# all begin before anybody looks for who has come since.
EACH_TURN = 8
# Where handlers keep the loop for long: others are refused by how many wait in the run
# queue, which a request enters some turns after it was handed on.
EACH_LONG = 1
BATCH = 8  # requests, at least, that are asked for at once


class Core(Protocol):
    """The source of requests, whose contents nobody here looks into."""

    drop_seconds: float  # of the loop, for one that nobody kept; 0.0: not known yet

    def ask(
        self, take: Callable[[Any], bool], fail: Callable[[BaseException], None]
    ) -> None:
        """Hands the next request to `take`, which says whether it keeps it, or what
        went wrong to `fail`, later."""


class Intake:
    """Takes requests from gRPC's core, several at once, and hands them to grpcio. Owned
    by the server, used on its loop's thread only."""

    def __init__(self) -> None:
        self._core: Core | None = None
        self._waiting: deque[Any] = deque()
        self._bounds = BEHIND
        self.asked = 0  # requests that have not come
        self._wanted: asyncio.Future[Any] | None = None  # grpcio waits for it
        self._handed_on = 0  # in this turn of the loop, of those that waited
        self.each_turn = EACH_TURN
        self._error: BaseException | None = None
        self._none_asked: asyncio.Future[None] | None = None
        self._is_leaving = self._is_closed = False
        self._times_asked = self._times_all_came = 0  # since `was_behind` was called
        self.taken = 0  # requests, whatever becomes of them
        self.dropped = 0  # of them, as they came
        self.dropped_at_stop = 0  # requests, which grpcio serves no more
        # Returns what to drop for a request that has arrived: that request, a waiting
        # one, whose place it then takes, or None. gRPC's core ends what is dropped.
        # None in place of the function: nothing is dropped.
        self.drops: Callable[[Any], Any] | None = None
        self.ranks = Ranks()  # of what waits, as long as some are dropped

    def take_from(self, core: Core) -> None:
        self._core = core

    @property
    def drop_seconds(self) -> float:
        """Seconds of the loop that it takes to drop a request; 0.0: not known yet."""
        return 0.0 if self._core is None else self._core.drop_seconds

    def __len__(self) -> int:
        return len(self._waiting)

    def next(self, future: "asyncio.Future[Any]") -> None:
        """Gives the future the next request, once there is one, or what the core says
        if it has no more."""
        self._wanted = future
        self._ask()
        if not self._waiting:
            if self._error is not None or self._is_closed:
                self._hand_on()
        elif self._handed_on < self.each_turn:
            if not self._handed_on:
                asyncio.get_running_loop().call_soon(self._begin_turn)
            self._handed_on += 1
            self._hand_on()

    def _begin_turn(self) -> None:
        self._handed_on = 0
        if self._wanted is not None and not self._wanted.done():
            self.next(self._wanted)

    def keep_within(self, bounds: Bounds) -> None:
        """Sets the bounds, for whoever knows how long requests wait."""
        if self._is_leaving:
            return
        self._bounds = bounds
        if self._core is not None:
            self._ask()

    def sift(self) -> None:
        """Drops of what waits what would be dropped if it came now."""
        waiting, self._waiting = self._waiting, deque()
        self.ranks.clear()
        for request in waiting:
            self._keep(request)

    def ask_for_few(self) -> None:
        """Asks for few requests from now on: the server will stop.

        Before gRPC's core sends GOAWAY it answers for each request that it was asked
        for, and what arrives meanwhile is lost. For 768 it takes 2 to 8 ms.
        """
        self._bounds = BEHIND
        self._is_leaving = True

    def was_behind(self) -> bool:
        """Whether more requests waited in the core than it was asked for, since the
        last call.

        The core hands over requests soon after they arrive. So if requests wait in the
        core, everything that was asked for has arrived when the next ones are asked
        for; if none wait, the core still owes some. Events may be late, so this need
        not hold each time: at least half of the times since the last call are enough.
        """
        was_behind = 0 < self._times_asked <= 2 * self._times_all_came
        if not self._times_asked and not self.asked and self._waiting:
            was_behind = True  # so many wait here that none could be asked for
        self._times_asked = self._times_all_came = 0
        return was_behind

    def _ask(self) -> None:
        assert self._core is not None
        ahead, most = self._bounds
        missing = ahead - self.asked
        if missing < BATCH or len(self._waiting) > most - ahead:
            return
        self._times_asked += 1
        self._times_all_came += not self.asked
        for _ in range(missing):
            self.asked += 1
            self._core.ask(self._take, self._fail)

    def _take(self, request: Any) -> bool:
        self.asked -= 1
        self.taken += 1
        if self._is_closed:
            self.dropped_at_stop += 1
        elif self.drops is None:
            self._waiting.append(request)
        elif not self._keep(request):
            if not self.asked:  # nobody else asks
                self._ask()
            return False
        self._wake()
        return True

    def _keep(self, request: Any) -> bool:
        """Whether it waits from now on; what is dropped for it does not."""
        dropped = None if self.drops is None else self.drops(request)
        self.dropped += dropped is not None
        if dropped is request:
            return False
        if dropped is None:
            self._waiting.append(request)
        else:
            self.ranks.remove(dropped)
            self._waiting[self._waiting.index(dropped)] = request
        return True

    def _fail(self, error: BaseException) -> None:
        self.asked -= 1
        self._error = error
        self._wake()

    def close(self) -> None:
        """Drops what waits, and what still comes: grpcio stops, and serves none of it.

        A server that stops would wait for requests that it holds.
        """
        self.ask_for_few()
        self._is_closed = True
        self.dropped_at_stop += len(self._waiting)
        self._waiting.clear()
        self.ranks.clear()

    async def ended(self) -> None:
        """Waits until the core has answered for everything it was asked for, or for
        some time.

        To be awaited after the core has shut down: later answers would come to a loop
        that may be closed.
        """
        if self.asked:
            self._none_asked = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._none_asked,), timeout=LAST_ANSWERS)

    def _wake(self) -> None:
        if not self.asked and self._none_asked and not self._none_asked.done():
            self._none_asked.set_result(None)
        if self._handed_on < self.each_turn:
            self._hand_on()

    def _hand_on(self) -> None:
        """Hands the next request to whoever waits for it."""
        wanted = self._wanted
        if wanted is None or wanted.done():
            return
        if self._waiting:
            request = self._waiting.popleft()
            if self.drops is not None:
                self.ranks.remove(request)
            wanted.set_result(request)
        elif self._error is not None:
            error, self._error = self._error, None
            wanted.set_exception(error)
        elif self._is_closed:
            self._ask()  # else nothing tells that the core has ended

    def __repr__(self) -> str:
        return f"<{len(self)} wait, {self.dropped_at_stop} were dropped at stop>"
