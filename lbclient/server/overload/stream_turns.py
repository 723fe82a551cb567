"""Handlers of streams take turns with new requests, step by step.

A request enters the run queue once, when its handler begins. A stream goes on for
minutes, and any step of its handler may take the loop for as long as a new request
does. So each step is timed, where it begins and where the handler awaits something. A
stream that takes long waits for its turn among the new requests, and is load. One that
gives the loop back soon never waits. Tasks that a handler starts are not seen.
"""

import asyncio
from collections.abc import Awaitable, Generator
from math import inf
from types import coroutine
from typing import Any, TypeVar

from lbclient.core.protocols import Clock
from lbclient.server.overload.run_queue import TUNING as RUN_QUEUE
from lbclient.server.overload.run_queue import RunQueue

T = TypeVar("T")

# Seconds for which a stream waits for its turns since a step of it took long. What
# follows a message that comes may be dear, and what follows its answer cheap.
DEAR = 1.0


class StreamTurns:
    """Has a stream whose steps take long wait its turn. Of one stream, for as long as
    the task lives in which it is made."""

    __slots__ = ("_clock", "_dear_until", "_queue")

    def __init__(self, queue: RunQueue, clock: Clock) -> None:
        self._queue = queue
        self._clock = clock
        self._dear_until = -inf
        queue.stream_began()
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(queue.stream_ended)

    @coroutine
    def run(self, work: Awaitable[T]) -> Generator[Any, None, T]:
        """Awaits what its handler does, of which each step takes its turn."""
        queue, clock, steps = self._queue, self._clock, work.__await__()
        error: BaseException | None = None
        while True:
            now = clock()
            if queue.is_closed and now < self._dear_until and error is None:
                try:
                    yield from queue.go_on()
                except BaseException as raised:
                    error = raised
                now = clock()
            try:
                awaited = next(steps) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            finally:
                error = None  # or it would keep this frame, and this frame it
                if clock() - now >= RUN_QUEUE.long:
                    self._dear_until = now + DEAR
                    queue.stepped(now)
            try:
                yield awaited
            except BaseException as raised:
                error = raised
