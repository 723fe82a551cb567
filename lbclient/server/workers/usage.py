"""Adds up, in the supervisor, the CPU time that workers used for each customer."""

from collections.abc import Callable
from heapq import nlargest

from lbclient.core.protocols import Clock
from lbclient.server.quotas.memory_store import MemoryStore
from lbclient.server.workers.messages import UsageHeard, UsageTold

MOST_LIMITS = 8  # kinds of servers in one program

# Customers in an answer besides those whom the worker serves, those who used most: of
# all customers of 64 workers no message has room.
MOST_HEARD = 100


class TaskUsage:
    """Answers workers that tell their usage. Owned by the supervisor."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stores: dict[str, MemoryStore] = {}

    async def answer(
        self, pid: int, told: UsageTold, send: Callable[[UsageHeard], object]
    ) -> None:
        """`pid`: of the worker that told it."""
        if told.limits not in self._stores and len(self._stores) >= MOST_LIMITS:
            return  # its shares stay what they are without a store
        store = self._stores.setdefault(told.limits, MemoryStore(self._clock))
        fleet = await store.exchange(f"{pid} {told.server}", told.usage)
        most = nlargest(MOST_HEARD, fleet.total, key=fleet.total.__getitem__)
        total = {customer: fleet.total[customer] for customer in (*told.usage, *most)}
        send(UsageHeard(told.server, fleet.tasks, total))

    def ended(self, pid: int) -> None:
        """Forgets what this worker used: its part is the others' at once."""
        for store in self._stores.values():
            store.forget(f"{pid} ")

    def __repr__(self) -> str:
        return f"<{len(self._stores)} stores>"
