"""The bounded queue of calls that cannot be sent at once: the most critical first.

Calls of one criticality are served in the order in which they came. If the queue is
full, a more critical call takes the place of the last one of the least critical.

One queue serves all reasons to wait: no backend is connected yet, or every one is
at its active limit.
"""

from collections.abc import Callable
from itertools import chain, islice
from typing import TYPE_CHECKING, Protocol

from lbclient.client.backends.waking import Waking
from lbclient.config import ChannelConfig
from lbclient.core.backends.pool import Pool
from lbclient.core.call_hints import CallHints
from lbclient.core.criticality import Criticality
from lbclient.core.model import State
from lbclient.core.outliers.outliers import Outliers
from lbclient.core.protocols import Clock
from lbclient.wire.local_errors import BackendsFull, LocalRpcError, NoBackend

if TYPE_CHECKING:
    from lbclient.client.backends.backend import Backend

MOST_SCANNED = 100  # waiting calls that are looked at for one that can be sent

# The backend for a call that is sent now, by the counts of its method and by what its
# picker may know of it; None: it waits.
Choose = Callable[[float, dict[int, int], CallHints | None], "Backend | None"]


class Waiter(Protocol):
    """A call without a backend."""

    wait_for_ready: bool
    criticality: Criticality
    counts: dict[int, int]

    @property
    def hints(self) -> CallHints | None:
        """What its picker may know of it."""

    def start(self, backend: "Backend", now: float) -> None: ...
    def fail(self, error: LocalRpcError) -> None: ...
    def cancel(self) -> bool: ...


class Pending:
    """Queues calls that no backend can take yet, the most critical first. Owned by the
    balancer, which reports changes.

    `waking` connects inactive backends. `trouble` returns what is wrong with the
    resolver if calls have nothing to wait for; an empty text while its first answer may
    still come.
    """

    def __init__(
        self,
        pool: Pool["Backend"],
        outliers: Outliers["Backend"],
        config: ChannelConfig,
        waking: Waking,
        clock: Clock,
        choose: Choose,
        trouble: Callable[[], str],
    ) -> None:
        self._trouble = trouble
        self._waking = waking
        self._pool = pool
        self._outliers = outliers
        self._clock = clock
        self._choose = choose
        self._config = config
        self.waiters: dict[Waiter, None] = {}  # in order of arrival; only read it
        self._queues: tuple[dict[Waiter, None], ...] = tuple({} for _ in Criticality)
        self._pausing: dict[Waiter, None] = {}  # those that a backend told to wait

    def __len__(self) -> int:
        return len(self.waiters)

    # --- who is next ------------------------------------------------------------

    def serve(self) -> None:
        """Starts who has a backend now; dismisses who has none to wait for."""
        now = self._clock()
        while self._pool.ready and (waiter := self._next()) is not None:
            backend = self._choose(now, waiter.counts, waiter.hints)
            if backend is None:
                break
            # To choose can find a connection lost, and so come here once more.
            if waiter not in self.waiters:
                continue
            self.leave(waiter)
            waiter.start(backend, now)
        if not self._pool.ready:
            self.dismiss_hopeless()

    def has_ready(self) -> bool:
        """Whether one of the calls that wait has a ready backend: all who are not
        ejected may be full."""
        if not self._outliers.count:
            return bool(self._pool.ready)
        return self._next() is not None

    def _next(self) -> Waiter | None:
        """The next waiter; of another method if the ready backends are ejected for its
        own."""
        outliers = self._outliers
        in_order = chain.from_iterable(reversed(self._queues))
        if not outliers.count:
            return next(in_order, None)
        first = islice(in_order, MOST_SCANNED)
        return next((each for each in first if outliers.allowed(id(each.counts))), None)

    # --- who waits ----------------------------------------------------------------

    def join(self, waiter: Waiter) -> None:
        """Lets a call wait; fails it at once where that is hopeless or forbidden."""
        self._waking.wake_for(self)
        error = self._refusal(waiter)
        if error is not None:
            waiter.fail(error)
            return
        loser: Waiter | None = None
        if len(self) >= self._config.max_waiting:
            error = BackendsFull.because(
                f"{self._pool!r}, and {len(self)} calls wait already (max_waiting)"
            )
            loser = self._last_below(waiter.criticality)
            if loser is None:
                waiter.fail(error)
                return
            self.leave(loser)
        self.waiters[waiter] = self._queues[waiter.criticality][waiter] = None
        if loser is not None and error is not None:
            loser.fail(error)  # last, as whoever hears of it may call again

    def _last_below(self, criticality: Criticality) -> Waiter | None:
        for queue in self._queues[:criticality]:
            if queue:
                return next(reversed(queue))
        return None

    def leave(self, waiter: Waiter) -> None:
        self.waiters.pop(waiter, None)
        self._queues[waiter.criticality].pop(waiter, None)

    def dismiss_hopeless(self) -> None:
        """Fails the calls for which nothing is left to wait for."""
        if self.waiters:
            self._waking.wake_for(self)
        for waiter in list(self.waiters):
            error = self._refusal(waiter)
            if error is not None and waiter in self.waiters:
                self.leave(waiter)
                waiter.fail(error)

    def has_room_to_pause(self) -> bool:
        return len(self._pausing) < self._config.max_waiting

    def pause(self, waiter: Waiter) -> None:
        """A backend told the call to wait; it comes back after that, to join or not."""
        self._pausing[waiter] = None

    def resume(self, waiter: Waiter) -> None:
        del self._pausing[waiter]

    def count(self) -> int:
        """How many calls have no backend now, with those that were told to wait."""
        return len(self.waiters) + len(self._pausing)

    def cancel(self) -> None:
        for waiter in [*self.waiters, *self._pausing]:
            waiter.cancel()

    def _refusal(self, waiter: Waiter) -> LocalRpcError | None:
        """Why a call cannot wait; None if it can.

        The order of hope: a ready backend, a lame duck, one that is connecting or
        starting, and for calls that wait for ready any time to come.
        """
        pool = self._pool
        if self._config.when_full == "fail" and self._are_all_full():
            return BackendsFull.because(repr(pool))
        if waiter.wait_for_ready or pool.is_promising():
            return None
        if pool.nodes or self._trouble():
            return NoBackend.because(self.situation())
        return None

    def situation(self) -> str:
        """What calls wait for: how many backends are ready, and where none is, what
        keeps one of them, or the resolver."""
        pool = self._pool
        if pool.counts[State.READY]:
            return repr(pool)
        if pool.nodes:
            node = next(iter(pool.nodes.values()))
            return f"{pool!r} (as {node.endpoint.address}: {node.condition.reason})"
        if trouble := self._trouble():
            return f"{trouble} ({pool!r})"
        return f"{pool!r}, as the resolver has not answered yet"

    def _are_all_full(self) -> bool:
        """Whether all connected backends are full, and no other can wake."""
        pool = self._pool
        has_room = pool.counts[State.INACTIVE] > 0 or bool(self._waking.waking)
        return pool.full() > 0 and not has_room
