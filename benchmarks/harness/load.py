"""Open-loop load: a call begins when it is due, even if earlier calls have not ended.

And waiting for what is to come true.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

import grpc

import lbclient
from benchmarks.harness.processes import PATIENCE

T = TypeVar("T")
LOOK_EVERY = 0.01  # seconds


async def open_loop(
    dues: Iterable[T],
    call: Callable[[T], Coroutine[Any, Any, None]],
    at: Callable[[T], float],
) -> None:
    """Makes a call for each due, `at` so many seconds; returns when all have ended."""
    began_at = time.monotonic()
    async with asyncio.TaskGroup() as calls:
        for due in dues:
            if (pause := began_at + at(due) - time.monotonic()) > 0:
                await asyncio.sleep(pause)
            calls.create_task(call(due))


async def steady(
    rate: float, seconds: float, call: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    """`rate` calls a second; returns after `seconds`, when all calls have ended."""
    count = range(math.ceil(rate * seconds))
    calls = open_loop(count, lambda _: call(), lambda number: number / rate)
    await asyncio.gather(calls, asyncio.sleep(seconds))


async def end_of(method: Any, timeout: float, ends: Counter[str]) -> None:
    """Calls, and counts how the call ends: by its status, or as "throttled"."""
    try:
        await method(b"", timeout=timeout)
        ends["OK"] += 1
    except lbclient.Throttled:
        ends["throttled"] += 1
    except grpc.aio.AioRpcError as error:
        ends[error.code().name] += 1


async def until(
    condition: Callable[[], object], what: object = "", every: float = LOOK_EVERY
) -> float:
    """Waits until the condition holds; returns for how many seconds.

    Raises TimeoutError, which tells `what`, or what it returns.
    """
    began_at = time.monotonic()
    while not condition():
        if time.monotonic() - began_at > PATIENCE:
            said = what() if callable(what) else what
            raise TimeoutError(f"not within {PATIENCE:.0f} s: {said}")
        await asyncio.sleep(every)
    return time.monotonic() - began_at
