"""A loop that ends, and with it a server that nobody has stopped."""

import asyncio
import gc

import pytest

from lbclient.server import Server
from lbclient.server.overload.intake import READY
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
