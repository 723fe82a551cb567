"""One worker's process, as its supervisor sees it."""

import asyncio
import errno
import os
import signal
from collections.abc import Callable
from multiprocessing import get_context

from lbclient.log import Log
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
    UsageHeard,
    UsageTold,
    WorkerFailed,
)
from lbclient.server.workers.pipe import Pipe, pair
from lbclient.server.workers.worker import IGNORED, main

logger = Log(__name__)

# A new interpreter: what gRPC has running does not survive a fork.
SPAWN = get_context("spawn")


class WorkerProcess:
    """A process that is a worker, from its start to its end. Owned by the supervisor.

    `is_ready` is set once it serves, `has_ended` when its process has. `is_leaving`
    once it was told to, by whomever. `failure` is what it said that it failed by.
    `changed` is called after each message, but for those of usage and descriptions.
    Raises OSError where the machine has no room for one more.
    """

    def __init__(
        self,
        assignment: Assignment,
        changed: Callable[[], None],
        hear_usage: Callable[["WorkerProcess", UsageTold], None],
    ) -> None:
        self.assignment = assignment
        self.is_ready = self.has_ended = False
        self.is_leaving = self.is_quiet = False
        self.failure: WorkerFailed | None = None
        self.ports: tuple[tuple[int, int], ...] = ()
        self.listening: tuple[str, ...] = ()
        self.period = 0.0
        self.description = b""  # as of the last time that it was asked
        self._changed = changed
        self._hear_usage = hear_usage
        self._loop = asyncio.get_running_loop()
        ours, theirs = pair()
        self._pipe = Pipe(ours)
        self._process = SPAWN.Process(
            target=main,
            args=(assignment, theirs),
            name=f"lbclient worker {assignment.number}",
        )
        try:
            with theirs:
                self._start()
        except BaseException:
            self._pipe.close()
            raise
        self._loop.add_reader(self._ended, self._end)
        self._pipe.follow(self._take, lambda: None)

    def _start(self) -> None:
        """What a terminal sends to all processes waits until the worker ignores it."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            self._ended = self._descriptor()
        except BaseException:
            self._process.kill()
            self._process.join()
            raise

    def _descriptor(self) -> int:
        """Readable once the process has ended. The sentinel is only when also all that
        it forked have, which inherit it."""
        try:
            return os.pidfd_open(self.pid)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EPERM):
                raise
            return os.dup(self._process.sentinel)  # an old kernel, or a sandbox

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    @property
    def slot(self) -> int:
        return self.assignment.slot

    def serves(self) -> bool:
        return self.is_ready and not (self.is_leaving or self.has_ended)

    # --- what it says -----------------------------------------------------------

    def _take(self, message: object) -> None:
        if isinstance(message, UsageTold):
            self._hear_usage(self, message)
            return
        if isinstance(message, Description):
            self.description = message.data
            return
        if isinstance(message, Ready):
            self.ports, self.period, self.listening = message
            self.is_ready = True
            logger.info("%r is ready", self)
        elif isinstance(message, WorkerFailed):
            self.failure = message
        elif isinstance(message, Leaving):
            self.is_leaving = True
        elif isinstance(message, Quiet):
            self.is_quiet = True
        self._changed()

    def _end(self) -> None:
        self._loop.remove_reader(self._ended)
        os.close(self._ended)
        while self._pipe.read_now(self._take):
            pass  # its last words
        self._process.join()
        self._pipe.close()
        self.has_ended = True
        self._changed()

    def how_it_ended(self) -> str:
        return how_ended(self._process.exitcode)

    # --- what it is told ----------------------------------------------------------

    def tell_siblings(self, serving: ServingPorts) -> None:
        self._pipe.send(serving)

    def tell_usage(self, heard: UsageHeard) -> None:
        self._pipe.send(heard)

    def leave(self) -> None:
        """By SIGTERM, which also ends a worker that still imports its program."""
        self.is_leaving = True
        if not self.has_ended:
            self._process.terminate()

    def ask_description(self) -> None:
        self._pipe.send(DescriptionWanted())

    def all_quiet(self) -> None:
        self._pipe.send(AllQuiet())

    def hurry(self) -> None:
        self.is_leaving = True
        if not (self.is_ready and self._pipe.send(Hurry())):
            self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def __repr__(self) -> str:
        own = ", ".join(str(port) for _, port in self.ports)
        where = f" on port {own}" if own else ""
        return f"<worker {self.assignment.number}, process {self.pid}{where}>"


def how_ended(status: int | None) -> str:
    """How a process ended; most real-time signals have no names.

    >>> how_ended(1), how_ended(-9), how_ended(-37)
    ('exited with status 1', 'was killed by SIGKILL', 'was killed by signal 37')
    """
    if status is None or status >= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was killed by {name}"
