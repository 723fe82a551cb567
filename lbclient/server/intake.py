"""Requests between gRPC's core, where they arrive, and grpcio, which serves them.

gRPC's core keeps what has arrived in a queue of its own and hands over one for each
that it was asked for. A few are asked for ahead: that takes fewer steps for each, and
if all of them come each time it is known that more wait in there. They stay few: all
events of the core come one by one, and those of requests that have begun must not wait
behind all that have not.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

AHEAD = 16  # requests


class Core(Protocol):
    """Where requests come from. Nobody here looks into one."""

    def ask(
        self, take: Callable[[Any], None], fail: Callable[[BaseException], None]
    ) -> None:
        """Hands the next request to `take`, or what went wrong to `fail`, later."""


class Intake:
    """Owned by the server, used on its loop's thread only."""

    def __init__(self) -> None:
        self._core: Core | None = None
        self._waiting: deque[Any] = deque()
        self._asked = 0
        self._wanted: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        self._is_closed = False
        self._times_asked = self._asked_for = 0  # since `was_behind` was called
        self.taken = 0  # requests, whatever becomes of them
        self.let_go = 0

    def take_from(self, core: Core) -> None:
        self._core = core

    def __len__(self) -> int:
        return len(self._waiting)

    async def next(self) -> Any:
        """The request to be served next, once there is one.

        Raises what the core says if it has no more.
        """
        self._ask()
        while not self._waiting:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            self._wanted = asyncio.get_running_loop().create_future()
            await self._wanted
            if self._is_closed:
                self._ask()  # else nothing tells that the core has ended
        return self._waiting.popleft()

    def was_behind(self) -> bool:
        """Whether, since this was called, more waited in the core than came.

        Of what waits there all that is asked for comes at once, but not always in one
        turn of the loop: so it is asked for many at a time, and not for each that came.
        """
        was_behind = self._asked_for > self._times_asked * AHEAD / 4
        self._times_asked = self._asked_for = 0
        return was_behind

    def _ask(self) -> None:
        assert self._core is not None
        missing = AHEAD - self._asked
        if not missing:
            return
        self._times_asked += 1
        self._asked_for += missing
        for _ in range(missing):
            self._asked += 1
            self._core.ask(self._take, self._fail)

    def _take(self, request: Any) -> None:
        self._asked -= 1
        self.taken += 1
        if self._is_closed:
            self.let_go += 1
        else:
            self._waiting.append(request)
        self._wake()

    def _fail(self, error: BaseException) -> None:
        self._asked -= 1
        self._error = error
        self._wake()

    def close(self) -> None:
        """Lets all go: grpcio stops, and serves none of what waits.

        Else it would wait for them.
        """
        self._is_closed = True
        self.let_go += len(self._waiting)
        self._waiting.clear()

    def _wake(self) -> None:
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)

    def __repr__(self) -> str:
        return f"<{len(self)} wait, {self.let_go} were let go>"
