"""Where the tasks of a fleet tell each other what they gave whom."""

import time
from collections import Counter
from collections.abc import Mapping

from lbclient.protocols import Clock, FleetUsage, UsageStore

INTERVAL = 1.0  # seconds between two exchanges. Ours: a fifth of quota.SMOOTHING


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
                del self._told[name]
            else:
                total.update(told)
        return FleetUsage(len(self._told), own, total, INTERVAL)


def find_store(said: str | UsageStore | None) -> UsageStore | None:
    """What `ServerConfig.quota_store` means. Raises ConfigError."""
    if not isinstance(said, str):
        return said
    from lbclient.server.redis_store import RedisStore  # an extra

    return RedisStore(said)
