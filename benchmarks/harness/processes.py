"""Programs under test and their load, in processes of their own.

The parent calls `running(function, ...)`, or `result_of(function, ...)` for what the
function returns. The function, in the other process, calls `say` and `orders`. Both
sides send lines of JSON.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    suppress,
)
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
PATIENCE = 100.0  # seconds for what must come, on a machine that may be busy
LONGEST_LINE = 2**26  # bytes


class ProcessError(Exception):
    """A process has ended, or does not answer."""


# --- in the parent --------------------------------------------------------------


class Process:
    def __init__(self, process: asyncio.subprocess.Process, name: str) -> None:
        self.process = process
        self.pid = process.pid
        self._name = name

    async def hear(self) -> Any:
        """The next line that it says. Raises ProcessError."""
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(PATIENCE):
                line = await self.process.stdout.readline()
        except TimeoutError:
            raise ProcessError(f"no answer from {self._name}") from None
        if not line:
            raise ProcessError(f"the process of {self._name} has ended")
        return json.loads(line)

    def tell(self, *words: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(words).encode() + b"\n")

    async def ask(self, *words: Any) -> Any:
        """Tells the words; returns the next line that it says."""
        self.tell(*words)
        return await self.hear()

    async def rest(self) -> list[Any]:
        """Closes its input; returns the lines that it says until it ends."""
        output, _ = await self.process.communicate(b"")  # which closes its input
        if self.process.returncode:
            raise ProcessError(f"{self._name} ended with {self.process.returncode}")
        return [json.loads(line) for line in output.splitlines()]

    async def close(self) -> None:
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.kill()
        await self.process.wait()


async def start(*command: str, **options: Any) -> Process:
    """Starts a program; `options` are those of create_subprocess_exec."""
    pipe = asyncio.subprocess.PIPE
    given = {"stdin": pipe, "stdout": pipe, "limit": LONGEST_LINE, **options}
    process = await asyncio.create_subprocess_exec(*command, **given)
    return Process(process, " ".join(command[-2:]))


@asynccontextmanager
async def program(*command: str, **options: Any) -> AsyncIterator[Process]:
    """A program, which is killed at the end of the context."""
    process = await start(*command, **options)
    try:
        yield process
    finally:
        await process.close()


def running(
    function: Callable[..., Any], *arguments: Any, **options: Any
) -> AbstractAsyncContextManager[Process]:
    """A function of a module in a process of its own, until the end of the context."""
    return program(*command_of(function, *arguments), **{"cwd": ROOT, **options})


async def all_entered(
    stack: AsyncExitStack, contexts: Iterable[AbstractAsyncContextManager[T]]
) -> list[T]:
    """Enters the contexts at the same time, so that their processes start together."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(stack.enter_async_context(one)) for one in contexts]
    return [task.result() for task in tasks]


async def result_of(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns in a process of its own. Raises ProcessError."""
    async with running(function, *arguments) as process:
        return (await process.rest())[-1]


def command_of(function: Callable[..., Any], *arguments: Any) -> list[str]:
    """The command that runs a function; its arguments become JSON."""
    module = function.__module__
    if module == "__main__":
        spec = sys.modules["__main__"].__spec__
        assert spec is not None, "run it as a module: python -m"
        module = spec.name
    words = ("benchmarks.harness", module, function.__name__)
    return [sys.executable, "-m", *words, json.dumps(arguments, default=asdict)]


# --- in the other process -------------------------------------------------------


def say(what: Any) -> None:
    """One line to the parent."""
    print(json.dumps(what, default=asdict), flush=True)


async def orders() -> AsyncIterator[list[Any]]:
    """The words that the parent tells; this process ends when there is no parent."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        yield json.loads(line)
    os._exit(0)  # at once: a server's farewell would make clients log
