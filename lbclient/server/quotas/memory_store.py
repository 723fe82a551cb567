"""Where the tasks of a fleet tell each other what they gave whom."""

import time
from collections import Counter
from collections.abc import Mapping

from lbclient.core.errors import LbError
from lbclient.core.protocols import Clock, FleetUsage
from lbclient.core.quota import INTERVAL


class StoreError(LbError):
    """A store of ours gave no answer: what went wrong, without any of its secrets."""


class MemoryStore:
    """For the servers of one process."""

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

    def __repr__(self) -> str:
        return f"<usage of {len(self._told)} tasks>"


class ProcessStore(MemoryStore):
    """Where no other is configured: of the servers of this process with one set of
    limits, which are one customer's in all of them together."""

    def join(self, task: str) -> None:
        self._told[task] = (self._clock(), {})

    def leave(self, task: str) -> None:
        """Its part is the others'."""
        self._told.pop(task, None)

    def has_others(self, task: str) -> bool:
        return bool(self._told.keys() - {task})
