"""Pictures the page of lbclient.admin, of a channel with a lame duck.

    python -m benchmarks.admin_page --output docs/images/admin.png

Needs Debian's chromium and chromium-driver, and takes half a minute.
"""

import asyncio
import json
import random
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc

import lbclient
from benchmarks.harness.options import exit_with, parser_of, writable
from benchmarks.harness.servers import listen
from lbclient import ChannelConfig, ServerConfig, admin
from tests.chromium import Browser, browsing

FIND = "/search.Search/Find"
BACKENDS = 5
CALLERS = 3
CALM, LEAVING = 20.0, 4.0  # seconds
WIDTH, HEIGHT = 1500, 1400  # pixels: down to the last events
SEEN = "return document.body.innerText.includes('4 ready, 1 lame duck')"


async def find(request: bytes, context: Any) -> bytes:
    await asyncio.sleep(random.expovariate(1.0 / 0.02))
    return b""


async def serve(stack: AsyncExitStack) -> tuple[lbclient.Server, str]:
    server = lbclient.server(config=ServerConfig(lame_duck_quiet=60.0))
    port = await listen(server, {FIND: find})
    stack.push_async_callback(server.stop, None)
    return server, f"127.0.0.1:{port}"


async def call(channel: grpc.aio.Channel) -> None:
    method: Any = channel.unary_unary(FIND)
    while True:
        await method(b"")


async def picture(browser: Browser, folder: Path, output: Path) -> None:
    async with AsyncExitStack() as stack:
        tasks = [await serve(stack) for _ in range(BACKENDS)]
        names = folder / "search.json"
        names.write_text(json.dumps([{"targets": [at for _, at in tasks]}]))
        url = await stack.enter_async_context(admin.page(port=0))
        config = ChannelConfig(idle_after=0.0)
        channel = await stack.enter_async_context(
            lbclient.insecure_channel(f"file://{names}", config=config)
        )
        callers = [asyncio.create_task(call(channel)) for _ in range(CALLERS)]
        await asyncio.to_thread(browser.go, url)
        await asyncio.sleep(CALM)
        tasks[0][0].lame_duck()
        await asyncio.sleep(LEAVING)
        await asyncio.to_thread(browser.wait, SEEN)
        await asyncio.to_thread(browser.picture, output)
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)


def main() -> None:
    parser = parser_of("admin_page", __doc__, json=False)
    add = parser.add_argument
    add("--output", type=writable, default="admin.png", metavar="FILE")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        browser = stack.enter_context(browsing(folder / "profile"))
        browser.resize(WIDTH, HEIGHT)
        asyncio.run(picture(browser, folder, Path(given.output)))


if __name__ == "__main__":
    exit_with(main)
