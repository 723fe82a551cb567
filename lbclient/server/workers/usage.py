"""What the workers of a task gave their customers, as their supervisor knows it."""

from collections.abc import Callable

from lbclient.core.protocols import Clock
from lbclient.server.quotas.memory_store import MemoryStore
from lbclient.server.workers.messages import UsageHeard, UsageTold

MOST_LIMITS = 8  # kinds of servers in one program


class TaskUsage:
    """Answers workers that tell their usage. Owned by the supervisor."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stores: dict[str, MemoryStore] = {}

    async def answer(
        self, told: UsageTold, send: Callable[[UsageHeard], object]
    ) -> None:
        if told.limits not in self._stores and len(self._stores) >= MOST_LIMITS:
            return  # its shares stay what they are without a store
        store = self._stores.setdefault(told.limits, MemoryStore(self._clock))
        fleet = await store.exchange(told.server, told.usage)
        send(UsageHeard(told.server, fleet.tasks, dict(fleet.total)))

    def __repr__(self) -> str:
        return f"<{len(self._stores)} stores>"
