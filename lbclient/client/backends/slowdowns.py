"""Looks now and then whether requests cost a backend more than usual, and logs it.

Tells backends what requests cost the others, so that they notice it themselves.
"""

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

from lbclient.background.tasks import Alarm
from lbclient.client.backends.health_calls import HealthCalls
from lbclient.client.channel_context import ChannelContext
from lbclient.core.outliers.fleet_cost import tell_after
from lbclient.core.outliers.relative_costs import RelativeCosts
from lbclient.log import Log
from lbclient.v1 import health_pb2

if TYPE_CHECKING:
    from lbclient.client.backends.backend import Backend

logger = Log("lbclient.balancer")  # as documented, for the whole channel

JITTER = 0.75, 1.25  # of a pause: clients that began together tell one by one
PAUSE = 5.0  # seconds between two looks; servers smooth reports over 2 s


class Slowdowns:
    """Looks for backends whose requests cost more than usual, and logs them. Owned by a
    balancer, which calls `look_soon` when backends may be ready."""

    def __init__(
        self, context: ChannelContext, ready: Callable[[], "tuple[Backend, ...]"]
    ) -> None:
        self.costs = RelativeCosts()
        self._label = context.label
        self._clock = context.clock
        self._rng = context.rng
        self._ready = ready
        self._look = Alarm(context.tasks, self.look)
        self._calls = HealthCalls()
        self._rest = context.rest
        self._rest.looks.append(self.look_soon)
        # Of backends, by address: when they were told, and how many clients they have.
        self._told: dict[str, tuple[float, int | None]] = {}

    def look_soon(self) -> None:
        if not self._look.is_set():
            self._look.set(PAUSE)

    def look(self) -> None:
        ready, now = self._ready(), self._clock()
        loads = [(backend.endpoint.address, backend.load) for backend in ready]
        for address, cost in self.costs.observe(loads, now):
            said = "is as usual again"
            if cost.is_slowed:
                said = f"is {cost.rise:.1f} times its usual one"
            logger.info(
                "%s: %s: the cost of requests %s",
                self._label,
                address,
                said,
                channel=self._label,
                backend=address,
                reason=f"the cost of requests {said}",
            )
        self._tell(ready, now)
        # Without calls, reports are older than what is compared.
        if ready and not self._rest.is_on:
            self.look_soon()

    def _tell(self, ready: "tuple[Backend, ...]", now: float) -> None:
        """Tells the median to those backends whose costs are in it."""
        before, self._told = self._told, {}
        if not (median := self.costs.median):
            return
        request = health_pb2.HealthRequest(fleet_cost=median).SerializeToString()
        for backend in ready:
            address, reported = backend.endpoint.address, backend.reported
            is_counted = address in self.costs.counted
            if not (is_counted and reported.is_ours) or reported.is_shared():
                continue
            told_at, clients = before.get(address, (-inf, None))
            if reported.clients is not None:
                clients = reported.clients
            pause = tell_after(clients) * self._rng.uniform(*JITTER)
            if now >= told_at + pause and self._calls.ask(backend.channel, request):
                told_at = now
            self._told[address] = told_at, clients

    def close(self) -> None:
        self._look.clear()
        self._calls.close()

    def __repr__(self) -> str:
        return repr(self.costs)
