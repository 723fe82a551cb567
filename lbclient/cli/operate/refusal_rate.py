"""Measures how many requests per second a server on this machine can refuse.

To refuse takes CPU, on one thread, however many cores there are: there is a rate at
which a server does nothing else. The server is a process of its own, so that what it
takes to ask is not counted; all that it is asked it refuses.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from lbclient.config import ServerConfig
from lbclient.core.errors import LbError
from lbclient.server.grpc_server import Server

METHOD = "/lbclient.Doctor/Refuse"
AT_A_TIME = 64  # calls: enough to keep a core busy
WARMUP, SECONDS = 0.1, 0.4  # seconds before the measurement, and of it
PATIENCE = 10.0  # seconds, for a process to begin
REFUSED = grpc.StatusCode.UNAVAILABLE

Cpu = Callable[[], Awaitable[float]]  # seconds


class NotMeasured(LbError):
    """Why there is no figure."""


async def refused_in_a_second() -> float:
    """Requests refused in a second by a server that does nothing else. Raises
    NotMeasured."""
    async with _serving() as (port, cpu):
        options = [("grpc.enable_http_proxy", 0)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) as channel:
            await _ask(channel, WARMUP)
            before = await cpu()
            refused = await _ask(channel, SECONDS)
            took = await cpu() - before
    if not refused or took <= 0.0:
        raise NotMeasured(f"{refused} requests were refused in {took:.3f} s of CPU")
    return refused / took


async def _ask(channel: grpc.aio.Channel, seconds: float) -> int:
    """How many of its requests were refused in so many seconds."""
    method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
    method = channel.unary_unary(METHOD)
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds

    async def ask() -> int:
        refused = 0
        while loop.time() < until:
            refused += await method(b"", timeout=PATIENCE).code() is REFUSED
        return refused

    return sum(await asyncio.gather(*(ask() for _ in range(AT_A_TIME))))


@asynccontextmanager
async def _serving() -> AsyncIterator[tuple[int, Cpu]]:
    """The port of a server, and what tells the CPU seconds of its loop's thread."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    asking, answers = child.stdin, child.stdout

    async def answer() -> float:
        try:
            return float(await asyncio.wait_for(answers.readline(), PATIENCE))
        except (TimeoutError, ValueError) as error:
            raise NotMeasured("the server that refuses did not answer") from error

    async def cpu() -> float:
        asking.write(b"\n")
        return await answer()

    try:
        yield int(await answer()), cpu
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def refuse_all() -> None:
    """Says its port, and for each line of its input what its loop's thread has used."""
    server = Server(
        config=ServerConfig(signals={"full": lambda: 1e6}, udp_health=False)
    )
    server.add_generic_rpc_handlers((_Anything(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(time.thread_time(), flush=True)
    os._exit(0)


class _Anything(grpc.GenericRpcHandler):
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return grpc.unary_unary_rpc_method_handler(_serve)


async def _serve(request: bytes, context: Any) -> bytes:
    return request


if __name__ == "__main__":
    asyncio.run(refuse_all())
