"""Stops a server that was not stopped, when `asyncio.run` ends its loop.

`asyncio.run` cancels all tasks when its coroutine returns, as test runners do, and then
closes the loop. gRPC's core answers after that, once for each request that it was asked
for, and grpcio logs an error for each answer to a closed loop.

Into its answer to a task of grpcio's own, which is cancelled too, the core writes where
that task had its request: memory that belongs to something else by then. Such tasks ask
for requests where a grpcio lacks what `grpc_seam.intake` needs. So what they hold is
kept until the core has stopped.
"""

import asyncio
import gc
import weakref
from asyncio import CancelledError
from collections.abc import Sequence
from contextlib import suppress
from types import CoroutineType
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
        self._is_over: _IsOver | None = None
        self._task: asyncio.Task[None] | None = None

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watches the server's loop. Called once, on it."""
        self._is_over = _IsOver(loop=loop)
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


class _IsOver(asyncio.Future[None]):
    """Cancelled when the loop ends: with all tasks, before one of them goes on."""

    kept: Sequence[object] = ()

    def cancel(self, msg: object = None) -> bool:
        self.kept = _held_by_tasks(self.get_loop())
        return super().cancel(msg)


def _held_by_tasks(loop: asyncio.AbstractEventLoop) -> Sequence[object]:
    """The variables of all coroutines that are not written in Python, as grpcio's."""
    coroutines = [task.get_coro() for task in asyncio.all_tasks(loop)]
    foreign = [one for one in coroutines if not isinstance(one, CoroutineType)]
    return gc.get_referents(*foreign)


async def _stop_at_end(
    server: weakref.ref[Stoppable], intake: Intake, is_over: _IsOver
) -> None:
    try:
        await is_over
    except CancelledError:
        if (left := server()) is not None:
            # The tasks in which grpcio stops are cancelled, too. The core stops.
            with suppress(CancelledError):
                await left.stop(None)
        await intake.ended()
        is_over.kept = ()
        raise
