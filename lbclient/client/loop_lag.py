"""Notices that the client's own event loop stood still, as in a blocking function.

A call that begins is sent in the loop's next turn. If that comes late the deadline may
have passed by then, which says nothing of the backend. An answer that comes while the
loop stands still counts: gRPC's core receives it in threads of its own.
"""

from collections import deque
from typing import TYPE_CHECKING

from lbclient.background.tasks import Alarm, Tasks
from lbclient.core.backends.pool import Pool
from lbclient.core.protocols import Clock

if TYPE_CHECKING:
    from lbclient.client.backends.backend import Backend

# Seconds between two beats while calls are in flight. A power of two: sums are exact.
PERIOD = 0.125
# Seconds that a beat is late. Less is what a busy loop has, or a garbage collection.
STALL = 0.1
MOST_STALLS = 8  # that are remembered: as many as a call may meet while it is sent


class LoopLag:
    """Measures how late a timer of the event loop comes while calls are in flight.
    Owned by a balancer, which starts it with a call if not `is_on`. `stalled` is the
    sum, in seconds, of how late it came where it was a stall."""

    def __init__(self, tasks: Tasks, clock: Clock, pool: Pool["Backend"]) -> None:
        self.is_on = False
        self.stalled = 0.0
        self._clock = clock
        self._pool = pool
        self._alarm = Alarm(tasks, self._beat)
        self._beat_at = 0.0  # last
        # The last times that it stood still, each from the beat before it on.
        self._stalls = deque[tuple[float, float]](maxlen=MOST_STALLS)

    def start(self, now: float) -> None:
        self.is_on = True
        self._beat_at = now
        self._alarm.set(PERIOD)

    def _beat(self) -> None:
        now = self._clock()
        self._note(now)
        self.is_on = False
        # A list: a generator would run once for each backend.
        if any([one.load.in_flight for one in self._pool.nodes.values()]):  # noqa: C419
            self.start(now)

    def _note(self, now: float) -> None:
        if self.is_on and now - self._beat_at > PERIOD + STALL:
            self.stalled += now - self._beat_at - PERIOD
            self._stalls.append((self._beat_at, now))
            self._beat_at = now

    def kept_back(self, began_at: float, now: float) -> bool:
        """Whether the loop stood still when a call began that ends now, and in at least
        half of its time. It may not have been sent before it was over."""
        self._note(now)
        if not any(stood <= began_at < until for stood, until in self._stalls):
            return False
        lost = sum(
            max(0.0, until - max(stood, began_at)) for stood, until in self._stalls
        )
        return lost >= (now - began_at) / 2

    def stop(self) -> None:
        self.is_on = False
        self._alarm.clear()

    def __repr__(self) -> str:
        return f"<stood still for {self.stalled:.1f} s>"
