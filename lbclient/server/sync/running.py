"""Starts and drains synchronous servers, and runs one in a worker."""

import asyncio
from collections.abc import Callable
from inspect import iscoroutinefunction

import grpc

from lbclient.background.threads import in_daemon_thread
from lbclient.config import ServerConfig
from lbclient.core.errors import ConfigError
from lbclient.server.kinds import is_sync_server
from lbclient.server.running import Departure
from lbclient.server.warmup import Warmup, check


def start(server: grpc.Server, warmup: Warmup | None) -> None:
    if getattr(server, "is_started", False) and warmup is None:
        return
    if is_sync_server(server):
        server.start(warmup)
        return
    # LBCLIENT_DISABLE, or no server of ours: it cannot say that it is starting.
    if warmup is not None:
        if iscoroutinefunction(warmup):
            raise ConfigError("warmup", warmup, "a plain function, for this server")
        warmup()
    server.start()


def drain(server: grpc.Server) -> None:
    if is_sync_server(server):
        server.drain()
    else:
        server.stop(ServerConfig.from_environment().lame_duck_period).wait()


async def run_sync(
    server: grpc.Server,
    warmup: Warmup | None,
    departure: Departure,
    ready: Callable[[], None],
) -> None:
    """As `run` of a server of grpc.aio's: until its supervisor asks it to leave."""
    check(warmup)
    leave, hurry = departure.leave, departure.hurry
    try:
        await _unless(leave, lambda: start(server, warmup))
        if not leave.done():
            ready()
            await _unless(leave, server.wait_for_termination)
        if leave.done():
            await _unless(hurry, lambda: drain(server))
    finally:
        await _begin(lambda: server.stop(None).wait())


async def _unless(
    signalled: "asyncio.Future[None]", work: Callable[[], object]
) -> None:
    """Waits for the work, but not beyond the signal. Raises what the work raises."""
    doing = _begin(work)
    await asyncio.wait((doing, signalled), return_when=asyncio.FIRST_COMPLETED)
    if doing.done():
        doing.result()
    else:
        doing.add_done_callback(lambda done: done.cancelled() or done.exception())


def _begin(work: Callable[[], object]) -> "asyncio.Future[object]":
    return in_daemon_thread("lbclient serve", work)
