"""Tasks that end without a trace.

A cancelled task keeps its exception, that its traceback, that every frame's locals; a
TaskGroup among them (Python 3.11 to 3.13) makes a cycle of it. In those frames is a
call, and grpc keeps a connection open, even of a closed channel, until the last call
on it is collected: servers would see connections that nobody has any more.
"""

import asyncio
import traceback
from collections.abc import Coroutine
from typing import Any


def leaving_no_trace(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task whose frames are emptied as soon as it has been cancelled."""
    task = asyncio.get_running_loop().create_task(coroutine)
    task.add_done_callback(_empty)
    return task


def _empty(task: asyncio.Task[None]) -> None:
    if task.cancelled():
        try:
            task.exception()  # raises, and takes the exception from the task
        except asyncio.CancelledError as error:
            traceback.clear_frames(error.__traceback__)
