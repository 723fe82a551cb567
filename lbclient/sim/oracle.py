"""An oracle: a picker that knows what no client can, as a bound for those that cannot.

It sees how many requests run at each backend now, how many are on their way there, from
all clients, and how fast each is at this moment. It sends a request to where it is done
soonest, and knows neither what requests cost nor which will come. So it is no limit of
what is possible: only what better news could give to a picker that is as greedy.
"""

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any, cast

from lbclient.core.protocols import N, PickerFactory
from lbclient.sim.backend import SimulatedBackend


class Oracle:
    """Picks the backend that would serve one more request soonest. `sent` has what all
    oracles of a fleet have sent to each backend."""

    __slots__ = ("_rng", "_sent")

    def __init__(self, rng: Random, sent: dict[SimulatedBackend, int]) -> None:
        self._rng = rng
        self._sent = sent

    def pick(self, ready: Sequence[N], now: float) -> N:
        sent, rng = self._sent, self._rng
        best, least = ready[0], (float("inf"), 0.0, 0.0)
        for node in ready:
            backend: SimulatedBackend = cast(Any, node).backend
            on_way = sent.get(backend, 0) - backend.received
            takes, busy = backend.outlook(on_way)
            if (score := (takes, busy, rng.random())) < least:
                best, least = node, score
        chosen: SimulatedBackend = cast(Any, best).backend
        sent[chosen] = sent.get(chosen, 0) + 1
        return best

    def weights(self, ready: Sequence[N], now: float) -> Sequence[float]:
        return [1.0] * len(ready)

    def __repr__(self) -> str:
        return f"<oracle of {len(self._sent)} backends>"


def oracle() -> PickerFactory:
    """A factory of oracles for one simulation, which know of each other."""
    return partial(Oracle, sent={})
