"""Virtual time for several processes, each with an event loop of its own.

The world runs whatever is due first: an event of the network or of the plan, or one
turn of one process's loop. So a process can be blocked or frozen for seconds while
the others go on, and what was due meanwhile comes late, as it does in earnest.
"""

import asyncio
import heapq
import selectors
import socket
from asyncio import events
from collections.abc import Callable
from functools import partial
from itertools import count
from math import inf
from random import Random
from typing import Any

EPOCH = 1_800_000_000.0  # what time.time() says when a world begins
MANY_TIMERS, MOST_CANCELLED = 100, 0.5  # of asyncio, before it drops cancelled ones
SPIN = 20_000  # turns of loops in one instant: somebody goes round without waiting


class SpinError(Exception):
    """A loop turned again and again, and no time passed."""


class Timer:
    """An event of the world, which can be called off."""

    __slots__ = ("do",)

    def __init__(self, do: Callable[[], None]) -> None:
        self.do: Callable[[], None] | None = do

    def cancel(self) -> None:
        self.do = None


class NoSelector(selectors.SelectSelector):
    """Finds nothing, at once: loops of a world have no sockets, and never wait."""

    def select(self, timeout: float | None = None) -> list[Any]:
        return []


class ProcessLoop(asyncio.SelectorEventLoop):
    """The loop of one process of a world; its time is the world's."""

    def __init__(self, clock: "Clock", name: str) -> None:
        self.clock = clock
        super().__init__(NoSelector())
        self.name = name
        self.blocked_until = 0.0
        self.worked = 0.0  # CPU seconds, ever
        self._working = 0.0  # of them, in the turn that runs
        self.turn_takes = 0.0  # seconds of CPU time, each turn by itself
        self.errors: list[str] = []  # what nobody caught
        # What the kernel tells: descriptors that can be read, signals.
        self.readers: dict[Any, Callable[[], object]] = {}
        self.signals: dict[int, Callable[[], object]] = {}
        self.member: Any = None  # of a worker: its place in its task
        self.task: Any = None  # of a supervisor: its task
        self.set_exception_handler(self._note_error)

    def add_reader(  # type: ignore[override]
        self, fd: Any, callback: Any, *args: Any
    ) -> None:
        self.readers[fd] = partial(callback, *args)

    def remove_reader(self, fd: Any) -> bool:
        return self.readers.pop(fd, None) is not None

    def add_signal_handler(  # type: ignore[override]
        self, sig: int, callback: Any, *args: Any
    ) -> None:
        self.signals[sig] = partial(callback, *args)

    def forget(self) -> None:
        """All that its process was told to do."""
        self.readers.clear()
        self.signals.clear()
        self.member = self.task = None

    def remove_signal_handler(self, sig: int) -> bool:
        return self.signals.pop(sig, None) is not None

    def time(self) -> float:
        return self.clock.now + self._working

    def work(self, seconds: float) -> None:
        """Takes CPU time in the turn that runs; what is due next comes later."""
        self._working += seconds
        self.worked += seconds

    def _note_error(self, _: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        whose = context.get("task") or context.get("future")
        self.errors.append(f"{context['message']}: {error!r} {whose!r}")

    def turn(self) -> None:
        """Runs what is due, once."""
        events._set_running_loop(self)
        try:
            self._run_due()
        finally:
            events._set_running_loop(None)
            self.work(self.turn_takes)
            if self._working:
                self.block(self._working)
                self._working = 0.0

    def _run_due(self) -> None:
        """As `BaseEventLoop._run_once`, but for what a loop without sockets spares."""
        scheduled: list[Any] = self._scheduled  # type: ignore[has-type]
        ready: Any = self._ready  # type: ignore[attr-defined]
        if len(scheduled) > MANY_TIMERS and (
            self._timer_cancelled_count  # type: ignore[has-type]
            > MOST_CANCELLED * len(scheduled)
        ):
            kept = []
            for timer in scheduled:
                if timer._cancelled:
                    timer._scheduled = False
                else:
                    kept.append(timer)
            heapq.heapify(kept)
            self._scheduled, self._timer_cancelled_count = kept, 0
            scheduled = kept
        while scheduled and scheduled[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(scheduled)._scheduled = False
        end = self.clock.now + self._clock_resolution  # type: ignore[attr-defined]
        while scheduled and scheduled[0]._when < end:
            timer = heapq.heappop(scheduled)
            timer._scheduled = False
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        """Hosts of a world are numbers already."""
        return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", (host, port))]

    async def create_datagram_endpoint(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], *, sock: Any, **_: Any
    ) -> Any:
        """Of a socket in memory."""
        protocol = protocol_factory()
        transport = sock.listen(self, protocol.datagram_received)
        protocol.connection_made(transport)
        return transport, protocol

    def is_running(self) -> bool:
        return events._get_running_loop() is self

    def block(self, seconds: float) -> None:
        """Some code keeps the thread; SIGSTOP does the same."""
        self.blocked_until = max(self.blocked_until, self.clock.now + seconds)


def worked() -> float:
    """CPU seconds of the process whose code runs; in the place of `thread_time`."""
    loop = events._get_running_loop()
    return loop.worked if isinstance(loop, ProcessLoop) else 0.0


def member() -> Any:
    """Of the process whose code runs; in the place of `membership`."""
    return getattr(events._get_running_loop(), "member", None)


class Clock:
    """The time of a world, its events, and the loops of its processes."""

    def __init__(self, rng: Random) -> None:
        self.now = 0.0
        self.turns = 0
        self.loops: list[ProcessLoop] = []
        self._rng = rng
        self._events: list[tuple[float, int, Timer]] = []
        self._numbers = count()
        self.instants: list[float] | None = None  # at which something was done
        self._since = 0  # turns at this instant

    def wall(self) -> float:
        return EPOCH + self.now

    def at(self, when: float, do: Callable[[], None]) -> Timer:
        timer = Timer(do)
        number = next(self._numbers)
        heapq.heappush(self._events, (max(when, self.now), number, timer))
        return timer

    def after(self, delay: float, do: Callable[[], None]) -> Timer:
        return self.at(self.now + delay, do)

    def start(self, name: str) -> ProcessLoop:
        loop = ProcessLoop(self, name)
        self.loops.append(loop)
        return loop

    def end(self, loop: ProcessLoop) -> None:
        """The process is gone, as by SIGKILL: none of its code runs any more."""
        if loop in self.loops:
            self.loops.remove(loop)

    def forget(self) -> None:
        """Everything that was to come."""
        self._events.clear()
        self.loops.clear()

    def run(self, until: float, is_over: Callable[[], bool] = lambda: False) -> None:
        """Until a time, or until `is_over`, which is asked between two turns."""
        while not is_over():
            if not self._step(until):
                self.now = max(self.now, until)
                return

    def _next(self) -> tuple[float, list[ProcessLoop]]:
        """When a loop has something to do, and which ones have."""
        now, due = self.now, inf
        first: list[ProcessLoop] = []
        for loop in self.loops:  # when each has something to do
            if loop._ready:  # type: ignore[attr-defined]
                at = now
            elif loop._scheduled:
                at = loop._scheduled[0]._when
            else:
                continue
            at = max(at, loop.blocked_until)
            if at < due:
                due, first = at, [loop]
            elif at == due:
                first.append(loop)
        return due, first

    def _step(self, until: float) -> bool:
        due, first = self._next()
        event_at = self._events[0][0] if self._events else inf
        at = min(due, event_at)
        if at > until or at == inf:
            return False
        if at > self.now:
            self.now, self._since = at, 0
            if self.instants is not None:
                self.instants.append(at)
        self._since += 1
        if self._since > SPIN:
            raise SpinError(f"{self._since} turns at {self.now:.3f} s: {first}")
        if event_at <= due:
            _, _, timer = heapq.heappop(self._events)
            if timer.do is not None:
                timer.do()
            return True
        self.turns += 1
        loop = first[0] if len(first) == 1 else self._rng.choice(first)
        loop.turn()
        return True
