"""Runs a server until SIGTERM or Ctrl-C, then drains and stops it.

A container's runtime sends SIGTERM and, some time later, SIGKILL; a second SIGTERM
or Ctrl-C means that somebody does not want to wait, unless it comes at once.
"""

import asyncio
from typing import Literal

import grpc.aio

from lbclient.core.errors import ConfigError
from lbclient.core.model import State
from lbclient.log import Log
from lbclient.server.os_signals import SIGNALS, handling, without_echo
from lbclient.server.running import Departure, no_server, run
from lbclient.server.warmup import Warmup
from lbclient.server.workers.messages import MakeServer
from lbclient.server.workers.task import serve_by_workers

logger = Log(__name__)


async def serve(
    server: grpc.aio.Server | MakeServer,
    warmup: Warmup | None = None,
    *,
    workers: int | Literal["auto"] | None = None,
    host: str = "[::]",
    port: int | None = None,
) -> None:
    """Starts the server if need be, and returns when it has stopped.

    While `warmup` runs clients connect and wait: see `Server.start`. It is a coroutine
    function, or what is to run in a thread. If it raises, the server is stopped and
    so does `serve`.

    The first SIGTERM or SIGINT drains the server, and cancels a warmup; another one,
    half a second later or more, stops it; so does cancelling. Signals are left alone
    where they cannot be handled, as in a thread. Raises TypeError for what is no
    server.

    With `workers` several processes serve one address, and `server` is a function
    without arguments that makes each one's server: it is at the top of a module, which
    each process imports. "auto" is one worker for each CPU of the control group. `port`
    is one more port for all of them to share; without it they share the ports that the
    function adds. SIGHUP replaces the workers one by one. Raises ConfigError, also
    where a worker does before all have been ready, and RuntimeError where a worker
    cannot start for another reason.
    """
    if workers is not None:
        await serve_by_workers(server, warmup, workers, host, port)
        return
    if port is not None:
        want = "None without workers: the server has its ports already"
        raise ConfigError("port", port, want)
    if isinstance(server, grpc.Server):
        want = "call lbclient.serve_sync"
        raise TypeError(f"this is a synchronous server, {want}: {server!r}")
    if not isinstance(server, grpc.aio.Server):
        raise no_server(server)
    departure = Departure()

    def on_signal() -> None:
        if departure.leave.done():
            departure.insist()
            return
        words = "stopping; send the signal again to stop immediately; %r"
        logger.info(words, server, state=State.LAME_DUCK.value)
        departure.ask(server)

    handlers = dict.fromkeys(SIGNALS, without_echo(on_signal))
    with handling(asyncio.get_running_loop(), handlers):
        await run(server, warmup, departure)
