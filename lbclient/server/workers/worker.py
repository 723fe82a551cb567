"""What runs in a worker's process: makes the server, serves, leaves when it is told.

SIGTERM makes it leave, however often it comes: who stops a group of processes sends it
to all, and the supervisor passes it on. Ctrl-C and SIGHUP are the supervisor's affair.
If the supervisor is gone the worker leaves, too, and ends if something keeps it.
"""

import asyncio
import logging
import os
import signal
import socket
import time
import traceback
from contextlib import AsyncExitStack
from threading import Thread

import grpc
import grpc.aio

from lbclient.config import ServerConfig
from lbclient.core.errors import ConfigError
from lbclient.core.text import brief
from lbclient.log import Log
from lbclient.server.kinds import is_server
from lbclient.server.running import Departure, run
from lbclient.server.workers import factory
from lbclient.server.workers.membership import Membership, join, membership
from lbclient.server.workers.messages import (
    AllQuiet,
    Assignment,
    Description,
    DescriptionWanted,
    Hurry,
    Leaving,
    Quiet,
    Ready,
    ServingPorts,
    ShownValue,
    UsageHeard,
    WorkerFailed,
)
from lbclient.server.workers.pipe import Pipe, wait_until_closed

logger = Log(__name__)

IGNORED = (signal.SIGINT, signal.SIGHUP)

LATE = 5.0  # seconds beyond its period that a leaving worker has, before it is killed

MOST_STORY = 20_000  # characters of a traceback

LOG_FORMAT = "%(asctime)s [%(process)d] %(levelname)s %(name)s: %(message)s"


def set_up_logging(level: str | None) -> None:
    """On stderr, unless the program does it itself. None: it does."""
    if level is not None:
        logging.basicConfig(format=LOG_FORMAT, level=level.upper())


def main(assignment: Assignment, end: socket.socket) -> None:
    """The process. `end` is the worker's end of the pipe."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED)
    set_up_logging(assignment.log_level)
    pipe = Pipe(end)
    Thread(target=_outlive_nobody, args=(end.dup(),), daemon=True).start()
    try:
        asyncio.run(_Worker(assignment, pipe).serve())
    except Exception as error:
        mistake = error if isinstance(error, ConfigError) else None
        if mistake is not None:  # its value may be of the program's own classes
            mistake = ConfigError(
                mistake.field, ShownValue(brief(mistake.value)), mistake.want
            )
        story = "".join(traceback.format_exception(error))
        pipe.send(WorkerFailed(mistake, brief(error), story[-MOST_STORY:]))
        raise SystemExit(1) from None


def _outlive_nobody(end: socket.socket) -> None:
    """Ends a worker that has not left in time after its supervisor. A thread does it,
    as a handler that never ends may hold the loop, and the process at its exit."""
    wait_until_closed(end)
    member = membership()
    time.sleep(LATE + (0.0 if member is None else _period(member)))
    os._exit(1)


def _period(member: Membership) -> float:
    if member.period is None:  # LBCLIENT_DISABLE, or there is no server yet
        return ServerConfig.from_environment().lame_duck_period
    return member.period


class _Worker:
    """Serves as one of a task's workers."""

    def __init__(self, assignment: Assignment, pipe: Pipe) -> None:
        self._assignment = assignment
        self._pipe = pipe
        self._member = join(
            Membership(
                assignment.number, assignment.group, assignment.slot, assignment.workers
            )
        )
        self._member.tell_usage = self._pipe.send
        self._member.say_quiet = lambda: self._pipe.send(Quiet())
        self._server: grpc.aio.Server | grpc.Server | None = None
        self._departure: Departure

    async def serve(self) -> None:
        self._departure = Departure()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._leave)
        self._pipe.follow(self._take, self._orphaned)
        async with AsyncExitStack() as stack:
            make_server = factory.find(self._assignment.make_server)
            server = self._server = await factory.make(make_server, stack)
            self._listen(server)
            if self._assignment.made is not None:
                self._assignment.made(server)
            if self._departure.leave.done():
                return
            warmup = self._assignment.warmup
            if isinstance(server, grpc.Server):
                from lbclient.server.sync.running import run_sync  # seldom needed

                await run_sync(server, warmup, self._departure, self._ready)
            else:
                await run(server, warmup, self._departure, self._ready)

    def _listen(self, server: grpc.aio.Server | grpc.Server) -> None:
        address = self._assignment.address
        if address is not None:
            server.add_insecure_port(address)
        elif is_server(server) and not server.statistics().ports:
            want = "a port, 0 to 65535, as make_server's server has none"
            raise ConfigError("port", None, want)

    def _ready(self) -> None:
        listening: tuple[str, ...] = (self._assignment.address or "",)
        if is_server(self._server):
            listening = self._server.statistics().ports
        own = tuple(self._member.own.items())
        self._pipe.send(Ready(own, _period(self._member), listening))

    def _take(self, message: object) -> None:
        if isinstance(message, ServingPorts):
            self._member.pids = message.pids
            self._member.learn(message.ports, message.serving)
        elif isinstance(message, UsageHeard):
            self._member.hear_usage(message)
        elif isinstance(message, DescriptionWanted):
            self._describe()
        elif isinstance(message, AllQuiet):
            self._member.is_all_quiet = True
        elif isinstance(message, Hurry):
            self._departure.insist()

    def _describe(self) -> None:
        if (describe := self._assignment.describe) is not None:
            self._pipe.send(Description(describe()))

    def _leave(self) -> None:
        if self._departure.ask(self._server):
            self._pipe.send(Leaving())
            number = self._assignment.number
            logger.info("worker %d is leaving: %r", number, self._server)

    def _orphaned(self) -> None:
        logger.warning("the supervisor is gone; worker leaves")
        self._member.is_all_quiet = True
        self._member.serving = 0
        self._leave()
