"""Starts a task's workers, replaces those that end, and ends them together.

There are as many places as workers. Each has one process, or for a moment two: on a
reload the new one is ready before the old one leaves. Whatever becomes of one worker,
the others serve on; only if the task was never ready does one that cannot start end it.
"""

import asyncio
import itertools
import signal
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from random import SystemRandom
from typing import Any

from lbclient.core.backoff import Backoff
from lbclient.core.protocols import Clock
from lbclient.log import Log
from lbclient.server.os_signals import SIGNALS, handling, without_echo
from lbclient.server.workers.messages import (
    Assignment,
    Ports,
    ServingPorts,
    UsageTold,
)
from lbclient.server.workers.orphans import is_init, reap
from lbclient.server.workers.process import WorkerProcess
from lbclient.server.workers.usage import TaskUsage
from lbclient.server.workers.worker import LATE

logger = Log(__name__)

# Seconds before a worker that ended is started again; one that served for STEADY
# seconds has its first failure again.
PAUSES = Backoff(0.1, 30.0)
STEADY = 10.0

UNREADY = 5.0  # seconds that a leaving worker has that never served

# Seconds until a new worker of a reload is ready, warmup included; then it hangs.
HANGS_AFTER = 600.0


class Supervisor:
    """Keeps a task's workers running until the task leaves.

    `assign` makes the assignment of a place and a slot; `ready` is told once, when
    all workers serve, where they do; `ended` the number of each process that has. Made
    and run on one event loop.
    """

    def __init__(
        self,
        count: int,
        assign: Callable[[int, int, int], Assignment],
        ready: Callable[[tuple[str, ...]], None] = lambda _: None,
        ended: Callable[[int], None] = lambda _: None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.count = count
        self.restarts = 0
        self._assign = assign
        self._tell_ready = ready
        self._tell_ended = ended
        self._clock = clock
        self._group = SystemRandom().randrange(1, 2**32)
        self._places: dict[int, WorkerProcess] = {}  # the one that counts, by number
        self._alive: list[WorkerProcess] = []
        self._has_been_ready = self._is_leaving = self._is_hurrying = False
        self._is_reloading = self._reload_again = False
        self._error: Exception | None = None
        self._told = ServingPorts((), (), 0)
        self._usage = TaskUsage(clock)
        self._jobs: dict[asyncio.Task[None], None] = {}
        self._over = asyncio.Event()
        self._news = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Returns when all workers have left. Raises what keeps the task from starting:
        ConfigError, or RuntimeError for any other failure of a worker."""
        handlers = {
            **dict.fromkeys(SIGNALS, without_echo(self.on_signal)),
            signal.SIGHUP: self.reload,
        }
        if is_init():
            handlers[signal.SIGCHLD] = self._reap
        with handling(asyncio.get_running_loop(), handlers):
            try:
                logger.info("starting %d workers", self.count)
                for number in range(1, self.count + 1):
                    self._do(self._keep(number))
                await self._over.wait()
                await self._all_ended()
            finally:
                await self._end_all()
        if self._error is not None:
            raise self._error

    # --- what it is asked ---------------------------------------------------------

    def on_signal(self) -> None:
        """The first one asks the task to leave, the second not to wait."""
        if not self._is_leaving:
            logger.info("stopping; send the signal again to stop immediately")
            self.leave()
        elif not self._is_hurrying:
            self._is_hurrying = True
            logger.info("stopping immediately")
            for worker in self._alive:
                worker.hurry()
            self._do(self._all_ended(LATE))

    def leave(self) -> None:
        """All workers leave together: one lame duck, and one drain."""
        self._is_leaving = True
        for worker in self._alive:
            worker.tell_siblings(self._told._replace(serving=0))
            worker.leave()
        self._over.set()

    def reload(self) -> None:
        """Replaces each worker by a new one, which imports the program again."""
        if self._is_leaving:
            return
        if self._is_reloading:
            self._reload_again = True
        else:
            self._is_reloading = True
            self._do(self._reload())

    def described(self) -> list[tuple[int, int, bytes]]:
        """Number, process and last description of each worker. Asks for the next."""
        for worker in self._alive:
            worker.ask_description()
        found = [(w.assignment.number, w.pid, w.description) for w in self._alive]
        return sorted(found)

    # --- one place ------------------------------------------------------------------

    async def _keep(self, number: int) -> None:
        """Has a worker in this place until the task leaves."""
        failures = 0
        while not self._is_leaving:
            place = self._places.get(number)
            try:
                if place is None or place.has_ended:  # a reload may have filled it
                    self._places[number] = self._start(number)
            except OSError as error:
                if not self._has_been_ready:
                    raise
                failures += 1
                pause = PAUSES.after(failures)
                words = "worker %d cannot be started: %s; tried again in %.1f s"
                logger.error(words, number, error, pause)
                await self._pause(pause)
                continue
            began_at = self._clock()
            # A reload changes it.
            await self._until(lambda: self._places[number].has_ended)
            worker = self._places[number]
            if self._is_leaving:
                return
            if not self._has_been_ready and not worker.is_ready:
                self._give_up(worker)
                return
            served = worker.is_ready and self._clock() - began_at >= STEADY
            failures = 1 if served else failures + 1
            pause = PAUSES.after(failures)
            self.restarts += 1
            words = "%r %s; another one starts in %.1f s"
            logger.warning(words, worker, worker.how_it_ended(), pause)
            self._log_failure(worker)
            await self._pause(pause)

    async def _pause(self, seconds: float) -> None:
        """Not any longer than the task is to serve."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()

    def _start(self, number: int) -> WorkerProcess:
        taken = {worker.slot for worker in self._alive}
        slot = next(each for each in itertools.count() if each not in taken)
        assignment = self._assign(number, self._group, slot)
        worker = WorkerProcess(assignment, self._changed, self._hear_usage)
        self._alive.append(worker)
        logger.info("%r starts", worker)
        return worker

    def _give_up(self, worker: WorkerProcess) -> None:
        """The task cannot start, and its operator wants to know why."""
        if self._error is None:
            said = worker.failure
            why = worker.how_it_ended() if said is None else said.why
            self._error = RuntimeError(f"{worker!r} cannot start: {why}")
            if said is not None and said.mistake is not None:
                self._error = said.mistake
        self._log_failure(worker)
        self.leave()

    def _log_failure(self, worker: WorkerProcess) -> None:
        if worker.failure is not None:
            logger.error("%r failed:\n%s", worker, worker.failure.story)

    # --- all of them ------------------------------------------------------------------

    async def _reload(self) -> None:
        try:
            logger.info("reloading %d workers", self.count)
            for number in range(1, self.count + 1):
                if not await self._replace(number):
                    return
            logger.info("reloaded %d workers", self.count)
        finally:
            self._is_reloading = False
            if self._reload_again:
                self._reload_again = False
                self.reload()

    async def _replace(self, number: int) -> bool:
        """Whether there is a new worker in this place, which serves."""
        if self._is_leaving:
            return False
        old = self._places[number]
        if old.has_ended:
            return True  # the next one is new
        try:
            new = self._start(number)
        except OSError as error:
            words = "reload stopped: %s; the other workers serve on"
            logger.error(words, error)
            return False
        await self._within(HANGS_AFTER, lambda: new.is_ready or new.has_ended)
        if not (new.is_ready or new.has_ended or self._is_leaving):
            logger.error("%r is not ready after %d s; killed", new, HANGS_AFTER)
            new.kill()
            await self._until(lambda: new.has_ended)
        if self._is_leaving:
            return False
        if not new.is_ready:
            words = "reload stopped: %r %s; the other workers serve on"
            logger.error(words, new, new.how_it_ended())
            self._log_failure(new)
            return False
        old = self._places[number]  # may be another one by now, started in its place
        self._places[number] = new
        old.leave()
        self._changed()
        await self._wait_ended(old)
        return not self._is_leaving

    def _changed(self) -> None:
        """A worker has said something, or has ended."""
        self._news.set_result(None)
        self._news = asyncio.get_running_loop().create_future()
        ended = [worker for worker in self._alive if worker.has_ended]
        self._alive = [worker for worker in self._alive if not worker.has_ended]
        for worker in ended:
            self._usage.ended(worker.pid)
            try:
                self._tell_ended(worker.pid)
            except Exception:  # such as of a file that is gone, or read-only
                logger.exception("what %r has left cannot be put in order", worker)
        if is_init():
            self._reap()
        # By places: during a reload that began early there are more workers than these.
        serving = [worker for worker in self._places.values() if worker.serves()]
        self._tell_ports()
        if not self._has_been_ready and len(serving) == self.count:
            self._has_been_ready = True
            logger.info("%d workers are ready", self.count)
            try:
                self._tell_ready(serving[0].listening)
            except Exception as error:  # such as of a closed stdout
                self._error = RuntimeError(f"cannot say that it is ready: {error!r}")
                self.leave()
        self._tell_who_is_quiet()

    def _tell_who_is_quiet(self) -> None:
        leaving = [worker for worker in self._alive if worker.is_leaving]
        if not self._is_leaving:
            for worker in leaving:
                if worker.is_quiet:
                    worker.all_quiet()  # it leaves alone
        elif all(worker.is_quiet or not worker.is_ready for worker in leaving):
            for worker in leaving:
                worker.all_quiet()

    def _tell_ports(self) -> None:
        """Each worker tells its clients of all. What all leave is as good as told."""
        places = [self._places.get(number + 1) for number in range(self.count)]
        ports = ports_of(
            worker.ports if worker is not None and worker.serves() else ()
            for worker in places
        )
        serving = sum(worker.serves() for worker in self._alive)
        told = ServingPorts(ports, tuple(worker.pid for worker in self._alive), serving)
        if told != self._told and not self._is_leaving:
            self._told = told
            for worker in self._alive:
                worker.tell_siblings(told)

    def _hear_usage(self, worker: WorkerProcess, told: UsageTold) -> None:
        self._do(self._usage.answer(worker.pid, told, worker.tell_usage))

    async def _all_ended(self, timeout: float | None = None) -> None:
        await asyncio.gather(
            *(self._wait_ended(worker, timeout) for worker in self._alive)
        )

    async def _wait_ended(
        self, worker: WorkerProcess, timeout: float | None = None
    ) -> None:
        """Waits until a leaving worker has ended, and kills it when it is late: after
        `timeout` seconds, if given."""
        if timeout is None:
            timeout = worker.period + LATE if worker.is_ready else UNREADY
        await self._within(timeout, lambda: worker.has_ended)
        if not worker.has_ended:
            logger.error("%r has not left within %d s; killed", worker, timeout)
            worker.kill()
            await self._until(lambda: worker.has_ended)

    async def _end_all(self) -> None:
        """Whatever happened, no worker outlives its supervisor."""
        for worker in list(self._alive):
            worker.kill()
        await self._until(lambda: not self._alive)
        for job in list(self._jobs):
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)

    # --------------------------------------------------------------------------

    async def _until(self, is_so: Callable[[], bool]) -> None:
        """Waits until it is so, as far as workers say and end."""
        while not is_so():
            await asyncio.wait([self._news])

    async def _within(self, seconds: float, is_so: Callable[[], bool]) -> None:
        """As `_until`, but no longer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._until(is_so)

    def _reap(self) -> None:
        reap(lambda: {worker.pid for worker in self._alive})

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        job = asyncio.get_running_loop().create_task(work)
        self._jobs[job] = None
        job.add_done_callback(self._done)

    def _done(self, job: "asyncio.Task[None]") -> None:
        del self._jobs[job]
        if not job.cancelled() and (error := job.exception()) is not None:
            logger.error("the supervisor failed", exc_info=error)
            self._error = RuntimeError(f"the supervisor failed: {error!r}")
            self.leave()

    def __repr__(self) -> str:
        ready = sum(worker.is_ready for worker in self._alive)
        return f"<{ready} of {self.count} workers ready, {self.restarts} restarts>"


def ports_of(places: Iterable[Iterable[tuple[int, int]]]) -> Ports:
    """The own ports of all places by shared port; a place may have no worker.

    >>> ports_of([[(50051, 40001)], [], [(50051, 40000)]])
    ((50051, (40001, 0, 40000)),)
    """
    each: list[dict[int, int]] = [dict(ports) for ports in places]
    shared = sorted({port for own in each for port in own})
    return tuple((port, tuple(own.get(port, 0) for own in each)) for port in shared)
