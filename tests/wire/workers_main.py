"""A program that serves by two workers, and asks itself to leave once one answers."""

import asyncio
import os
import signal
import sys
from typing import Any

import grpc

import lbclient
from lbclient.server import Server
from tests.hosts import add_methods, unary_unary
from tests.ports import free_ports
from tests.wire.workers_program import WHO, who


def make_server() -> Server:
    return add_methods(lbclient.server(), {WHO: unary_unary(who)})  # type: ignore[no-any-return]


async def stop_soon(port: int) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_unary(WHO)
        await call(b"", wait_for_ready=True, timeout=20)
    os.kill(os.getpid(), signal.SIGTERM)


async def main() -> None:
    [port] = free_ports(1)
    stopping = asyncio.create_task(stop_soon(port))
    await lbclient.serve(make_server, workers=2, port=port)
    await stopping
    sys.stdout.write("stopped\n")


if __name__ == "__main__":
    asyncio.run(main())
