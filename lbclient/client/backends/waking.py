"""Chooses which inactive backends to reconnect when calls need them.

The best first: those that are well, and of these the least loaded.
"""

from collections.abc import Callable, Iterator, Sized
from functools import partial
from heapq import nsmallest
from random import Random
from typing import TYPE_CHECKING

from lbclient.background.tasks import Alarm, Tasks
from lbclient.background.turns import Turns
from lbclient.core.backends.demand import SEVERAL
from lbclient.core.model import State

if TYPE_CHECKING:
    from lbclient.client.backends.backend import Backend

BEST_FIRST = (State.INACTIVE, State.STARTING, State.LAME_DUCK, State.REFUSING)

WAKE_NEXT = 0.25  # seconds; as between two attempts to connect in RFC 8305


class Waking:
    """Reconnects inactive backends when calls need them. Owned by a balancer, which
    reports every change.

    `away` backends have no connection on purpose. `waking` backends were asked to
    connect, and have neither connected nor failed yet. Both are counted here, because
    every call may read the counts.
    """

    def __init__(
        self,
        tasks: Tasks,
        turns: Turns,
        rng: Random,
        has_ready: Callable[[], bool],
    ) -> None:
        """`has_ready`: whether a call that waits has a backend that is ready."""
        self.away: dict[Backend, None] = {}
        self.waking: dict[Backend, None] = {}
        self._has_ready = has_ready
        self._turns = turns
        self._rng = rng
        self._patience = Alarm(tasks, self._wake_more)
        self._more = Alarm(tasks, self._wake_enough)
        self._waiting: Sized = ()

    # --- what happened ----------------------------------------------------------

    def update(self, backend: "Backend") -> None:
        """Takes the present state of a backend, which may have changed."""
        if backend.lifecycle.is_away():
            self.away[backend] = None
        elif self.away:
            self.away.pop(backend, None)
        if backend.lifecycle.is_waking():
            self.waking[backend] = None
        elif self.waking:
            self.waking.pop(backend, None)

    def forget(self, backend: "Backend") -> None:
        self.away.pop(backend, None)
        self.waking.pop(backend, None)

    # --- calls ------------------------------------------------------------------

    def wake_for(self, waiting: Sized) -> None:
        """Opens a connection for the calls that wait, and more for many calls: the
        first now, the others when all calls of this turn have come."""
        self._waiting = waiting
        if not self.away or self._has_ready():
            return
        if not self.waking:
            self._wake_enough()
        elif len(self.waking) < self._needed():
            self._more.set_unless_sooner(0.0)

    def _needed(self) -> int:
        return 1 + len(self._waiting) // SEVERAL

    def _wake_enough(self) -> None:
        missing = self._needed() - len(self.waking)
        if missing > 0 and not self._has_ready():
            self.wake(missing)
            self._patience.set_unless_sooner(WAKE_NEXT)

    def _wake_more(self) -> None:
        """Wakes another backend, as none that was woken has connected or failed yet and
        calls wait."""
        if self._waiting and not self._has_ready():
            self.wake(1)
            self._patience.set(WAKE_NEXT)

    def wake(self, count: int) -> None:
        """Reconnects so many backends, the best ones first."""
        for backend in self._best(count):
            self.wake_one(backend)

    def wake_slowly(self, count: int) -> None:
        """As `wake`, a few in each turn of the loop: no call waits for them."""
        for backend in self._best(count):
            self._turns.do(partial(self.wake_one, backend))

    def wake_one(self, backend: "Backend") -> None:
        """Reconnects this backend, if it has no connection on purpose."""
        if backend in self.away:
            backend.connect()
            self.update(backend)

    def _best(self, count: int) -> Iterator["Backend"]:
        def rank(backend: "Backend") -> tuple[int, float, float]:
            told = backend.load.utilization() or 1.0  # unknown is not idle
            state = BEST_FIRST.index(backend.state)
            # Rounded, as others with the same reports wake too: not all the same one.
            return state, round(told, 1), self._rng.random()

        yield from nsmallest(count, self.away, key=rank)

    def close(self) -> None:
        self._patience.clear()
        self._more.clear()

    def __repr__(self) -> str:
        return f"<{len(self.away)} away, {len(self.waking)} waking>"
