"""Background tasks and timers: one that fails is logged, counted, and lives again.

A task can die of more than an Exception: code of a user, or a library, may raise
CancelledError though nobody cancelled anything, another BaseException, or just return.
`Tasks` starts it again, after a pause. KeyboardInterrupt and SystemExit are for
whoever runs the loop, and pass.

Whether a task was cancelled says `Task.cancelling()`, but only where no code of others
runs: code that cancels its own task, and catches that without `uncancel`, leaves the
count above zero for ever. Hence `in_own_task`.

A cancelled task keeps its exception, that its traceback, that every frame's locals; a
TaskGroup among them (Python 3.11 to 3.13) makes a cycle of it. In those frames is a
call, and grpc keeps a connection open, even of a closed channel, until the last call
on it is collected: servers would see connections that nobody has any more. Hence
`leaving_no_trace`.
"""

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from math import inf
from random import Random
from typing import Any, TypeVar, cast

from lbclient.core.backoff import jittered
from lbclient.log import Log, bare_context

logger = Log(__name__)

PAUSE = 1.0  # seconds before a task that ended is started again, give or take a half
LONGEST_PAUSE = 30.0  # seconds, if it fails again and again
STEADY = 60.0  # seconds that a task runs before its next failure counts as the first

AT_ONCE = 32  # tasks begun or ended in one turn of the loop, of 0.02 to 0.2 ms each
LOG_EVERY = 10.0  # seconds between two log lines about failures of one kind

CLOSE_WITHIN = 5.0  # seconds for the tasks of an owner to end once they are cancelled
CANCEL_EVERY = 1.0  # seconds; user code may take one CancelledError for its own

T = TypeVar("T")
Job = Callable[[], Awaitable[None]]


def is_cancelled() -> bool:
    """Whether somebody has cancelled the running task; asked where a CancelledError
    came up that may be of another making.

    Only for tasks that run no code of others but by `in_own_task`.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def is_fatal(error: BaseException) -> bool:
    """Whether it is for whoever runs the loop: no failure of what raised it."""
    return isinstance(error, KeyboardInterrupt | SystemExit)


def is_own_end(error: BaseException) -> bool:
    """Whether the running coroutine has to end with this error that came up at an
    await: it is fatal, or the coroutine was closed, or its task was cancelled."""
    return is_fatal(error) or isinstance(error, GeneratorExit) or is_cancelled()


async def in_own_task(work: Callable[[], Awaitable[T]]) -> T:
    """Awaits code that may be of others, in a task of its own.

    What that code cancels there leaves no count in the caller's task. If it raises
    GeneratorExit, which would close the coroutines that await it, a RuntimeError comes
    of that, as Python makes one of StopIteration. If the caller is cancelled, so is
    that task, and it is waited for.
    """
    result, error = await leaving_no_trace(_outcome(work))
    if error is None:
        return cast(T, result)
    try:
        if isinstance(error, GeneratorExit):
            raise RuntimeError("GeneratorExit was raised") from error
        raise error
    finally:
        error = None  # nor a cycle of it and this frame


async def _outcome(
    work: Callable[[], Awaitable[T]],
) -> tuple[T | None, BaseException | None]:
    """What it returned or raised, as values: a task that raises GeneratorExit would
    close whoever awaits it."""
    try:
        return await work(), None
    except BaseException as error:
        return None, error


class Tasks:
    """The background tasks and timers of one owner, a channel or a server.

    `failures` is how often any of them failed; `name` is for the log, and `channel` the
    label of the channel, if the owner is one. A channel's have a context of their own:
    callers set them off, and neither keys, deadlines nor spans of a call are theirs. A
    server's have that of whoever started it, as its requests do.
    """

    def __init__(self, name: str, rng: Random, channel: str = "") -> None:
        self.failures = 0
        self.is_closed = False
        self._name = name
        self._channel = channel
        self._rng = rng
        self._tasks: dict[object, asyncio.Task[None]] = {}
        self._logged_at: dict[str, float] = {}  # by kind, which are few

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, key: object) -> bool:
        return key in self._tasks

    # --- tasks ----------------------------------------------------------------

    def keep(self, key: object, job: Job) -> None:
        """Runs `job` until it is dropped, again whenever it ends. What it is made of
        may be of others: each run has a task of its own."""
        if not self.is_closed:
            context = self.new_context()
            self._tasks[key] = leaving_no_trace(self._kept(key, job), context)

    def drop(self, key: object) -> None:
        """Cancels it, if it was ever kept."""
        if (task := self._tasks.pop(key, None)) is not None:
            task.cancel()

    def new_context(self) -> Context | None:
        """Makes the one to begin in; None: that of who asks."""
        return bare_context() if self._channel else None

    async def _kept(self, key: object, job: Job) -> None:
        loop = asyncio.get_running_loop()
        pause = PAUSE
        while True:
            began_at = loop.time()
            try:
                await in_own_task(job)
                error: BaseException | None = None
            except BaseException as raised:
                if is_own_end(raised):
                    raise
                error = raised
            if is_cancelled():  # and the job took that for its own affair
                return
            if loop.time() - began_at >= STEADY:
                pause = PAUSE
            self.failed(key, error)
            error = None  # nor its frames, while it waits
            await asyncio.sleep(jittered(pause, self._rng))
            pause = min(2 * pause, LONGEST_PAUSE)

    # --- timers ---------------------------------------------------------------

    def attempt(self, what: Callable[[], object]) -> bool:
        """Calls it; False if it failed, which is logged and counted."""
        try:
            what()
        except BaseException as error:
            if is_fatal(error):
                raise
            self.failed(what, error)
            return False
        return True

    def failed(self, what: object, error: BaseException | None) -> None:
        """Counts and logs a failure. None: a task ended by itself.

        At most one log line per kind every `LOG_EVERY` seconds.
        """
        self.count_failure()
        kind = getattr(what, "__qualname__", type(what).__qualname__)
        now = asyncio.get_running_loop().time()
        if now - self._logged_at.get(kind, -inf) < LOG_EVERY:
            return
        self._logged_at[kind] = now
        how = "ended" if error is None else f"failed with {type(error).__name__}"
        logger.error(
            "%s: %r %s; starting it again",
            self._name,
            what,
            how,
            exc_info=error,
            channel=self._channel,
            reason=how,
        )

    def count_failure(self) -> None:
        """Counts a failure that the caller has logged."""
        self.failures += 1

    # --- the end --------------------------------------------------------------

    def cancel(self) -> None:
        self.is_closed = True
        for task in self._tasks.values():
            task.cancel()

    async def close(self) -> None:
        """Returns when all have ended, or after `CLOSE_WITHIN`."""
        self.is_closed = True
        for number, task in enumerate(list(self._tasks.values()), start=1):
            task.cancel()
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + CLOSE_WITHIN
        tasks = {task: key for key, task in self._tasks.items()}
        while tasks:
            left = give_up_at - loop.time()
            if left <= 0.0:
                logger.error(
                    "%s: %r goes on though it was cancelled",
                    self._name,
                    next(iter(tasks.values())),
                    channel=self._channel,
                )
                return
            _, pending = await asyncio.wait(tasks, timeout=min(CANCEL_EVERY, left))
            tasks = {task: tasks[task] for task in tasks if task in pending}
            for task in tasks:
                task.cancel()

    def __repr__(self) -> str:
        return f"<{len(self)} tasks, {self.failures} failures>"


class Alarm:
    """A timer of `tasks` that is set again and again. `ring` may set it, too.

    If `ring` fails it is called again after a pause.
    """

    def __init__(self, tasks: Tasks, ring: Callable[[], None]) -> None:
        self.rang_at = -inf  # last, by the loop's time
        self._tasks = tasks
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None

    def is_set(self) -> bool:
        return self._timer is not None

    def set(self, delay: float) -> None:
        """Rings then, and not before; does nothing once `tasks` are closed."""
        self.clear()
        if not self._tasks.is_closed:
            loop = asyncio.get_running_loop()
            context = self._tasks.new_context()
            self._timer = loop.call_later(delay, self._go, context=context)

    def set_unless_sooner(self, delay: float) -> None:
        timer, now = self._timer, asyncio.get_running_loop().time()
        if timer is None or timer.when() > now + delay:
            self.set(delay)

    def clear(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _go(self) -> None:
        self._timer = None
        self.rang_at = asyncio.get_running_loop().time()
        if not self._tasks.attempt(self._ring) and self._timer is None:
            self.set(PAUSE)


def leaving_no_trace(
    coroutine: Coroutine[Any, Any, T], context: Context | None = None
) -> asyncio.Task[T]:
    """A task whose frames are emptied as soon as it has been cancelled."""
    task = asyncio.get_running_loop().create_task(coroutine, context=context)
    task.add_done_callback(_empty)
    return task


async def until_one_ends(*tasks: asyncio.Task[Any]) -> None:
    """As `asyncio.wait` for the first, in half of its memory: some waits last as long
    as a connection."""
    if any(task.done() for task in tasks):
        return
    ended = asyncio.get_running_loop().create_future()

    def note(_: object) -> None:
        if not ended.done():
            ended.set_result(None)

    for task in tasks:
        task.add_done_callback(note)
    try:
        await ended
    finally:
        for task in tasks:
            task.remove_done_callback(note)


def _empty(task: asyncio.Task[Any]) -> None:
    if task.cancelled():
        try:
            task.exception()  # raises, and takes the exception from the task
        except asyncio.CancelledError as error:
            traceback.clear_frames(error.__traceback__)


def cancellations() -> int:
    """How often the running task was told to end: more than before an await, and the
    CancelledError that it raised is for this task."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()
