"""How many requests wait inside of gRPC, before any code in Python sees them.

grpcio takes in one request in every few turns of the loop. Where each costs little, as
in a proxy or in handlers of less than a millisecond, that is where the queue of a task
forms that has too much to do; nobody sees there how much they matter, and what is then
served has run out of time. The core counts the calls that it has begun, for channelz:
less those that have been taken in, that is the queue. It is asked ten times a second
if much comes in that takes long, and else at the end of a busy time, for those ended.
"""

import asyncio
import time
from collections.abc import Callable
from math import inf

from lbclient.protocols import Clock
from lbclient.server.run_queue import RunQueue

# Requests since the last sample, below which nobody looks: handlers that keep the loop
# busy with fewer are a `RunQueue`'s business. A look takes 0.15 to 0.4 ms.
FEW = 20
# Seconds of waiting that count as one request. Four times what a `RunQueue` counts, for
# a proxy's clients come in crowds: two hundred at once, a millisecond each, may wait.
UNIT = 0.04
PERIOD = 0.02  # seconds between looks while there is a backlog
# A number that has stayed the same, but for a few, for so many looks is no queue.
STEADY, A_FEW = 10, 2
RECENT = 0.2  # seconds since a `RunQueue` was closed: it sees what there is by itself
USUAL = 0.0005  # seconds that it takes to serve a small request, until it is known
GAIN = 1 / 4  # of the newest, in what it takes
# Seconds of the loop's processor for each request, where none is refused. What takes
# less is left alone: to refuse it takes as long as to serve it, and the core ends what
# is too much for less.
SHORT = 0.0007
# To refuse takes half as long as to serve where this matters, or longer: of those taken
# in no more than such a part is refused for the load, else a flood would leave nothing
# for those let in. What there is no room for then the core ends, whatever it is worth.
MOST_REFUSED = 0.6
# While many wait the loop has the processor for so much of the time, or something else
# keeps it from taking samples for so many seconds.
BUSY, LATE = 0.5, 0.2
PATIENCE = 1.0  # seconds until it is told how many the core ended, while that goes on
MORE, LESS = 1.1, 0.9  # by which the load is held back, at a look
FULL = 0.9  # of what may wait


class Backlog:
    """Owned by the server, used on its loop's thread only."""

    def __init__(
        self, queue: RunQueue, clock: Clock, cpu: Clock = time.thread_time
    ) -> None:
        self._queue = queue
        self._clock = clock
        self._read_cpu = cpu
        self._read: Callable[[], int | None] = lambda: None
        self._most = 0
        self.refused = 0  # requests, for the load: the gate says so
        self.ended = 0  # by the core, unseen; never less than before
        # As of the last look:
        self._at = 0.0
        self._began: int | None = None
        self._arrived = 0
        self._refused = 0
        self._lost = 0  # began, and never arrive: the core has ended them
        self._waiting = 0
        self._rate = 0.0  # at which they come, a second
        self._cost = USUAL  # seconds until the next one is taken in
        self._cpu = 0.0  # seconds that the loop had, as of the last look
        self._served = 0.0  # of these, for each request that is served
        self._limit = inf  # of the load
        self._is_watching = False
        # A look, which a `RunQueue` made vain, or a busy time in which none was needed.
        self._is_owed = False
        self._owed_at = 0.0
        self._mark = 0  # waited, since so many looks
        self._steady = 0

    def count_by(self, read: Callable[[], int | None], most: int) -> None:
        """`read` says how many calls have begun, or None where that is not known.

        If `most` of them wait the core ends what comes.
        """
        self._read, self._most = read, most

    def count_unseen(self) -> int | None:
        """Requests that wait in gRPC now, and all that it ended unseen; None: nobody
        knows."""
        began = self._read()
        return None if began is None else began - self._queue.arrived

    def sample(self, now: float) -> None:
        """Ten times a second."""
        if self._is_watching:
            return
        came, cpu = self._queue.arrived - self._arrived, self._read_cpu()
        if came >= FEW and max((cpu - self._cpu) / came, self._served) >= SHORT:
            self._look(now)
            self._follow()
            return
        # What is short is left alone; how many of those the core ended is told later.
        is_busy = self._was_busy(now - self._at, came, cpu - self._cpu)
        is_due = not is_busy or now >= self._owed_at + PATIENCE
        if self._is_owed and is_due and not self._is_recent(now):
            self._count(self._read())
        if is_busy and not self._is_owed:
            self._is_owed, self._owed_at = True, now
        self._at, self._arrived, self._began = now, self._queue.arrived, None
        self._cpu, self._refused, self._served = cpu, self.refused, 0.0
        self._waiting = 0

    def load(self, now: float) -> float:
        """Requests that wait, by how long that takes."""
        if not self._waiting or self._served < SHORT:
            return 0.0
        came = self._rate * min(now - self._at, PERIOD)
        went = self._queue.arrived - self._arrived
        waiting = min(self._waiting + came, self._most) - went
        return max(0.0, min(waiting, waiting * self._cost / UNIT, self._limit))

    def _look(self, now: float) -> None:
        before, arrived, began = self._began, self._queue.arrived, self._read()
        cpu, self._cpu = self._cpu, self._read_cpu()
        gain = GAIN if self._is_watching else 1.0
        if arrived > self._arrived and self.refused == self._refused:
            served = (self._cpu - cpu) / (arrived - self._arrived)
            self._served += (served - self._served) * gain
        self._is_owed = began is not None and self._is_recent(now)
        if began is None or self._is_owed:
            self._waiting = 0
        else:
            self._compute(now, arrived, before, began)
        self._at, self._began, self._arrived = now, began, arrived
        self._refused = self.refused

    def _was_busy(self, elapsed: float, came: int, used: float) -> bool:
        """Whether more than a few may have waited since the last sample."""
        return elapsed >= LATE or (came >= FEW and used >= BUSY * elapsed)

    def _is_recent(self, now: float) -> bool:
        return now < self._queue.closed_at + RECENT

    def _count(self, began: int | None) -> None:
        """After a burst: no more than so many can wait, so the rest is over."""
        self._is_owed = False
        if began is not None:
            self._lost += max(0, began - self._queue.arrived - self._lost - self._most)
            self.ended = max(self.ended, self._lost)

    def _compute(
        self, now: float, arrived: int, before: int | None, began: int
    ) -> None:
        """How many wait, how fast they come, and what each takes."""
        elapsed, came = now - self._at, arrived - self._arrived
        if before is not None and elapsed > 0.0:
            self._rate = (began - before) / elapsed
        if self._is_watching and came:
            self._cost += (elapsed / came - self._cost) * GAIN
        elif came:  # and maybe it was idle between them
            self._cost = min(elapsed / came, self._cost)
        waiting = began - arrived - self._lost
        # More than may wait: those are over. Fewer than none: they were not.
        self._lost += max(0, waiting - self._most) + min(0, waiting)
        self._waiting = min(max(0, waiting), self._most)
        self.ended = max(self.ended, self._lost)
        if self._is_watching:
            self._hold(came, self.refused - self._refused)

    def _hold(self, came: int, refused: int) -> None:
        if refused > MOST_REFUSED * came:
            held = min(self._limit, self._waiting * self._cost / UNIT)
            self._limit = max(1.0, held * LESS)  # below that nobody looks
        else:
            self._limit = min(self._limit * MORE, 1e6)

    def _follow(self) -> None:
        """Goes on while there is something to see."""
        self._is_watching = self.load(self._at) >= 1.0
        if self._is_watching:
            asyncio.get_running_loop().call_later(PERIOD, self._again)
        else:
            self._limit, self._mark, self._steady = inf, 0, 0

    def _again(self) -> None:
        try:
            self._look(self._clock())
            self._compare()
        except BaseException:
            self._is_watching = False  # `sample` begins it anew
            raise
        self._follow()

    def _compare(self) -> None:
        if abs(self._waiting - self._mark) > A_FEW or self._is_full():
            self._mark, self._steady = self._waiting, 0
            return
        self._steady += 1
        if self._steady >= STEADY:  # so many never arrive
            self._lost += self._waiting
            self.ended = max(self.ended, self._lost)
            self._waiting = 0

    def _is_full(self) -> bool:
        return self._waiting >= FULL * self._most

    def __repr__(self) -> str:
        return f"<{self._waiting} wait in gRPC, {self._cost:.4f} s each>"
