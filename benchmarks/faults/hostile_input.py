"""A stranger holds 200 connections to the page, and sends a byte at a time.

The page is in a process of its own. Whoever holds connections is at another address of
127.0.0.0/8 than who looks, and opens each again that was closed. There is no control:
grpc.aio has no page.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from time import monotonic

from benchmarks.faults.fleet import HOST
from benchmarks.faults.row import Result, Row
from benchmarks.harness.processes import orders, running, say
from lbclient import admin

STRANGER = "127.0.0.2"
HELD = 200  # connections
DRIP = 0.1  # seconds from one byte to the next
LOOK_EVERY = 0.1  # seconds
LOOK_WITHIN = 5.0  # seconds; as `lbclient inspect`


@asynccontextmanager
async def page() -> AsyncIterator[int]:
    """Its port; leaving the context ends the process."""
    async with running(serve_page) as process:
        url = await process.hear()
        yield int(url.rpartition(":")[2].partition("/")[0])


async def serve_page() -> None:
    async with admin.page(port=0) as url:
        say(url)
        async for _ in orders():
            pass


async def drip(port: int) -> None:
    """For ever; a request that never comes to an end."""
    while True:
        with suppress(OSError):
            _, writer = await asyncio.open_connection(
                HOST, port, local_addr=(STRANGER, 0)
            )
            try:
                for byte in b"GET /lbz HTTP/1.1\r\nX-Slow: " + b"x" * 10_000:
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(DRIP)
            finally:
                writer.transport.abort()
        await asyncio.sleep(DRIP)


async def look(port: int) -> bool:
    """Whether the page answers somebody else in time."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(LOOK_WITHIN):
            reader, writer = await asyncio.open_connection(HOST, port)
            try:
                ask = f"GET /lbz.json HTTP/1.1\r\nHost: {HOST}\r\n\r\n"
                writer.write(ask.encode())
                return (await reader.read()).startswith(b"HTTP/1.1 200 ")
            finally:
                writer.transport.abort()
    return False


async def run(seconds: float) -> list[Row]:
    async with page() as port, asyncio.TaskGroup() as group:
        strangers = [group.create_task(drip(port)) for _ in range(HELD)]
        await asyncio.sleep(2 * DRIP)
        until, looks = monotonic() + seconds, list[bool]()
        while monotonic() < until:
            looks.append(await look(port))
            await asyncio.sleep(LOOK_EVERY)
        for stranger in strangers:
            stranger.cancel()
    failed = looks.count(False)
    promise = "the page answers every look from another address"
    fault = f"{HELD} connections to the page that send a byte at a time"
    return [Row(fault, promise, Result(len(looks), failed), None, failed == 0)]
