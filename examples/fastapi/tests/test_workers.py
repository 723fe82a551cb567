"""gunicorn with three workers in front of three backends, over loopback.

A backend is killed, and started again, while users search. Nobody sees an error, and
one scrape has all that the workers, also those that have ended, have counted.
"""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[1]
USERS = 6
HEADERS = {"Authorization": "Bearer token-of-alice"}
PATIENCE = 60.0  # seconds; what is waited for takes one or two


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def running(*arguments: str, env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A program of the example's, ended by SIGTERM. All that it starts is gone then."""
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env={**os.environ, **env},
        start_new_session=True,
    )
    try:
        yield process
        process.terminate()
        process.wait(PATIENCE)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


async def until(seen: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await seen():  # noqa: ASYNC110  # it happens in other processes
            await asyncio.sleep(0.05)


class Shop:
    """The running web application, its users, and what they were answered."""

    def __init__(self, port: int, operations_port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/search?text=oak"
        self._operations = f"http://127.0.0.1:{operations_port}"
        # Each request has a connection of its own, to whichever worker is free.
        limits = httpx.Limits(max_keepalive_connections=0)
        self.client = httpx.AsyncClient(limits=limits, timeout=PATIENCE)
        self.answers: Counter[int] = Counter()
        self.is_open = True

    async def is_ready(self) -> bool:
        with suppress(httpx.TransportError):
            answer = await self.client.get(f"{self._operations}/ready")
            return answer.status_code == 200
        return False

    async def count(self, name: str) -> float:
        """The sum of a counter's samples, by one scrape."""
        page = await self.client.get(f"{self._operations}/metrics/")
        found = re.findall(rf"^{name}{{[^}}]*}} (\S+)$", page.text, re.MULTILINE)
        return sum(map(float, found))

    async def use(self) -> None:
        while self.is_open:
            answer = await self.client.get(self._url, headers=HEADERS)
            self.answers[answer.status_code] += 1

    async def is_used(self, times: int) -> None:
        """Until there are so many answers more."""
        wanted = self.answers.total() + times
        async with asyncio.timeout(PATIENCE):
            while self.answers.total() < wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_users_do_not_notice_a_backend_that_dies() -> None:
    port, operations_port, *backends = free_ports(5)
    env = {
        "CATALOG_TARGET": "ipv4:" + ",".join(f"127.0.0.1:{it}" for it in backends),
        "CATALOG_TOKEN": "a-token",
        "LBCLIENT_LAME_DUCK_QUIET": "0.1",  # seconds, at the end of the test
        "SHOP_PORT": str(port),
        "SHOP_OPERATIONS_PORT": str(operations_port),
    }

    def backend(number: int) -> "subprocess.Popen[bytes]":
        address = f"127.0.0.1:{backends[number]}"
        return stack.enter_context(running("shop.backend", address, env=env))

    async with AsyncExitStack() as stack:
        first, *_ = [backend(number) for number in range(3)]
        shop = Shop(port, operations_port)
        await stack.enter_async_context(shop.client)
        gunicorn = stack.enter_context(running("gunicorn", "shop.app:app", env=env))
        await until(shop.is_ready)

        async with asyncio.TaskGroup() as group:
            for _ in range(USERS):
                group.create_task(shop.use())
            await shop.is_used(40)
            first.kill()
            await shop.is_used(40)
            backend(0)
            await shop.is_used(40)
            shop.is_open = False
        assert shop.answers.keys() == {200}

        # The old workers write their last counts when they leave.
        gunicorn.send_signal(signal.SIGHUP)
        total = shop.answers.total()

        async def adds_up() -> bool:
            with suppress(httpx.TransportError):  # a worker that has just left
                return await shop.count("lbclient_calls_total") >= total
            return False

        await until(adds_up)
        assert await shop.count("lbclient_calls_total") == total
        assert await shop.count("shop_http_requests_total") == total
        assert gunicorn.poll() is None
