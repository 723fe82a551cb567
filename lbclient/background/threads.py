"""Runs code that blocks in a thread of its own, for which nothing waits at the end.

The event loop's end waits for the threads of `asyncio.to_thread`; a thread cannot be
stopped, so a lookup of a name or a peer that hangs would hold up the process's exit.
These threads are also few, and the program's: what hangs in them keeps the program from
its own, and a program that blocks them all keeps its channels from their endpoints.
"""

import asyncio
import errno
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from threading import Thread
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def in_daemon_thread(
    name: str, work: Callable[P, T], *arguments: P.args, **options: P.kwargs
) -> asyncio.Future[T]:
    """Begins `work` in a daemon thread of this name. What it returns or raises is the
    future's; whoever cancels the future leaves the thread to itself. The future fails
    with an OSError where the system has no more threads."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(result: T) -> None:
        if not done.done():  # somebody waits yet
            done.set_result(result)

    def tell_failed(error: BaseException) -> None:
        if not done.done():
            done.set_exception(error)

    def run() -> None:
        with suppress(RuntimeError):  # the loop is closed
            try:
                result = copied.run(work, *arguments, **options)
            except BaseException as error:
                loop.call_soon_threadsafe(tell_failed, error)
            else:
                loop.call_soon_threadsafe(tell, result)

    copied = copy_context()
    try:
        Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:
        tell_failed(OSError(errno.EAGAIN, str(error)))
    return done
