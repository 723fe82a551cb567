"""What the handlers of the benchmark do, by name.

A number is milliseconds of CPU. `mixed` is 1 ms, and 50 ms for one in ten, in each ten
in another place: by chance alone ten seconds of it would differ by a tenth. `waiting`
waits for 50 ms for something that never has too much to do. `threads` does the same in
one of ten threads. `emulated` takes 10 ms of an emulated processor: the real one has
next to nothing to do, so the load and the neighbours take nothing from the server.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "fleet"))

from cpu import Cpu  # type: ignore[import-not-found]

PATH = "/benchmark.Overload/Work"
NAMES = ("1", "10", "100", "mixed", "waiting", "threads")
WAIT = 0.05  # seconds
THREADS = 10
MIX = (0.05, *[0.001] * 9)  # of `mixed`, seconds of CPU of each ten
EMULATED = 0.01  # seconds


class Made(NamedTuple):
    behavior: Callable[[bytes, Any], Any]
    threads: ThreadPoolExecutor | None = None
    runnable: Callable[[], int] | None = None  # where the processor is emulated


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def is_known(name: str) -> bool:
    if name in NAMES or name == "emulated":
        return True
    try:
        return 0.0 < float(name) <= 1000.0
    except ValueError:
        return False


def fills(name: str) -> int:
    """So many calls at a time take all that a server with this handler can do."""
    return {"waiting": 512, "threads": 4 * THREADS}.get(name, 4)


def named(name: str) -> str:
    return f"{name} ms" if name[0].isdigit() else name


def make(name: str) -> Made:
    """On the loop that serves it."""
    if name == "waiting":
        return Made(_wait)
    if name == "threads":
        return Made(_wait_in_thread, threads=ThreadPoolExecutor(THREADS))
    if name == "emulated":
        cpu = Cpu(cores=1, speed=1.0)

        async def emulate(request: bytes, context: Any) -> bytes:
            await cpu.run(EMULATED)
            return request

        return Made(emulate, runnable=lambda: cpu.runnable)
    costs = _costs(MIX if name == "mixed" else (float(name) / 1e3,))

    async def work(request: bytes, context: Any) -> bytes:
        burn(next(costs))
        return request

    return Made(work)


def _costs(mix: tuple[float, ...]) -> Iterator[float]:
    rng = Random(1)
    while True:
        yield from rng.sample(mix, len(mix))


async def _wait(request: bytes, context: Any) -> bytes:
    await asyncio.sleep(WAIT)
    return request


def _wait_in_thread(request: bytes, context: Any) -> bytes:
    time.sleep(WAIT)
    return request
