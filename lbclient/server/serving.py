"""Runs a server until SIGTERM or Ctrl-C, then drains and stops it.

A container's runtime sends SIGTERM and, some time later, SIGKILL; a second SIGTERM
or Ctrl-C means that somebody does not want to wait.
"""

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import grpc.aio

from lbclient.config import ServerConfig
from lbclient.core.model import State
from lbclient.log import Log
from lbclient.server.grpc_server import Server
from lbclient.server.warmup import Warmup, check, warm_up

SIGNALS = (signal.SIGTERM, signal.SIGINT)

logger = Log(__name__)


async def serve(server: grpc.aio.Server, warmup: Warmup | None = None) -> None:
    """Starts the server if need be, and returns when it has stopped.

    While `warmup` runs clients connect and wait: see `Server.start`. It is a coroutine
    function, or what is to run in a thread. If it raises, the server is stopped and
    so does `serve`.

    The first SIGTERM or SIGINT drains the server, and cancels a warmup; the second
    stops it; so does cancelling. Signals are left alone where they cannot be handled,
    as in a thread. Raises TypeError for what is no server.
    """
    check_server(server)
    loop = asyncio.get_running_loop()
    leave, hurry = loop.create_future(), loop.create_future()

    def on_signal() -> None:
        if not leave.done():
            words = "stopping; send the signal again to stop immediately; %r"
            logger.info(words, server, state=State.LAME_DUCK.value)
            if isinstance(server, Server):
                server.lame_duck()
            leave.set_result(None)
        elif not hurry.done():
            hurry.set_result(None)

    with _handling(loop, on_signal):
        try:
            await _started(server, warmup, leave)
            await _unless(leave, _terminated(server))
            if leave.done():
                await _unless(hurry, _drained(server))
        finally:
            await server.stop(None)


def check_server(server: object) -> None:
    """Raises TypeError for what is none of grpc.aio's, and so none of ours."""
    if not isinstance(server, grpc.aio.Server):
        raise TypeError(f"no server of grpc.aio or lbclient: {server!r}")


async def _started(
    server: grpc.aio.Server, warmup: Warmup | None, leave: asyncio.Future[None]
) -> None:
    check(warmup)

    async def warm() -> None:
        if warmup is not None:
            await _unless(leave, warm_up(warmup))

    if warmup is None:
        await server.start()
    elif isinstance(server, Server):
        await server.start(warm)
    else:  # LBCLIENT_DISABLE: it cannot say that it is starting
        await warm()
        await server.start()


async def _terminated(server: grpc.aio.Server) -> None:
    # With a timeout: cancelling grpcio's wait without one spoils its `stop`.
    while await server.wait_for_termination(3600.0):
        pass


async def _drained(server: grpc.aio.Server) -> None:
    if isinstance(server, Server):
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


@contextmanager
def _handling(
    loop: asyncio.AbstractEventLoop, on_signal: Callable[[], None]
) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    handled = []
    try:
        for number in SIGNALS:
            loop.add_signal_handler(number, on_signal)
            handled.append(number)
    except (ValueError, RuntimeError, NotImplementedError) as error:
        logger.info("signal handlers not installed: %s", error, reason=error)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
            if before[number] is not None:
                signal.signal(number, before[number])
