"""How much of the time an event loop is busy: the time outside its selector.

One loop runs on one CPU, and a handler that blocks its thread uses none. So the CPU
time of the process does not tell how full the loop is.

asyncio has no public hook for this. On loops of asyncio's own `loop._selector.select`
is timed while a server runs. Other loops, such as uvloop, have no such attribute: there
the time is unknown, and the CPU time of the loop's thread counts alone.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from lbclient.core.protocols import Clock

# Seconds: who asks at once after a start finds that nothing was waited for.
SHORTEST = 0.02


class SelectTimer:
    """Takes the place of a selector's `select`; all servers of a loop share it."""

    def __init__(self, selector: Any, clock: Clock) -> None:
        self._selector = selector
        self._clock = clock
        self._inner: Callable[[float | None], Any] = selector.select
        self._is_own = "select" in vars(selector)  # of others who have replaced it
        self.idle = 0.0  # seconds ever
        self.users = 0

    def select(self, timeout: float | None = None) -> Any:
        # A loop that has something to do does not wait: it saves reading the clock.
        if timeout is not None and timeout <= 0.0:
            return self._inner(timeout)
        began_at = self._clock()
        try:
            return self._inner(timeout)
        finally:
            self.idle += self._clock() - began_at

    def remove(self) -> None:
        """Where others have replaced `select` since, they go on calling this one."""
        if _timer(self._selector) is not self:
            return
        if self._is_own:
            self._selector.select = self._inner
        else:
            del self._selector.select

    def __repr__(self) -> str:
        return f"<{self.users} servers, {self.idle:.3f} s idle>"


class LoopMeter:
    """Measures the share of time in which the event loop is busy. Owned by a server,
    used on its loop's thread only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._timer: SelectTimer | None = None
        self._read: tuple[float, float] | None = None  # when, and idle until then

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Times the loop's selector from now on, until `ignore`."""
        selector = getattr(loop, "_selector", None)
        if self._timer is not None or not hasattr(selector, "select"):
            return
        timer = _timer(selector)
        if timer is None:
            try:
                timer = SelectTimer(selector, self._clock)
                selector.select = timer.select  # type: ignore[union-attr]
            except (AttributeError, TypeError):  # none of asyncio's own
                return
        timer.users += 1
        self._timer = timer
        self._read = self._clock(), timer.idle

    def ignore(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.users -= 1
            if not timer.users:
                timer.remove()

    def read(self) -> float | None:
        """The share of time in which the loop was busy since it was asked before; None
        where it is unknown, or that was just now."""
        timer, before = self._timer, self._read
        if timer is None or before is None:
            return None
        now, idle = self._clock(), timer.idle
        if now < before[0] + SHORTEST:
            return None
        self._read = now, idle
        return min(1.0, max(0.0, 1.0 - (idle - before[1]) / (now - before[0])))

    def __repr__(self) -> str:
        return f"<of {self._timer!r}>"


def _timer(selector: Any) -> SelectTimer | None:
    found = getattr(selector.select, "__self__", None)
    return found if isinstance(found, SelectTimer) else None
