"""Warns of a coroutine that blocks the event loop, as `time.sleep` in a handler does.

Meanwhile the server serves nobody, and a handler that waits for its own server in a
blocking function waits for ever. So another thread looks at the loop, one for all loops
of the process. A request costs nothing more.

No warning is for a loop that computes, or that waits for a processor: its thread runs
or is runnable. Where the whole process stood still, the looking thread did so, too.
Where other threads keep Python's lock, the process uses a CPU.
"""

import asyncio
import os
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import NamedTuple

from lbclient.core.counting.line_limit import LineLimit
from lbclient.core.protocols import Clock
from lbclient.log import Log
from lbclient.server.meters.system_files import read_bytes
from lbclient.server.report.streams import TICK

logger = Log("lbclient.server")

# Seconds. Ours: an occasional handler that takes 0.1 s, or a slow import, is none of
# it, and clients have deadlines of seconds.
LONG = 1.0
PERIOD = 0.25  # seconds between two looks
LATE = 0.05  # seconds that a beat may be late on a loop that is just busy
MOST = 10.0  # seconds after which is told what is not over yet: it may be a deadlock
# Shares of the time: what a loop's thread uses or wants of a CPU at most, in which
# something blocks it; and the process, in which no other thread keeps Python's lock.
MOST_USED, MOST_OF_PROCESS = 0.5, 0.8

ADVICE = (
    "meanwhile the server served nobody; a handler that is a plain `def` runs in a"
    " thread, and so does what is called by `await asyncio.to_thread(...)`"
)

# Folders: Python's own library, and lbclient.
LIBRARIES = (
    os.path.dirname(os.__file__) + os.sep,
    os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..")) + os.sep,
)


class ThreadReading(NamedTuple):
    """What the system tells of a thread: whether it is asleep now, and the seconds in
    which it ran or waited for a processor so far. `process` is the CPU time of all."""

    is_asleep: bool
    used: float
    process: float


def read_thread(number: int) -> ThreadReading | None:
    """Reads a thread by its native number; None where that is unknown."""
    folder = f"/proc/self/task/{number}"
    state = read_bytes(f"{folder}/stat").rpartition(b") ")[2][:1]
    times = read_bytes(f"{folder}/schedstat").split()
    if len(times) < 2 or times[0] == b"0":  # a kernel that does not count says 0
        return None
    used = (int(times[0]) + int(times[1])) * 1e-9
    return ThreadReading(state == b"S", used, time.process_time())


def stack_of(thread: int) -> FrameType | None:
    return sys._current_frames().get(thread)


@dataclass(slots=True)
class Suspicion:
    """A task in which the loop's last beat is late. `seen` counts the looks by method
    and place, until it is told: the last one may be just behind what blocked."""

    task: int  # its id
    beat_at: float
    began_at: float
    seen_at: float
    first: ThreadReading
    looks: int = 1
    asleep: int = 0
    is_blocked: bool = False
    is_told: bool = False
    seen: Counter[tuple[str, str]] = field(default_factory=Counter)

    def look(self, reading: ThreadReading, now: float) -> None:
        self.looks += 1
        self.asleep += reading.is_asleep
        took = now - self.seen_at
        self.is_blocked = (
            2 * self.asleep >= self.looks
            and reading.used - self.first.used <= MOST_USED * took
            and reading.process - self.first.process <= MOST_OF_PROCESS * took
        )


class LoopWatch:
    """Looks whether one loop is blocked. Made and told of beats on the loop's thread;
    all else is done by the thread that looks."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        find_method: Callable[[FrameType], str],
        clock: Clock = time.monotonic,
        read: Callable[[int], ThreadReading | None] = read_thread,
        stack: Callable[[int], FrameType | None] = stack_of,
    ) -> None:
        self.users = 0
        self._loop = weakref.ref(loop)
        self._find_method = find_method
        self._clock = clock
        self._read = read
        self._stack = stack
        self._thread = threading.get_ident()
        self._native = threading.get_native_id()
        self._beat_at = self._looked_at = clock()
        self._suspicion: Suspicion | None = None
        self._limit = LineLimit()

    def is_of(self, loop: asyncio.AbstractEventLoop) -> bool:
        return self._loop() is loop

    def beat(self) -> None:
        """The loop goes round; to be called every `TICK`."""
        self._beat_at = self._clock()

    def look(self) -> bool:
        """To be called every `PERIOD`. Returns False if the loop is gone."""
        now, loop = self._clock(), self._loop()
        if loop is None or loop.is_closed():
            return False
        before, self._looked_at = self._looked_at, now
        beat_at, suspicion = self._beat_at, self._suspicion
        if suspicion is not None and suspicion.beat_at != beat_at:
            self._end(suspicion, beat_at, now)
        due_at = beat_at + TICK
        was_kept = now - before > 2 * PERIOD  # from looking, as the loop may have been
        if was_kept or now < due_at + LATE or not loop.is_running():
            self._suspicion = None
        else:
            self._suspect(loop, due_at, now)
        return True

    def _suspect(
        self, loop: asyncio.AbstractEventLoop, due_at: float, now: float
    ) -> None:
        task, reading = asyncio.current_task(loop), self._read(self._native)
        before = self._suspicion
        if before is not None and (task is None or before.task != id(task)):
            self._end(before, now, now)  # its next beat is still to come
        if task is None or reading is None:
            self._suspicion = None
        elif before is None or before.task != id(task):
            began_at = due_at if before is None else now
            self._suspicion = Suspicion(id(task), self._beat_at, began_at, now, reading)
        else:
            before.look(reading, now)
            is_asked = before.is_blocked and not before.is_told
            if is_asked and (frame := self._stack(self._thread)) is not None:
                before.seen[self._find_method(frame), place_of(frame)] += 1
            if before.is_blocked and now - before.began_at >= MOST:
                self._tell(before, now, now, is_over=False)

    def _end(self, found: Suspicion, until: float, now: float) -> None:
        if found.is_blocked and until - found.began_at >= LONG:
            self._tell(found, until, now, is_over=True)
        self._suspicion = None

    def _tell(
        self, found: Suspicion, until: float, now: float, *, is_over: bool
    ) -> None:
        if found.is_told:
            return
        found.is_told = True
        if (left_out := self._limit.take(now)) is None:
            return
        [((method, place), _)] = found.seen.most_common(1) or [(("", ""), 0)]
        logger.warning(
            "%s %s the event loop for %s s%s, in %s: %s%s",
            method or "a task",
            "blocked" if is_over else "has blocked",
            round(until - found.began_at, 1),
            "" if is_over else " so far",
            place or "a place unknown",
            ADVICE,
            f"; {left_out} more times since this was last logged" if left_out else "",
            reason=f"blocked in {place}",
        )

    def __repr__(self) -> str:
        return f"<of {self.users} servers, {self._suspicion or 'not blocked'}>"


class LoopWatches:
    """Looks at all loops of the process that servers run on, in one thread, which ends
    with the process. Without any loop it only waits."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._watches: dict[int, LoopWatch] = {}  # by the loop's id
        self._thread: threading.Thread | None = None
        self._has_some = threading.Event()
        self._changing = threading.Lock()

    def enter(
        self, loop: asyncio.AbstractEventLoop, find_method: Callable[[FrameType], str]
    ) -> LoopWatch:
        """A server starts on its loop. `find_method` finds the method that is served
        in a stack."""
        if self._process != os.getpid():
            # A fork has neither the thread, nor whoever would release its locks.
            self._begin()
        with self._changing:
            watch = self._watches.get(id(loop))
            if watch is None or not watch.is_of(loop):
                watch = self._watches[id(loop)] = LoopWatch(loop, find_method)
            watch.users += 1
            if self._thread is None:
                name = "lbclient-blocked-loop"
                self._thread = threading.Thread(
                    target=self._run, name=name, daemon=True
                )
                self._thread.start()
        self._has_some.set()
        return watch

    def leave(self, watch: LoopWatch) -> None:
        """A server has stopped, or is collected: in any thread, at any moment, so this
        waits for no lock."""
        watch.users -= 1

    def _run(self) -> None:
        while True:
            self._has_some.clear()
            if not self._watches:
                self._has_some.wait()
            time.sleep(PERIOD)
            for key, watch in list(self._watches.items()):
                is_there = _looked(watch)
                with self._changing:
                    # Another loop may have its id by now.
                    is_its = self._watches.get(key) is watch
                    if is_its and not (is_there and watch.users):
                        del self._watches[key]

    def __repr__(self) -> str:
        return f"<{len(self._watches)} loops>"


def _looked(watch: LoopWatch) -> bool:
    try:
        return watch.look()
    except Exception as error:  # whatever it is, other loops are looked at
        logger.exception("%r failed", watch, reason=error)
        return False


LOOPS = LoopWatches()


def place_of(frame: FrameType) -> str:
    """The innermost line that is of no library, where there is one."""
    own: FrameType | None = frame
    while own is not None and _is_of_library(own.f_code.co_filename):
        own = own.f_back
    found = frame if own is None else own
    return f"{found.f_code.co_filename}:{found.f_lineno} ({found.f_code.co_name})"


def _is_of_library(file: str) -> bool:
    return file.startswith((*LIBRARIES, "<")) or "site-packages" in file
