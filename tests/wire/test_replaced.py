"""A program puts lbclient's functions in the place of grpcio's, for its libraries."""

import os
import subprocess
import sys
from typing import Any

import pytest

SERVER = """
import asyncio, grpc, grpc.aio, lbclient
from concurrent.futures import ThreadPoolExecutor
grpc.aio.insecure_channel = lbclient.insecure_channel
grpc.aio.secure_channel = lbclient.secure_channel
grpc.aio.server = lbclient.server
grpc.server = lbclient.sync_server

async def echo(request, context):
    return request

def echo_in_thread(request, context):
    return request

def add(server, behavior):
    handler = grpc.unary_unary_rpc_method_handler(behavior)
    methods = grpc.method_handlers_generic_handler("a.B", {"Echo": handler})
    server.add_generic_rpc_handlers((methods,))
    credentials = grpc.local_server_credentials(grpc.LocalConnectionType.LOCAL_TCP)
    return (
        server.add_insecure_port("127.0.0.1:0"),
        server.add_secure_port("127.0.0.1:0", credentials),
    )

async def ask(channel):
    async with channel:
        print(type(channel).__module__.partition(".")[0])
        assert await channel.unary_unary("/a.B/Echo")(b"x", timeout=20) == b"x"

async def main():
    server = grpc.aio.server()
    in_threads = grpc.server(ThreadPoolExecutor(4))
    credentials = grpc.local_channel_credentials(grpc.LocalConnectionType.LOCAL_TCP)
    ports = add(server, echo), add(in_threads, echo_in_thread)
    await server.start()
    in_threads.start()
    for one in (server, in_threads):
        print(type(one).__module__.partition(".")[0])
    for insecure, secure in ports:
        await ask(grpc.aio.insecure_channel(f"127.0.0.1:{insecure}"))
        await ask(grpc.aio.secure_channel(f"127.0.0.1:{secure}", credentials))
    await server.stop(0)
    in_threads.stop(0).wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("disabled", ["", "1"])
def test_they_make_what_they_make_otherwise(disabled: str) -> None:
    """They called themselves without end: what they make, they make of grpcio's."""
    done: Any = subprocess.run(
        [sys.executable, "-c", SERVER],
        env={**os.environ, "LBCLIENT_DISABLE": disabled},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    servers, channels = done.stdout.split()[:2], done.stdout.split()[2:]
    assert servers == ["lbclient"] * 2
    assert channels == ["grpc" if disabled else "lbclient"] * 4
