"""Quota stores in this process's memory, the default one too; the stores' error."""

import time
from collections import Counter
from collections.abc import Mapping

from lbclient.core.errors import LbError
from lbclient.core.protocols import Clock, FleetUsage
from lbclient.core.quotas.quota import INTERVAL


class StoreError(LbError):
    """One of our quota stores failed; the text says how, without any secret."""


class MemoryStore:
    """A quota store for several servers of one process."""

    KEPT = 10 * INTERVAL  # seconds

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._told: dict[str, tuple[float, dict[str, float]]] = {}

    async def exchange(self, task: str, usage: Mapping[str, float]) -> FleetUsage:
        now, own = self._clock(), dict(usage)
        self._told[task] = (now, own)
        total: Counter[str] = Counter()
        for name, (at, told) in list(self._told.items()):
            if now - at > self.KEPT:
                self._told.pop(name, None)  # of several loops another may have
            else:
                total.update(told)
        return FleetUsage(len(self._told), own, total, INTERVAL)

    def forget(self, prefix: str) -> None:
        """Removes what all tasks told whose names begin so."""
        for name in [name for name in self._told if name.startswith(prefix)]:
            self._told.pop(name, None)

    def __repr__(self) -> str:
        return f"<usage of {len(self._told)} tasks>"


class ProcessStore(MemoryStore):
    """The default store, for all servers of this process with the same limits.

    A customer's limit holds for these servers together.
    """

    def join(self, task: str) -> None:
        self._told[task] = (self._clock(), {})

    def leave(self, task: str) -> None:
        """Removes a task, whose part of the limits is then the others'."""
        self._told.pop(task, None)

    def has_others(self, task: str) -> bool:
        return bool(self._told.keys() - {task})
