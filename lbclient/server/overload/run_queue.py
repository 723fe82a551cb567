"""Starts handlers one after the other while they keep the event loop for long.

After handlers had the loop for 20 ms, it takes in all requests that have arrived; only
then the next handler starts, or the next few if each takes little. So the requests that
wait can be counted, which is the executor load average of SRE book, ch. 21, and
refused. While the task is overloaded, a new request takes the turn of a less critical
one that waits.

Without this, grpcio takes in one request in every two or three turns of the loop. Where
handlers keep the loop busy, requests would wait where Python does not see them, and be
served after their deadlines. Handlers that give the loop back soon, as almost all do,
never wait.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import exp, inf
from time import thread_time

from lbclient.core.criticality import DEFAULT, Criticality, current_or_default
from lbclient.core.protocols import Clock
from lbclient.server.overload.intake import Intake


@dataclass(frozen=True, slots=True)
class RunQueueTuning:
    """The numbers of a `RunQueue`. Ours; `python -m benchmarks.overload` measures
    them."""

    # Seconds in which handlers have the loop before it looks for arrivals. All are in
    # when in so many turns none has come: a request that is handed over takes three
    # until its handler is looked up. And in so many seconds: until one that is asked
    # for is handed over a thread of grpcio has to run.
    slice: float = 0.02
    quiet_turns: int = 5
    quiet: float = 0.0003

    # Refusing may take so many times what serving did, and no longer: else a flood
    # would leave nothing for those let in. What is left then gRPC's core ends, once it
    # has more than it keeps, at much less cost.
    flood: float = 1.0

    # Where nobody has to wait one turn is timed so often; all are if they take this
    # long.
    clear: float = 0.005  # seconds
    touchy: float = 0.001

    # Seconds. A handler that has the loop for less is left alone: turns would take a
    # good part of what it does, and the loop looks for arrivals often enough without
    # them.
    long: float = 0.002
    # Seconds of CPU, of each turn, beside which a refusal takes little. Not of the
    # clock: on a busy machine a turn may take long by waiting for a processor. And the
    # requests in their mean: of some one in ten takes nearly all.
    for_long: float = 0.003
    cpu_memory: int = 64
    # Seconds of CPU of the handlers that begin in one turn, where each takes less, and
    # how many these are at most. In a flood a turn drops what has come since the one
    # before, and with one handler in each dropping takes most of the time.
    several: float = 0.004
    most: int = 8
    smoothing: float = 0.2  # seconds, of how long a turn of the loop takes
    # Seconds: as long as one turn counts; more is the machine's, not ours
    stall: float = 0.3
    memory: int = 16  # requests, of what it costs to begin one

    # What takes less counts as less than a request.
    unit: float = 0.01  # seconds


TUNING = RunQueueTuning()


# Awaited by whoever waits: True is its turn, False that another one has taken that.
Turn = asyncio.Future[bool]


class Line:
    """Keeps who waits for a turn, first in, first out. Owned by a `RunQueue`."""

    def __init__(self) -> None:
        # Of each criticality by place, the first one first. Places are never equal.
        self._waiting: list[list[tuple[int, Turn]]] = [[] for _ in Criticality]
        self._places = count()
        # Of those waiting whose clients have not given up, by criticality.
        self._counts = [0] * len(Criticality)

    def wait(self, criticality: Criticality = DEFAULT, overtakes: bool = False) -> Turn:
        """Waits at the end; if it `overtakes`, in the place of a less critical one."""
        turn: Turn = asyncio.get_running_loop().create_future()
        turn.add_done_callback(partial(self._left, criticality))
        place = self._taken_from(criticality) if overtakes else None
        place = next(self._places) if place is None else place
        heappush(self._waiting[criticality], (place, turn))
        self._counts[criticality] += 1
        return turn

    def _taken_from(self, criticality: Criticality) -> int | None:
        """The place of the first of the least critical, who loses it, if it is less.

        The first one's, and not the last one's: whoever stays waits no longer for it.
        """
        for one, waiting in enumerate(self._waiting[:criticality]):
            while waiting:
                place, turn = heappop(waiting)
                if not turn.done():
                    self._counts[one] -= 1
                    turn.set_result(False)
                    return place
        return None

    def count_below(self, criticality: Criticality) -> int:
        """How many that are less critical wait."""
        return sum(self._counts[:criticality])

    def _left(self, criticality: Criticality, turn: Turn) -> None:
        self._counts[criticality] -= turn.cancelled()

    def next(self) -> Turn | None:
        while any(self._waiting):
            firsts = [
                (each[0][0], one) for one, each in enumerate(self._waiting) if each
            ]
            _, criticality = min(firsts)
            _, turn = heappop(self._waiting[criticality])
            if not turn.done():  # else its client has given up
                self._counts[criticality] -= 1
                return turn
        return None

    def load(self, pace: float, coming: int = 0) -> float:
        """The load of those waiting, by how long the last of them will wait.

        `coming`: requests that will wait as soon as grpcio begins them.
        """
        return (len(self) + coming) * min(1.0, pace / TUNING.unit)

    def __len__(self) -> int:
        return sum(self._counts)


class HandlerCosts:
    """Measures how long handlers that wait their turns keep the loop. Owned by a
    `RunQueue`. All in seconds; only read them.

    `cost` is what one takes until it gives the loop back, and `cpu` what it runs of
    that. `pace` is from one that begins to the next: with what handlers that have begun
    do then, and what it takes to refuse others, also those whose turn it was.
    """

    def __init__(self) -> None:
        self.cost = self.pace = self.cpu = 0.0
        self._known = 0  # costs in the means, up to the longer memory
        self._began_at: float | None = None  # the last ones, if the next one waits
        self._began = 1  # so many

    def observe(self, took: float, cpu: float, now: float, count: int = 1) -> None:
        """So many handlers gave the loop back, after so many seconds together."""
        self._known = min(self._known + count, TUNING.cpu_memory)
        self.cost += (took - count * self.cost) / min(self._known, TUNING.memory)
        self.cpu += (cpu - count * self.cpu) / self._known
        before, self._began_at = self._began_at, now - took
        if before is not None:
            passed = self._began_at - before
            self.pace += (passed - self._began * self.pace) / TUNING.memory
        self._began = count

    def pause(self) -> None:
        """Nobody waits: until the next one it takes what it takes."""
        self._began_at = None

    def each(self) -> float:
        return max(self.cost, self.pace)

    def in_turn(self) -> int:
        """How many handlers may begin in one turn of the loop."""
        if not self.cpu:
            return 1
        return max(1, min(TUNING.most, int(TUNING.several / self.cpu)))

    def __repr__(self) -> str:
        return f"<{self.cost:.4f} s each, one in {self.pace:.4f} s>"


class Lull:
    """Tells when all requests that have arrived are in, by turns in which none came.
    Owned by a `RunQueue`, which asks in each turn of the loop."""

    def __init__(self) -> None:
        self._seen = 0  # requests that have arrived
        self._turns = 0
        self._since = self._give_up_at = 0.0

    def begin(self, arrived: int, took: float, now: float) -> None:
        """Handlers had the loop; the last one for so long."""
        self._seen, self._turns, self._since = arrived, 0, now + TUNING.quiet
        self._give_up_at = now + TUNING.flood * min(
            max(TUNING.slice, took), TUNING.stall
        )

    def has_come(self, arrived: int, is_pending: bool, now: float) -> bool:
        """Whether all are in, or have kept coming for so long that this must do.
        `is_pending`: some are on their way."""
        if arrived != self._seen or is_pending:
            self._seen, self._turns, self._since = arrived, 0, now + TUNING.quiet
        else:
            self._turns += 1
        is_quiet = self._turns >= TUNING.quiet_turns and now >= self._since
        return is_quiet or now >= self._give_up_at

    def __repr__(self) -> str:
        return f"<nothing came in {self._turns} turns>"


class RunQueue:
    """Queues requests and streams while handlers keep the event loop for long, and
    starts them one after the other. Owned by the server, used on its loop's thread
    only.

    `enter` says whether a request has to wait; after it, `refuse` says that its handler
    did not run. `load` and `wait` measure the queue.
    """

    def __init__(
        self,
        clock: Clock,
        intake: Intake | None = None,
        is_overloaded: Callable[[], bool] = lambda: False,
        cpu_time: Callable[[], float] = thread_time,
    ) -> None:
        """`is_overloaded`: whether a more critical request may take the turn of a less
        critical one."""
        self._clock = clock
        self._cpu_time = cpu_time
        self._is_overloaded = is_overloaded
        self._intake = Intake() if intake is None else intake
        # Who is new, and streams that go on. They take turns: streams that want all
        # of the loop, however many, leave half of it to who is new.
        self._new, self._going_on = Line(), Line()
        self._was_new = False  # the last whose turn it was
        self.is_closed = False  # whoever comes has to wait
        self._busy = 0.0  # seconds since arrivals were looked for
        self._turn_at: float | None = None  # when the turn that is timed began
        # Who comes before then need not ask. (No method: this is in the hot path.)
        self.clear_until = -inf
        self._begun = 0  # in the turn that is timed
        self.arrived = 0  # requests, whatever becomes of them: others count them here
        self._lull = Lull()
        self._costs = HandlerCosts()
        self._woken = self._refused = 0  # whose turn it is, and who of them was refused
        self._ran = 0.0  # the loop's thread, when that turn began
        self._lag = 0.0  # seconds that a turn takes
        self._lag_at = 0.0
        self.streams = 0  # that are open
        self._stepped = 0.0  # steps of streams that took long, in what the lag is of

    def enter(self, now: float) -> Turn | None:
        """What a new handler must wait for, or None if it may begin at once."""
        if not self.is_closed and self._turn_at is not None:
            took = now - self._turn_at
            if took >= TUNING.slice and took >= TUNING.long * self._begun:
                # Many have come at once: those of this turn had the loop for so long.
                self._look_for_arrivals(now, took)
        if self.is_closed:
            return self._new.wait(current_or_default(), self._is_overloaded())
        if now < self.clear_until:
            return None
        self._begin(now)
        return None

    def go_on(self) -> Turn:
        """While the queue is closed: what a stream with long steps waits for."""
        return self._going_on.wait()

    def stepped(self, began_at: float) -> None:
        """A step of a stream took long, whether or not it was the stream's turn."""
        self._stepped += 1.0
        if not self.is_closed:
            self._begin(began_at)

    def _begin(self, now: float) -> None:
        self._begun += 1
        if self._turn_at is None:
            self._turn_at = now
            self._begun = 1
            asyncio.get_running_loop().call_soon(self._end_turn)

    def load(self, now: float, active: float) -> float:
        """Requests that run or wait to; `active` are in progress.

        It counts those that a new request has to wait for: of the streams that wait,
        one for each turn. Streams that have not used the loop for long lately do not
        count.
        """
        coming = self._coming()
        if not (len(self) or coming) and self._lag < TUNING.unit:
            return 0.0  # as good as: less than one
        new = self._new.load(self._costs.each(), coming)
        queued = new + min(self.of_streams(), new + 1.0)
        active -= max(0.0, self.streams - self._stepped)
        return max(queued, min(active, self._lag_now(now) / TUNING.unit))

    def unseen(self, now: float) -> float:
        """Seconds for which who comes waits until anybody here sees it, at most.

        While others wait for their turns, a handler may have had the loop meanwhile.
        """
        return self._lag_now(now) if self.is_closed else 0.0

    def _lag_now(self, now: float) -> float:
        return self._lag * exp(min(0.0, self._lag_at - now) / TUNING.smoothing)

    def wait(self) -> float:
        """Seconds that a new request would wait until its handler is done.

        0.0 if nobody else waits: then it takes what it takes.
        """
        waiting = len(self._new) + self._coming()
        return (waiting + 1) * self._costs.pace if waiting else 0.0

    def _coming(self) -> int:
        """Requests that were let in before grpcio has seen them, in a flood: many come
        in one turn of the loop, and what is let in must count for the next one."""
        return len(self._intake.ranks) if self.is_for_long else 0

    @property
    def is_for_long(self) -> bool:
        """Whether those that waited their turns had a processor for long, each."""
        return self.cpu >= TUNING.for_long

    @property
    def cpu(self) -> float:
        """Seconds of CPU that those that waited their turns took, each."""
        return self._costs.cpu

    def stream_began(self) -> None:
        self.streams += 1

    def stream_ended(self, _task: object) -> None:
        """A done callback of the task in which it began."""
        self.streams -= 1

    def of_streams(self) -> float:
        """The load of the streams that wait to go on, before a new one adds to it."""
        return self._going_on.load(self._costs.each())

    def __len__(self) -> int:
        return len(self._new) + len(self._going_on)

    @property
    def new(self) -> int:
        """How many requests wait for their turns to begin."""
        return len(self._new)

    def count_ahead(self, criticality: Criticality) -> int:
        """How many requests that are to begin a new one waits for: it takes the place
        of the less critical."""
        return len(self._new) - self._new.count_below(criticality)

    def refuse(self) -> None:
        """A request whose turn it is was refused: its time is no handler's cost."""
        self._refused += 1

    def _end_timing(self) -> tuple[float, float]:
        """Ends the timing of a turn. Returns the time, and how long it took."""
        now = self._clock()
        began_at, self._turn_at = self._turn_at, None
        took = 0.0 if began_at is None else max(0.0, now - began_at)
        kept = exp(min(0.0, self._lag_at - now) / TUNING.smoothing)
        sample = min(took, TUNING.stall)
        self._lag, self._lag_at = self._lag * kept + sample * (1.0 - kept), now
        self._stepped *= kept
        return now, took

    def _end_turn(self) -> None:
        now, took = self._end_timing()
        if took >= TUNING.long * self._begun:
            self._busy += took
        if self._lag <= TUNING.touchy:
            self.clear_until = now + TUNING.clear
        if self._busy >= TUNING.slice and not self.is_closed:
            self._look_for_arrivals(now, took)

    def _look_for_arrivals(self, now: float, took: float) -> None:
        self.is_closed = True
        self.clear_until = -inf
        self._lull.begin(self.arrived, took, now)
        asyncio.get_running_loop().call_soon(self._wait_for_lull)

    def _wait_for_lull(self) -> None:
        is_pending = len(self._intake) > 0
        if not self._lull.has_come(self.arrived, is_pending, self._clock()):
            asyncio.get_running_loop().call_soon(self._wait_for_lull)
            return
        self._busy = 0.0
        self._next()

    def _next(self) -> None:
        """Lets the tasks of a few turns run their steps, and times these steps."""
        loop = asyncio.get_running_loop()
        self._woken = self._refused = 0
        most = self._costs.in_turn()
        while self._woken < most and (turn := self._next_turn()) is not None:
            if not self._woken:
                loop.call_soon(self._before_step)
            self._woken += 1
            turn.set_result(True)
        if self._woken:
            loop.call_soon(self._after_step)
        else:
            self.is_closed = False
            self._costs.pause()

    def _next_turn(self) -> Turn | None:
        for is_new in (not self._was_new, self._was_new):
            turn = (self._new if is_new else self._going_on).next()
            if turn is not None:
                self._was_new = is_new
                return turn
        return None

    def _before_step(self) -> None:
        self._turn_at, self._ran = self._clock(), self._cpu_time()

    def _after_step(self) -> None:
        now, took = self._end_timing()
        if (ran := self._woken - self._refused) > 0:
            self._costs.observe(took, self._cpu_time() - self._ran, now, ran)
        self._busy += took if took >= TUNING.long * self._woken else 0.0
        if self._busy >= TUNING.slice:
            self._look_for_arrivals(now, took)
        else:
            self._next()

    def __repr__(self) -> str:
        return f"<{len(self)} wait, {self._costs.cost:.4f} s each>"
