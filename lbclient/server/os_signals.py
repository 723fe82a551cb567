"""Handles SIGTERM and other signals on an event loop, within a block."""

import asyncio
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from lbclient.log import Log

logger = Log(__name__)


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
