"""grpcio's wake-ups of the event loop, read together."""

import asyncio
import socket
from typing import Any

import grpc
import grpc.aio
import pytest

import lbclient
from lbclient.background.readers import readers_of
from lbclient.grpc_seam.wakeups import Wakeups
from tests.hosts import add_methods

AT_ONCE = 500  # calls; twice as many events as Linux keeps bytes for


def of_grpcio() -> list[Wakeups]:
    readers = readers_of(asyncio.get_running_loop())
    return [reader for _, reader in readers if isinstance(reader, Wakeups)]


async def _echo(request: bytes, context: Any) -> bytes:
    return request


ECHO: Any = grpc.unary_unary_rpc_method_handler(_echo)


def test_bytes_are_read_but_for_the_last_one() -> None:
    theirs, ours = socket.socketpair()
    with theirs, ours:
        theirs.send(bytes(100))
        reads: list[bytes] = []
        Wakeups(ours.fileno(), lambda: reads.append(ours.recv(1000)))()
        assert reads == [bytes(1)]


async def test_a_server_and_its_clients_share_one_reader() -> None:
    server = lbclient.server()
    add_methods(server, {"/a.B/C": ECHO})
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    [reader] = of_grpcio()
    async with lbclient.insecure_channel(f"ipv4:127.0.0.1:{port}") as channel:
        method: Any = channel.unary_unary("/a.B/C")
        answers = await asyncio.gather(
            *(method(b"%d" % i) for i in range(AT_ONCE)),
        )
        assert answers == [b"%d" % i for i in range(AT_ONCE)]
        assert of_grpcio() == [reader]
    await server.stop(None)


async def test_a_client_alone_reads_them_together() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    assert not of_grpcio()
    async with lbclient.insecure_channel(f"ipv4:127.0.0.1:{port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await channel.unary_unary("/a.B/C")(b"", wait_for_ready=True)
        assert len(of_grpcio()) == 1
    await server.stop(None)
