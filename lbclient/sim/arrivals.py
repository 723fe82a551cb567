"""The queue of gRPC's core in front of a simulated server's event loop.

A handler that does not await has its loop until it is done. Meanwhile requests wait in
gRPC's core, first in, first out: the server sees neither how many there are nor how
critical they are. Production's `QueueDelay` estimates how long they wait, and admission
goes by it.
"""

from collections import deque
from typing import NamedTuple

from lbclient.core.overload.queue_delay import QueueDelay
from lbclient.sim.client import SimulatedNode
from lbclient.sim.reports import TICK


class Arrival(NamedTuple):
    """A request that waits: from where, its number, seconds of processor time."""

    node: SimulatedNode
    number: int
    cost: float


class Arrivals:
    """Queues the requests of a simulated backend, which takes one after the other.
    Owned by the backend.

    `let_in` counts the taken requests that were admitted since the last sample.
    """

    def __init__(self, time: float) -> None:
        """`time`: seconds that each request has until its deadline."""
        self.delay = QueueDelay()
        self.let_in = 0
        self._taken = 0  # since the last sample
        self._waiting: deque[Arrival] = deque()
        self._time = time

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, arrival: Arrival) -> None:
        self._waiting.append(arrival)

    def take(self) -> Arrival:
        self._taken += 1
        return self._waiting.popleft()

    def sample(self) -> None:
        """Every `TICK`, as a server does."""
        self.delay.sample(
            TICK,
            waiting=len(self),
            taken=self._taken,
            let_in=self.let_in,
            time=self._time,
        )
        self._taken = self.let_in = 0

    def __repr__(self) -> str:
        return f"<{len(self)} wait, {self.delay!r}>"
