"""A worker's part of `maximum_concurrent_rpcs`, which holds for its whole task.

The workers tell their supervisor once a second how many places they could have used:
the requests that they had at a time, and those that found no place. Each takes its
share of the limit: by that, and a part that all have. While the supervisor says nothing
each has its equal part.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from random import Random

from lbclient.background.tasks import Tasks
from lbclient.core.quotas.quota import INTERVAL
from lbclient.server.quotas.worker_store import WorkerStore
from lbclient.server.workers.membership import Membership

# Of the limit, which all workers share alike, so that each can take more at once; the
# rest goes by what they could have used. A worker that has all of the task's requests
# is left with 1 / (1 + SPARE) of the places.
SPARE = 0.25


def share(most: int, own: int, total: float, tasks: int) -> int:
    """Places of a worker that could have used `own` of a `total`; one at least, as it
    could serve nobody with none.

    >>> share(100, 0, 0, 4), share(100, 20, 80, 4), share(100, 90, 90, 4)
    (25, 25, 83)
    """
    spare = SPARE * most / tasks
    return max(1, int(most * (own + spare) / (total + SPARE * most)))


class TaskPlaces:
    """Sets how many requests a worker takes at a time. Owned by its server's parts.

    `take` is told the places when they change, `most` are those of the task, and
    `refused` is how many requests have found none so far.
    """

    def __init__(
        self,
        member: Membership,
        most: int,
        take: Callable[[int], None],
        refused: Callable[[], int],
    ) -> None:
        self.tasks = Tasks("places", Random())
        self._member = member
        self._most = most
        self._take = take
        self._refused = refused
        self._refused_before = 0
        self._store = WorkerStore(member, ("maximum_concurrent_rpcs", most))
        self._name = f"places of {os.getpid()}/{os.urandom(4).hex()}"
        self._peak = 0
        self._places = share(most, 0, 0.0, member.count)
        take(self._places)

    def seen(self, active: int) -> None:
        """It has so many requests at the moment."""
        self._peak = max(self._peak, active)

    def start(self) -> None:
        self.tasks.keep(self._name, self._follow)

    def stop(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self.tasks.drop(self._name)

    def _used(self) -> int:
        """Places that it could have used since it was asked last. Without those who
        found none a worker that has few places would never be known to need more."""
        refused = self._refused()
        wanted = self._peak + refused - self._refused_before
        self._peak, self._refused_before = 0, refused
        return min(self._most, wanted)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            own = self._used()
            places = share(self._most, 0, 0.0, self._member.count)
            try:
                async with asyncio.timeout(INTERVAL):
                    heard = await self._store.exchange(self._name, {"": float(own)})
            except TimeoutError:
                pass
            else:
                tasks = max(heard.tasks, self._member.count)
                places = share(self._most, own, heard.total.get("", 0.0), tasks)
            if places != self._places:
                self._places = places
                self._take(places)

    def __repr__(self) -> str:
        return f"<part of {self._most} places of {self._member!r}>"
