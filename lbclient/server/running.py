"""Runs a server until it is asked to leave: it then drains and stops.

Who asks, by a signal or otherwise, is the caller's affair: `serving` and the workers.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import grpc.aio

from lbclient.config import ServerConfig
from lbclient.server.kinds import is_async_server, is_server
from lbclient.server.warmup import Warmup, check, warm_up


def check_server(server: object) -> None:
    """Raises TypeError for what is none of grpc.aio's, and so none of ours."""
    if not isinstance(server, grpc.aio.Server):
        raise no_server(server)


def no_server(found: object) -> TypeError:
    return TypeError(f"no server of grpc.aio or lbclient: {found!r}")


class Departure:
    """When a server is to leave, and when it is not to wait any more."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.leave: asyncio.Future[None] = loop.create_future()
        self.hurry: asyncio.Future[None] = loop.create_future()

    def ask(self, server: grpc.aio.Server | grpc.Server | None = None) -> bool:
        """Asks the server to leave; False if it has been asked before."""
        if self.leave.done():
            return False
        if is_server(server):
            server.lame_duck()
        self.leave.set_result(None)
        return True

    def insist(self) -> None:
        """Asks it not to wait for its requests any more."""
        self.ask()
        if not self.hurry.done():
            self.hurry.set_result(None)

    def __repr__(self) -> str:
        asked = self.leave.done() + self.hurry.done()
        return f"<{('nobody has asked', 'leaving', 'leaving now')[asked]}>"


async def run(
    server: grpc.aio.Server,
    warmup: Warmup | None,
    departure: Departure,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Starts the server if need be, and returns when it has left and stopped.

    `ready` is called once it serves and its warmup is over, unless it leaves before.
    """
    leave, hurry = departure.leave, departure.hurry
    try:
        await _started(server, warmup, leave)
        if not leave.done():
            ready()
        await _unless(leave, _terminated(server))
        if leave.done():
            await _unless(hurry, _drained(server))
    finally:
        await server.stop(None)


async def _started(
    server: grpc.aio.Server, warmup: Warmup | None, leave: asyncio.Future[None]
) -> None:
    check(warmup)

    async def warm() -> None:
        if warmup is not None:
            await _unless(leave, warm_up(warmup))

    if warmup is None:
        await server.start()
    elif is_async_server(server):
        await server.start(warm)
    else:  # LBCLIENT_DISABLE: it cannot say that it is starting
        await warm()
        await server.start()


async def _terminated(server: grpc.aio.Server) -> None:
    # With a timeout: cancelling grpcio's wait without one spoils its `stop`.
    while await server.wait_for_termination(3600.0):
        pass


async def _drained(server: grpc.aio.Server) -> None:
    if is_async_server(server):
        await server.drain()
    else:  # LBCLIENT_DISABLE
        await server.stop(ServerConfig.from_environment().lame_duck_period)


async def _unless(
    signalled: asyncio.Future[None], work: Coroutine[Any, Any, None]
) -> None:
    """Does the work, but drops it at the signal."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((task, signalled), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
