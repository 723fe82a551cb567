"""A worker's part of `maximum_concurrent_rpcs`, which holds for its whole task.

The workers tell their supervisor once a second how many requests they had at a time,
as they tell it what quotas gave, and each takes its share of the limit: by what it had,
and a part that all have. While the supervisor says nothing each has its equal part.
"""

import asyncio
import os
from collections.abc import Callable

from lbclient.core.quotas.quota import INTERVAL
from lbclient.server.quotas.worker_store import WorkerStore
from lbclient.server.workers.membership import Membership

# Of the limit, which all workers share alike, so that each can take more at once; the
# rest goes by what they had. A worker that has all of the task's requests is left with
# 1 / (1 + SPARE) of the places.
SPARE = 0.25


def share(most: int, own: int, total: float, tasks: int) -> int:
    """Places of a worker that had `own` of a `total` of requests at a time; one at
    least, as it could serve nobody with none.

    >>> share(100, 0, 0, 4), share(100, 20, 80, 4), share(100, 90, 90, 4)
    (25, 25, 83)
    """
    spare = SPARE * most / tasks
    return max(1, int(most * (own + spare) / (total + SPARE * most)))


class TaskPlaces:
    """Sets how many requests a worker takes at a time. Owned by its server's parts.

    `take` is told the places, `most` are those of the task.
    """

    def __init__(self, member: Membership, most: int, take: Callable[[int], None]):
        self._member = member
        self._most = most
        self._take = take
        self._store = WorkerStore(member, ("maximum_concurrent_rpcs", most))
        self._name = f"places of {os.getpid()}/{os.urandom(4).hex()}"
        self._peak = 0
        self._following: asyncio.Task[None] | None = None
        take(share(most, 0, 0.0, member.count))

    def seen(self, active: int) -> None:
        """It has so many requests at the moment."""
        self._peak = max(self._peak, active)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._following = loop.create_task(self._follow())

    def stop(self) -> None:
        if self._following is not None and not self._following.get_loop().is_closed():
            self._following.cancel()

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            own, self._peak = self._peak, 0
            places = share(self._most, 0, 0.0, self._member.count)
            try:
                async with asyncio.timeout(INTERVAL):
                    heard = await self._store.exchange(self._name, {"": float(own)})
            except TimeoutError:
                pass
            else:
                tasks = max(heard.tasks, self._member.count)
                places = share(self._most, own, heard.total.get("", 0.0), tasks)
            self._take(places)

    def __repr__(self) -> str:
        return f"<part of {self._most} places of {self._member!r}>"
