"""Stops a `grpc.aio.Server` that several callers want to stop.

grpc.aio's `stop` is made for one caller. Cancelling it may spoil the shutdown. A third
caller, who comes when two others have nearly stopped the server, can wait for a lock
while one of them destroys the core's server: it then cancels the calls of a null
pointer, and the process crashes (`AioServer.shutdown` of grpcio 1.85.1). By its code,
so can a call whose grace ends at that moment.
"""

import asyncio
from asyncio import FIRST_COMPLETED

import grpc.aio

FOREVER = 365 * 86400.0  # seconds; grpc.aio has no grace without end


class Stopping:
    """Stops grpcio's server; nobody else calls its `stop`.

    At most two of those overlap, which is safe: the first waits for the calls in flight
    for ever, and the second, when the grace is over, cancels them.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server
        self._hurry: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    async def stop(self, grace: float | None) -> None:
        """Returns when the server has stopped. The shortest grace of all callers holds.

        If a caller is cancelled the server stops all the same, within its grace.
        """
        loop = asyncio.get_running_loop()
        if self._task is None or self._task.done():
            self._hurry = loop.create_future()
            waiting = loop.create_task(self._server.stop(FOREVER))
            self._task = loop.create_task(self._stop(waiting, self._hurry))
        timer = loop.call_later(grace or 0.0, self._end_calls)
        self._task.add_done_callback(lambda task: timer.cancel())
        await asyncio.shield(self._task)

    def _end_calls(self) -> None:
        if self._hurry is not None and not self._hurry.done():
            self._hurry.set_result(None)

    async def _stop(
        self, waiting: asyncio.Task[None], hurry: asyncio.Future[None]
    ) -> None:
        await asyncio.wait((waiting, hurry), return_when=FIRST_COMPLETED)
        if waiting.done():
            await waiting
        else:
            await asyncio.gather(waiting, self._server.stop(None))
