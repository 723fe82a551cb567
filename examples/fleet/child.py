"""A process of the demo: started, heard, told, and never left behind.

It is in a process group of its own, so that Ctrl-C reaches the demo alone and the
demo decides. Its programs end by themselves when their stdin is closed.
"""

import asyncio
import json
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

HERE = Path(__file__).parent
LINE_LIMIT = 2**25  # bytes; a client's report of 100,000 calls is a quarter of that


class DemoError(Exception):
    """The demo itself cannot go on; says nothing of the library."""


def run_or_exit(name: str, program: Coroutine[Any, Any, T]) -> T:
    """Runs it, or ends this process: 130 after Ctrl-C, 1 after a DemoError."""
    try:
        return asyncio.run(program)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except asyncio.CancelledError:
        raise SystemExit(128 + signal.SIGTERM) from None
    except ExceptionGroup as group:
        error: Exception = group
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        if not isinstance(error, DemoError):
            raise
        print(f"{name}: {error}", file=sys.stderr)
        raise SystemExit(1) from None


class Child:
    """One of the fleet's programs in a process of its own."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.pid = process.pid
        self.may_end = False
        self._process = process
        self._errors: deque[str] = deque(maxlen=20)

    @classmethod
    async def start(cls, name: str, program: str, *arguments: str) -> "Child":
        """Starts a program of this folder."""
        return await cls.run(name, str(HERE / program), *arguments)

    @classmethod
    async def run(cls, name: str, *arguments: str) -> "Child":
        """Starts Python with these arguments."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LINE_LIMIT,
            env={
                # The demo says what it runs with; nothing else shall change it.
                name: value
                for name, value in os.environ.items()
                if not name.startswith("LBCLIENT_")
            },
            process_group=0,
        )
        return cls(name, process)

    def tell(self, order: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def wait(self) -> int:
        return await self._process.wait()

    async def follow(self, hear: Callable[[str], None]) -> None:
        """Hears what it says until its end, for which there must be a reason."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read(self._process.stdout, hear))
            group.create_task(self._read(self._process.stderr, self._errors.append))
        code = await self.wait()
        if not self.may_end:
            last_words = "".join(f"\n  {line}" for line in self._errors)
            raise DemoError(f"{self.name} ended with status {code}{last_words}")

    @staticmethod
    async def _read(
        stream: asyncio.StreamReader | None, hear: Callable[[str], None]
    ) -> None:
        assert stream is not None
        while line := await stream.readline():
            hear(line.decode(errors="replace").rstrip())
