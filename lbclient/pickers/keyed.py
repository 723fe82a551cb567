"""What pickers by keys share: calls without keys are picked as by the default one."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import inf
from random import Random

from lbclient.core.model import LoadReport
from lbclient.core.protocols import N, Node
from lbclient.pickers.weighted_least_loaded import WeightedLeastLoaded


class ByKeys(ABC):
    """A picker by keys: `pick_for` and what it knows of the backends are its own."""

    def __init__(self, rng: Random, slow_start: float) -> None:
        """`slow_start` is for calls without keys."""
        self._inner = WeightedLeastLoaded(
            Random(rng.getrandbits(64)), slow_start=slow_start
        )
        self.probes: list[Node] = self._inner.probes
        self.keyed_picks = 0
        self._backends = 0
        self._built_for: Sequence[Node] = ()
        self._step_at = -inf

    def pick(self, ready: Sequence[N], now: float) -> N:
        self._backends = len(ready)
        return self._inner.pick(ready, now)

    def probed(self, node: Node, report: LoadReport | None, now: float) -> None:
        self._inner.probed(node, report, now)

    def _catch_up(self, ready: Sequence[Node], now: float) -> None:
        """Before each pick by keys: takes what has changed."""
        if ready is not self._built_for:
            self._follow(ready, now)
            self._built_for = ready
            self._backends = len(ready)
        if now >= self._step_at:
            self._step(now)

    @abstractmethod
    def _follow(self, ready: Sequence[Node], now: float) -> None:
        """Takes the backends that are ready, of which some may be new."""

    @abstractmethod
    def _step(self, now: float) -> None:
        """Brings up to date what changes slowly, and says when to come again."""
