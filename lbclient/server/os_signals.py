"""Handles SIGTERM and other signals on an event loop, within a block."""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

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


@contextmanager
def handling(
    loop: asyncio.AbstractEventLoop,
    handlers: Mapping[signal.Signals, Callable[[], None]],
) -> Iterator[None]:
    """Signals are left alone where they cannot be handled, as in a thread."""
    before = {number: signal.getsignal(number) for number in handlers}
    handled = []
    try:
        for number, handle in handlers.items():
            loop.add_signal_handler(number, handle)
            handled.append(number)
    except (ValueError, RuntimeError, NotImplementedError) as error:
        logger.info("signal handlers not installed: %s", error, reason=error)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
            if before[number] is not None:
                signal.signal(number, before[number])
