"""What a task does before it is ready: its own code, awaited or in a thread.

A thread cannot be stopped. The one that runs a warmup is a daemon, so a task that is
told to stop meanwhile does not wait for it: its process may end in the middle of it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from inspect import isawaitable, iscoroutinefunction
from typing import TypeAlias

from lbclient.background.threads import in_daemon_thread
from lbclient.core.errors import ConfigError

Warmup: TypeAlias = Callable[[], Awaitable[object] | object]
"""A coroutine function, which runs on the server's loop, or any other callable."""


def check(warmup: object) -> None:
    """Raises ConfigError for what can be no warmup."""
    if warmup is not None and not callable(warmup):
        raise ConfigError("warmup", warmup, "a callable without arguments")


async def warm_up(warmup: Warmup) -> None:
    """Returns when it has; raises what it raises."""
    if iscoroutinefunction(warmup) or iscoroutinefunction(type(warmup).__call__):
        result = warmup()
    else:
        result = await in_daemon_thread("lbclient warmup", warmup)
    if isawaitable(result):
        await result


class Warming:
    """Runs a server's warmup, and ends it when the server has stopped."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._is_over = False

    async def run(self, warmup: Warmup) -> None:
        """As `warm_up`; also returns when the warmup has been cancelled by `end`."""
        if self._is_over:
            return
        self._task = asyncio.create_task(warm_up(warmup))
        try:
            await self._task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            assert caller is not None
            if caller.cancelling() or not self._is_over:
                raise

    def end(self) -> None:
        """A warmup that stops its server itself goes on."""
        self._is_over = True
        task = self._task
        if task is not None and task is not asyncio.current_task():
            task.cancel()
