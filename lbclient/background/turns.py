"""Spreads work for many backends over turns of the event loop.

A thousand connections that begin or end in one turn would keep all calls waiting.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from lbclient.background.tasks import AT_ONCE, PAUSE, Tasks


class Turns:
    """Does jobs in order: the first `AT_ONCE` of a turn now, the others later.

    Owned by a balancer. A job must make sure itself that it is still wanted. One that
    fails is done again after a pause.
    """

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._jobs: deque[Callable[[], None]] = deque()
        self._done = 0  # in this turn
        self._next: asyncio.Handle | None = None

    def __len__(self) -> int:
        return len(self._jobs)

    def do(self, job: Callable[[], None]) -> None:
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._turn)
        if self._done < AT_ONCE and not self._jobs:
            self._done += 1
            self._attempt(job)
        else:
            self._jobs.append(job)

    def _turn(self) -> None:
        self._next, self._done = None, 0
        if not self._jobs:
            return
        self._next = asyncio.get_running_loop().call_soon(self._turn)
        for _ in range(min(AT_ONCE, len(self._jobs))):
            self._done += 1
            self._attempt(self._jobs.popleft())

    def _attempt(self, job: Callable[[], None]) -> None:
        if not self._tasks.attempt(job) and not self._tasks.is_closed:
            asyncio.get_running_loop().call_later(PAUSE, self.do, job)

    def __repr__(self) -> str:
        return f"<{len(self)} jobs left>"
