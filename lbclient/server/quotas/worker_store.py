"""The quota store of a task's workers, which their supervisor keeps.

Without Redis a limit holds for one process. The workers of a task exchange what they
gave through the pipe to their supervisor, so a limit holds for all of them together,
and each one's share follows its customers. While the supervisor says nothing each gives
its equal part.
"""

from collections.abc import Hashable, Mapping
from hashlib import blake2b
from heapq import nlargest

from lbclient.core.protocols import FleetUsage
from lbclient.server.workers.membership import Membership
from lbclient.server.workers.messages import UsageTold

MOST_TOLD = 2000  # customers in one message, those who used most


class WorkerStore:
    """A quota store for the workers of one task. `limits` tell servers of one program
    apart that have different ones."""

    def __init__(self, member: Membership, limits: Hashable) -> None:
        self._member = member
        # By its text: in another process its hash is another one.
        told = repr(
            sorted(map(str, limits)) if isinstance(limits, frozenset) else limits
        )
        self._limits = blake2b(told.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    async def exchange(self, task: str, usage: Mapping[str, float]) -> FleetUsage:
        most = dict(nlargest(MOST_TOLD, usage.items(), key=lambda item: item[1]))
        told = UsageTold(self._limits, task, most)
        heard = await self._member.ask_usage(told)
        return FleetUsage(heard.tasks, most, heard.total)

    def __repr__(self) -> str:
        return f"<usage of {self._member!r}>"
