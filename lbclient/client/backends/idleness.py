"""Closes connections that the channel's call rate does not justify, and reopens them.

A backend without a connection is checked by UDP (SRE book, ch. 20). Calls that wait for
a backend have inactive backends reconnected; so does a growing call rate, before any
call has to wait.
"""

from collections.abc import Callable
from functools import partial
from math import inf
from random import SystemRandom
from typing import TYPE_CHECKING

from lbclient.background.tasks import Alarm
from lbclient.client.backends.connections import Connections
from lbclient.client.backends.waking import Waking
from lbclient.client.channel_context import ChannelContext
from lbclient.client.health.udp import Prober
from lbclient.core.backends.demand import Demand

if TYPE_CHECKING:
    from lbclient.client.backends.backend import Backend


class Idleness:
    """Closes connections that the call rate does not justify, and reopens them. Owned
    by a balancer, which reports every change of a backend.

    `waking` knows the inactive backends, and reconnects them for calls.
    """

    def __init__(
        self,
        context: ChannelContext,
        connections: Connections,
        calls: Callable[[], int],
        has_ready: Callable[[], bool],
    ) -> None:
        """`calls` are those that are over; `has_ready` as of `Waking`."""
        tasks, turns, config = context.tasks, context.turns, context.config
        self.waking = Waking(tasks, turns, context.rng, has_ready)
        self._pool, self._draining = connections.pool, connections.draining
        self._config = config
        self._turns = turns
        self._clock = context.clock
        self._calls = calls
        self._look = Alarm(tasks, self._look_at_use)
        self._demand = Demand(config.idle_after, context.clock())
        self._counted = 0  # calls, when it looked last
        self._rest = context.rest
        self._rest.looks.append(self._look_again)
        self._prober: Prober | None = None

    # --- backends without a connection ----------------------------------------

    def prober(self) -> Prober:
        """The channel's prober, made when a backend first wants it."""
        if self._prober is None:
            secret = self._config.udp_secret
            # The system's randomness: nobody may guess nonces.
            self._prober = Prober(SystemRandom(), secret, self._gap)
        return self._prober

    def _gap(self) -> float:
        return self._demand.gap(self._clock())

    def update(self, backend: "Backend") -> None:
        """Takes the present state of a backend, which may have changed."""
        if self._pool.has(backend):
            self.waking.update(backend)

    def forget(self, backend: "Backend") -> None:
        """The backend drains: it is not woken any more, and looked at until it is
        closed."""
        self.waking.forget(backend)
        self.look_soon()

    def wake_a_second(self) -> None:
        """Connects a second backend, to compare with, if only one is connected."""
        if len(self._pool.ready) == 1 and not self.waking.waking:
            self.waking.wake(1)

    # --- what they are used for -----------------------------------------------

    def look_soon(self) -> None:
        """Looks at intervals how much the connections are used, while there are any."""
        self._look.set_unless_sooner(self._config.health_interval / 2)

    def _look_at_use(self, is_called: bool = False) -> None:
        """Reviews all connections, closes or opens some, and sets the time of the next
        look. `is_called`: a call is about to begin, which is not counted yet."""
        now = self._clock()
        nodes = self._pool.nodes
        present = [node for node in nodes.values() if not node.lifecycle.is_away()]
        looked_at = (*present, *self._draining.values())
        for backend in looked_at:
            backend.look(now)
        calls = self._calls() + sum(backend.load.in_flight for backend in looked_at)
        if self._config.idle_after:
            self._follow_demand(present, calls, now)
        is_used = calls != self._counted
        self._counted = calls
        if not self._draining and len(self.waking.away) == len(nodes):
            return
        if is_called or is_used or any(map(_needs_looks, looked_at)):
            self.look_soon()
        else:
            self._look_when_due(present, now)

    def _look_when_due(self, present: list["Backend"], now: float) -> None:
        """Lets the channel rest, as nobody calls. The next look comes when a connection
        has been idle for long, or just before the next call is sent."""
        self._rest.begin()
        if idle_after := self._config.idle_after:
            idle = (backend.report_interval.used_at + idle_after for backend in present)
            due = min((at for at in idle if at > now), default=inf)
            pause = min(due, self._demand.due_at()) - now
            self._look.set(max(pause, self._config.health_interval / 2))

    def _follow_demand(self, present: list["Backend"], calls: int, now: float) -> None:
        """Closes connections that the call rate does not justify, or opens some that it
        does."""
        least, most = self._demand.worth(calls, now)
        if len(present) < least:
            self.waking.wake_slowly(least - len(present))
        if self._prober is not None:
            self._prober.hurry()
        too_many = max(0, len(present) - most)
        unused_since = now - self._config.idle_after
        idle = [b for b in present if b.report_interval.used_at <= unused_since]
        for backend in idle[:too_many]:
            self._turns.do(partial(self._disconnect_idle, backend))

    def _disconnect_idle(self, backend: "Backend") -> None:
        if backend.load.in_flight == 0 and self._pool.has(backend):
            backend.disconnect_idle(self._clock())
            self.waking.update(backend)

    def _look_again(self) -> None:
        """A call ends the channel's rest."""
        self.look_soon()  # even if this look fails
        self._look_at_use(is_called=True)

    def close(self) -> None:
        self._look.clear()
        self.waking.close()
        if self._prober is not None:
            self._prober.close()

    def __repr__(self) -> str:
        return f"<{len(self._pool.nodes)} backends: {self.waking!r}>"


def _needs_looks(backend: "Backend") -> bool:
    return backend.load.in_flight > 0 or not backend.report_interval.is_slowest()
