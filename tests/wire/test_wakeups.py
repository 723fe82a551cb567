"""grpcio's wake-ups of the event loop, read together."""

import asyncio
import socket
import sys
from threading import Barrier
from typing import Any

import grpc
import grpc.aio
import pytest

import lbclient
from lbclient.background.readers import readers_of
from lbclient.grpc_seam.wakeups import CLOSED, Wakeups
from tests.hosts import add_methods

AT_ONCE = 500  # calls; twice as many events as Linux keeps bytes for


def of_grpcio() -> list[Wakeups]:
    readers = readers_of(asyncio.get_running_loop())
    return [reader for _, reader in readers if isinstance(reader, Wakeups)]


async def _echo(request: bytes, context: Any) -> bytes:
    return request


ECHO: Any = grpc.unary_unary_rpc_method_handler(_echo)


def left_after(reader: Any, is_alone: bool = True) -> int:
    """Bytes that are left of 100, of which `reader` takes some."""
    theirs, ours = socket.socketpair()
    with theirs, ours:
        ours.setblocking(False)
        theirs.send(bytes(100))
        Wakeups(ours.fileno(), lambda: reader(ours), lambda: is_alone)()
        try:
            return len(ours.recv(1000))
        except BlockingIOError:
            return 0


def read_one(ours: socket.socket) -> None:
    ours.recv(1)


def read_one_and_raise(ours: socket.socket) -> None:
    ours.recv(1)
    raise RuntimeError(CLOSED)


def test_all_bytes_are_read_whose_events_were_handled() -> None:
    assert left_after(read_one) == 0


def test_bytes_that_others_read_too_are_left() -> None:
    assert left_after(read_one, is_alone=False) == 99


def test_the_bytes_of_events_behind_one_that_raises_are_left() -> None:
    """Such an event is of a loop that is closed."""
    assert left_after(read_one_and_raise) == 99


def test_what_else_an_event_raises_is_raised() -> None:
    def fail(_: socket.socket) -> None:
        raise RuntimeError("of somebody else")

    with pytest.raises(RuntimeError, match="of somebody else"):
        left_after(fail)


LEFT_OPEN = """
import asyncio, lbclient, sys

TARGET = sys.argv[1]

async def leave_open():
    channel = lbclient.insecure_channel(TARGET)
    await channel.unary_unary("/a.B/C")(b"")
    return channel

async def close_another():
    async with lbclient.insecure_channel(TARGET) as channel:
        for _ in range(20):
            await channel.unary_unary("/a.B/C")(b"")

left = []
for _ in range(20):
    left.append(asyncio.run(leave_open()))
    asyncio.run(close_another())
"""


async def test_a_channel_left_open_in_a_closed_loop_is_no_noise_in_the_next() -> None:
    server = lbclient.server()
    add_methods(server, {"/a.B/C": ECHO})
    port, other = (server.add_insecure_port("127.0.0.1:0") for _ in range(2))
    await server.start()
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", LEFT_OPEN, f"ipv4:127.0.0.1:{port},127.0.0.1:{other}",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await asyncio.wait_for(program.communicate(), 60)
    await server.stop(None)
    assert program.returncode == 0, said
    assert CLOSED.encode() not in said


def test_a_loop_that_comes_second_reads_nothing() -> None:
    theirs, ours = socket.socketpair()
    with theirs, ours:
        ours.setblocking(False)
        Wakeups(ours.fileno(), lambda: ours.recv(1), lambda: True)()


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


async def test_several_loops_leave_each_other_their_bytes() -> None:
    server = lbclient.server()  # for its reader
    await server.start()
    patient = grpc.aio.server()  # refuses nobody, however long a call has waited
    add_methods(patient, {"/a.B/C": ECHO})
    port = patient.add_insecure_port("127.0.0.1:0")
    await patient.start()
    [reader] = of_grpcio()
    assert reader.is_alone()
    failures: list[dict[str, Any]] = []
    are_both = Barrier(2)

    async def call_many() -> bool:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failures.append(context))
        async with lbclient.insecure_channel(f"ipv4:127.0.0.1:{port}") as channel:
            method: Any = channel.unary_unary("/a.B/C")
            await method(b"")
            await asyncio.to_thread(are_both.wait)
            [of_this_loop] = of_grpcio()
            was_alone = of_this_loop.is_alone()
            answers = await asyncio.gather(*(method(b"") for _ in range(AT_ONCE)))
            assert answers == [b""] * AT_ONCE
        return was_alone

    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: failures.append(context)
    )
    ends = [asyncio.to_thread(asyncio.run, call_many()) for _ in range(2)]
    assert await asyncio.gather(*ends) == [False, False]
    assert not failures
    assert reader.is_alone()  # the others' loops are closed
    await patient.stop(None)
    await server.stop(None)
