"""Estimates how many requests gRPC's core ended before Python saw them.

Of more than 600 that wait at once the core ends some. It counts the calls that
it has begun, for channelz: less those that were taken from it, and those that wait in
it still, they are the ended ones. Asking takes 0.1 ms, and 35 ms where a thousand
clients are connected: the core looks at every connection. So it is asked only while as
much comes as could fill the core's queue, and once when that is over; and never for
more than a small share of the loop's time.
"""

from collections.abc import Callable
from math import inf
from time import thread_time

# Requests since the last sample: more may have come than were asked for. And requests
# that are asked for at once: events of so many take a while.
MANY = 64
# Seconds since more waited than was asked for, and since anything came, until it is
# certain that none does.
PAUSE = 1.0
# Until it is likely, and between two questions while much comes. What the core ended
# since the last sample looks as if it waited. If it did so for longer, a server would
# refuse for it when a flood is over.
OVER = 0.3
LATE = 0.3  # seconds between two samples: the loop stood still
# Of the loop's time, at most, for questions. A loop that stands still for them is late
# for what comes, looks as if much came, and asks again.
SHARE = 0.02


class Unseen:
    """Estimates how many requests gRPC's core ended before Python saw them. Owned by
    the server, used on its loop's thread only."""

    def __init__(self, cpu_time: Callable[[], float] = thread_time) -> None:
        """`cpu_time`: seconds of processor that this thread has had."""
        self._cpu_time = cpu_time
        self._read: Callable[[], int | None] = lambda: None
        self.most: float = 0  # that may wait in the core
        self.ended = 0  # never less than before
        self._taken = 0  # as of the last sample
        self._is_owed = False  # the question when it is over
        self._asked_at = self._sampled_at = 0.0
        self._next_at = -inf  # as of `SHARE`
        self._came_at = 0.0  # when anything was taken
        self._was_over = True  # when it was last asked
        self._behind_at = -inf  # when more waited than was asked for
        # The best guess at what `ended` is: that never is too high, this may be.
        self._likely_ended = 0
        self.waiting = 0  # in the core, or asked for and on their way

    def count_by(self, read: Callable[[], int | None], most: float) -> None:
        """`read` says how many calls have begun, or None where that is not known.

        The core ends a call where more than `most` wait.
        """
        self._read, self.most = read, most + 1

    def count(self, taken: int) -> int | None:
        """Requests that wait in the core or were ended there; None: unknown."""
        began = self._read()
        return None if began is None else began - taken

    def sample(
        self,
        now: float,
        taken: int,
        asked: int,
        is_behind: bool,
        is_prompt: bool = False,
    ) -> None:
        """Updates `ended` and `waiting`. Called ten times a second.

        `is_behind`: more requests wait in the core than it was asked for. Requests that
        were `asked` for may be on their way. `is_prompt`: they are there in the next
        turn of the loop. So where some have not come, none wait in the core.
        """
        came, self._taken = taken - self._taken, taken
        is_over = self._notice(now, came, is_behind)
        before, self.waiting = self.waiting, 0
        if not self._should_ask(now, came, is_over):
            return
        if now < self._next_at:
            self.waiting = 0 if is_over else before
            return
        unseen = self._ask(now, taken)
        # Nothing has waited, and nothing has come, for so long.
        is_certain = now >= max(self._behind_at, self._came_at) + PAUSE
        if is_certain:
            self._is_owed = False
        if unseen is None:
            return
        surely = unseen if is_certain else self._beyond(unseen, asked)
        self.ended = max(self.ended, surely)
        # Where many are asked for and come late, whether they come at once tells
        # nothing. So all that have begun wait, but for those that were taken and those
        # that surely ended.
        is_unclear = asked >= MANY and not (is_prompt or is_certain)
        if is_unclear and unseen >= self._likely_ended + MANY:
            self._behind_at = now
            is_over = False
        self._was_over = is_over
        if is_over and not is_unclear:
            self._likely_ended = unseen
        else:
            least = max(self._likely_ended, self._beyond(unseen, asked))
            self._likely_ended = min(unseen, least)
            self.waiting = 0 if is_over else unseen - self._likely_ended

    def _notice(self, now: float, came: int, is_behind: bool) -> bool:
        """Notes whether more waited than was asked for. Returns whether that is over.

        That nothing comes does not mean that nothing waits: while a handler has the
        loop nothing does, and beside many requests that have begun it comes late.
        """
        stood_still = now > self._sampled_at + LATE
        self._sampled_at = now
        if is_behind or stood_still:
            self._behind_at = now
        if came or stood_still:
            self._came_at = now
        if came >= MANY or is_behind:
            self._is_owed = True
        return now >= self._behind_at + OVER

    def _should_ask(self, now: float, came: int, is_over: bool) -> bool:
        """Once it is over it is asked once; again if more comes, but not at once."""
        is_early = came and is_over and now < self._asked_at + OVER
        return self._is_owed and not (is_early and self._was_over)

    def _ask(self, now: float, taken: int) -> int | None:
        """Asks, and puts off the next question by what this one took."""
        began_at = self._cpu_time()
        unseen = self.count(taken)
        self._next_at = now + (self._cpu_time() - began_at) / SHARE
        self._asked_at = now
        return unseen

    def _beyond(self, unseen: int, asked: int) -> int:
        """How many are more than can wait, so that they have surely ended."""
        return int(max(0, unseen - self.most - asked))
