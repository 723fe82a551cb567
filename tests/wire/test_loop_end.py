"""A loop that ends, and with it a server that nobody has stopped."""

import asyncio
import gc
import logging
import threading
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from lbclient import wire
from lbclient.server import Server
from lbclient.server.overload.intake import READY
from tests.hosts import add_methods, method_handler
from tests.waiting import eventually


async def started() -> Server:
    server = Server()
    server.add_insecure_port("127.0.0.1:0")
    await server.start()
    intake = server._gate.intake
    await eventually(lambda: intake.asked == READY.ahead)
    return server


async def forgotten() -> None:
    await started()


async def another() -> None:
    """grpcio hands late answers to whichever loop there is."""
    gc.collect()
    server = await started()
    await server.stop(None)


@pytest.mark.parametrize("leave", [started, forgotten])
def test_next_to_nothing_comes_to_a_loop_that_is_closed(
    leave: object, caplog: pytest.LogCaptureFixture
) -> None:
    """Not an error for each request that was asked for ahead."""
    kept = asyncio.run(leave())  # type: ignore[operator]
    del kept
    asyncio.run(another())
    late = [one for one in caplog.records if "Exception in callback" in one.message]
    assert len(late) <= 4  # of grpcio's own


class Program:
    """Serves in a thread, and ends its loop without stopping its server."""

    def __init__(self) -> None:
        self.ports: list[int] = []
        self.begun = 0
        self.is_over = False
        self.thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    async def _run(self) -> None:
        server = Server()
        unary = method_handler("unary_unary", self._wait)
        stream = method_handler("unary_stream", self._go_on)
        add_methods(server, {"/test.End/Wait": unary, "/test.End/GoOn": stream})
        self.ports.append(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        await eventually(lambda: self.is_over)

    async def _wait(self, _request: Any, _context: Any) -> bytes:
        self.begun += 1
        await asyncio.sleep(600)
        return b""

    async def _go_on(self, _request: Any, _context: Any) -> AsyncIterator[bytes]:
        yield b""
        await self._wait(_request, _context)


async def test_a_program_that_ends_logs_no_error_for_its_requests(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As at Ctrl-C: asyncio.run cancels the tasks of all requests."""
    program = Program()
    program.thread.start()
    try:
        await eventually(lambda: program.ports)
        channel: Any = grpc.insecure_channel(f"127.0.0.1:{program.ports[0]}")
        with channel:
            unary = channel.unary_unary("/test.End/Wait")
            calls = [unary.future(b"", timeout=60)]
            paths = "/test.End/GoOn", wire.WATCH_METHOD, wire.SERVING_WATCH_METHOD
            calls += [channel.unary_stream(path)(b"", timeout=60) for path in paths]
            for stream in calls[1:]:
                await asyncio.to_thread(next, stream)
            await eventually(lambda: program.begun == 2)
            program.is_over = True
            for each in calls:
                await eventually(each.done)
                assert each.code() is not grpc.StatusCode.OK
    finally:
        program.is_over = True
    await asyncio.to_thread(program.thread.join, 60)
    assert not program.thread.is_alive()
    ours = [one for one in caplog.records if one.name.startswith("lbclient")]
    assert not [one for one in ours if one.levelno >= logging.WARNING]
