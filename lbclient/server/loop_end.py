"""Stops a server that was not stopped, when `asyncio.run` ends its loop.

`asyncio.run` cancels all tasks when its coroutine returns, as test runners do, and then
closes the loop. gRPC's core answers after that, once for each request that it was asked
for, and grpcio logs an error for each answer to a closed loop.
"""

import asyncio
import weakref
from asyncio import CancelledError
from contextlib import suppress
from typing import Protocol

from lbclient.server.overload.intake import Intake


class Stoppable(Protocol):
    async def stop(self, grace: float | None) -> None: ...


class LoopEnd:
    """Stops the server if its event loop ends first. Owned by the server, which it does
    not keep alive."""

    def __init__(self, server: Stoppable, intake: Intake) -> None:
        self._server = weakref.ref(server)
        self._intake = intake
        self._is_over: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watches the server's loop. Called once, on it."""
        self._is_over = loop.create_future()
        self._task = loop.create_task(
            _stop_at_end(self._server, self._intake, self._is_over)
        )

    def ignore(self) -> None:
        """The server has stopped: from now on the loop may end. On its thread only."""
        if self._is_over is not None and not self._is_over.done():
            self._is_over.set_result(None)

    def drop(self) -> None:
        """The same, from any thread: the server is collected."""
        if self._is_over is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._is_over.get_loop().call_soon_threadsafe(self.ignore)

    def __repr__(self) -> str:
        return f"<of {self._server()!r}>"


async def _stop_at_end(
    server: weakref.ref[Stoppable], intake: Intake, is_over: asyncio.Future[None]
) -> None:
    try:
        await is_over
    except CancelledError:
        if (left := server()) is not None:
            # The tasks in which grpcio stops are cancelled, too. The core stops.
            with suppress(CancelledError):
                await left.stop(None)
        await intake.ended()
        raise
