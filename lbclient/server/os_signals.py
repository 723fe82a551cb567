"""Handles SIGTERM and other signals on an event loop, within a block."""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from lbclient.log import Log

SIGNALS = (signal.SIGTERM, signal.SIGINT)  # that stop a server

# Seconds. A program that passes on the signal, when all processes of its group or
# control group got it, takes milliseconds; people take longer to press Ctrl-C again.
ECHO = 0.5

logger = Log(__name__)


def without_echo(handle: Callable[[], None]) -> Callable[..., None]:
    """Leaves out signals that follow within `ECHO` of the first one: they are the same
    signal, which came in two ways."""
    until: float | None = None

    def on_signal(*_: object) -> None:
        nonlocal until
        if until is None:
            until = time.monotonic() + ECHO
        elif time.monotonic() < until:
            return
        handle()

    return on_signal


class SignalDispatch:
    """Calls the handlers of several blocks for one signal, of which a loop keeps one
    handler only, as where a program serves two servers."""

    def __init__(self, loop: Any, number: signal.Signals) -> None:
        self._loop = loop
        self._number = number
        self.handlers: list[Callable[[], object]] = []
        self._before = signal.getsignal(number)
        # asyncio's. uvloop shows none: a program's handler there is not put back, and
        # the signal ends the process afterwards, by default.
        self._kept: dict[int, object] = getattr(loop, "_signal_handlers", {})
        self._loops_own = self._kept.get(number)
        loop.add_signal_handler(number, self._call)
        self._was_loops = signal.getsignal(number) == self._before

    def _call(self) -> None:
        for handle in self.handlers:
            self._loop.call_soon(handle)  # by itself: one that raises stops no other

    def restore(self) -> None:
        """Puts back what was there before."""
        if self._loops_own is not None:
            self._kept[self._number] = self._loops_own
            return
        self._loop.remove_signal_handler(self._number)
        if self._before is not None and not self._was_loops:
            signal.signal(self._number, self._before)

    def __repr__(self) -> str:
        return f"<{self._number.name} for {len(self.handlers)}>"


# Weak: a loop that is dropped in the middle of a block is collected.
_dispatches: WeakKeyDictionary[
    asyncio.AbstractEventLoop, WeakValueDictionary[signal.Signals, SignalDispatch]
] = WeakKeyDictionary()


@contextmanager
def handling(
    loop: asyncio.AbstractEventLoop,
    handlers: Mapping[signal.Signals, Callable[[], None]],
) -> Iterator[None]:
    """Signals are left alone where they cannot be handled, as in a thread.

    A signal calls the handlers of all blocks that are open on the loop, in place of the
    one that it had before, which the last block to end puts back.
    """
    with ExitStack() as stack:
        try:
            for number, handle in handlers.items():
                stack.enter_context(_handling(loop, number, handle))
        except (ValueError, RuntimeError, NotImplementedError) as error:
            logger.info("signal handlers not installed: %s", error, reason=error)
        yield


@contextmanager
def _handling(
    loop: asyncio.AbstractEventLoop,
    number: signal.Signals,
    handle: Callable[[], None],
) -> Iterator[None]:
    dispatches = _dispatches.setdefault(loop, WeakValueDictionary())
    dispatch = dispatches.get(number)
    if dispatch is None:
        dispatch = dispatches[number] = SignalDispatch(loop, number)
    dispatch.handlers.append(handle)
    try:
        yield
    finally:
        dispatch.handlers.remove(handle)
        if not dispatch.handlers:
            dispatches.pop(number, None)
            dispatch.restore()
