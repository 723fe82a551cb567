"""Programs under test, in processes of their own."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def running(*words: str) -> AsyncIterator[tuple[int, str]]:
    """A module's process and its first line; it ends when its input does, or by us."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *words),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert child.stdout is not None
    try:
        line = await asyncio.wait_for(child.stdout.readline(), 60)
        yield child.pid, line.decode()
    finally:
        child.kill()
        await child.wait()
