"""Looks now and then whether requests cost a backend more than usual, and logs it."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from lbclient.background.tasks import Alarm
from lbclient.client.common import Common
from lbclient.core.relative_costs import RelativeCosts

if TYPE_CHECKING:
    from lbclient.client.backend import Backend

logger = logging.getLogger("lbclient.balancer")  # as documented, for the whole channel

PAUSE = 5.0  # seconds between two looks; servers smooth reports over 2 s


class Slowdowns:
    """Owned by a balancer, which calls `look_soon` when backends may be ready."""

    def __init__(
        self, common: Common, ready: Callable[[], "tuple[Backend, ...]"]
    ) -> None:
        self.costs = RelativeCosts()
        self._label = common.label
        self._clock = common.clock
        self._ready = ready
        self._look = Alarm(common.tasks, self.look)

    def look_soon(self) -> None:
        if not self._look.is_set():
            self._look.set(PAUSE)

    def look(self) -> None:
        ready = self._ready()
        loads = [(backend.endpoint.address, backend.load) for backend in ready]
        for address, cost in self.costs.observe(loads, self._clock()):
            said = "is as usual again"
            if cost.is_slowed:
                said = f"is {cost.rise:.1f} times its usual one"
            logger.info("%s: %s: the cost of requests %s", self._label, address, said)
        if ready:
            self.look_soon()

    def close(self) -> None:
        self._look.clear()

    def __repr__(self) -> str:
        return repr(self.costs)
