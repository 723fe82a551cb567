"""Handlers that block the event loop of a real server, and one that only computes."""

import threading
import time
from typing import Any

import pytest

from lbclient.server.meters.blocked_loop import LONG, read_thread
from tests import needs
from tests.hosts import hosting, unary_stream, unary_unary
from tests.waiting import eventually

METHOD = "/search.Search/Search"
HELD = 2 * LONG


async def _sleeps(request: bytes, context: Any) -> bytes:
    time.sleep(HELD)  # noqa: ASYNC251  # as users do
    return request


async def _yields(request: bytes, context: Any) -> Any:
    time.sleep(HELD)  # noqa: ASYNC251  # as users do
    yield request


async def _computes(request: bytes, context: Any) -> bytes:
    until = time.monotonic() + HELD
    while time.monotonic() < until:
        pass
    return request


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one for one in caplog.messages if "the event loop" in one]


@pytest.fixture(autouse=True)
def needs_proc() -> None:
    if read_thread(threading.get_native_id()) is None:
        needs.skip("a kernel that counts the time of threads")


@pytest.mark.parametrize("handler", [unary_unary(_sleeps), unary_stream(_yields)])
async def test_a_handler_that_blocks_the_loop_is_named(
    caplog: pytest.LogCaptureFixture, handler: Any
) -> None:
    async with hosting({METHOD: handler}) as hosted:
        if handler.response_streaming:
            streaming: Any = hosted.channel.unary_stream(METHOD)
            assert [one async for one in streaming(b"x")] == [b"x"]
        else:
            unary: Any = hosted.channel.unary_unary(METHOD)
            assert await unary(b"x") == b"x"
        await eventually(lambda: lines_of(caplog))
    (line,) = lines_of(caplog)
    assert line.startswith(f"{METHOD} blocked the event loop for ")
    assert f"{__file__}:" in line


async def test_a_handler_that_computes_is_not_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The next one that blocks is: a line less than a minute before would hide it."""
    computes = METHOD.replace("/Search", "/Compute")
    methods = {computes: unary_unary(_computes), METHOD: unary_unary(_sleeps)}
    async with hosting(methods) as hosted:
        for path in (computes, METHOD):
            call: Any = hosted.channel.unary_unary(path)
            assert await call(b"x") == b"x"
        await eventually(lambda: lines_of(caplog))
    (line,) = lines_of(caplog)
    assert line.startswith(f"{METHOD} blocked the event loop for ")
