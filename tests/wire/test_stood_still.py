"""A client whose event loop stands still: the deadlines that it misses are its own."""

import asyncio
import time
from random import Random
from types import SimpleNamespace
from typing import Any

import grpc

import lbclient
from lbclient.background.tasks import Tasks
from lbclient.client.loop_lag import PERIOD, STALL, LoopLag
from lbclient.core.backends.call_answers import MISSES
from tests.hosts import hosting

METHOD = "/a.B/C"
TIMEOUT = 0.2


async def _echo(request: bytes, context: Any) -> bytes:
    return request


ECHO: Any = grpc.unary_unary_rpc_method_handler(_echo)


async def test_deadlines_that_pass_while_the_loop_stands_still_blame_no_backend() -> (
    None
):
    """The calls are never sent. Backends were taken out for five of them in a row."""
    async with (
        hosting({METHOD: ECHO}) as hosted,
        lbclient.insecure_channel(f"ipv4:{hosted.address}") as channel,
    ):
        begin: Any = channel.unary_unary(METHOD)
        await begin(b"", wait_for_ready=True)
        for _ in range(3):
            calls = [begin(b"", timeout=TIMEOUT) for _ in range(3 * MISSES)]
            time.sleep(2 * TIMEOUT + PERIOD + STALL)  # noqa: ASYNC251  # as users do
            ends = await asyncio.gather(*calls, return_exceptions=True)
            codes = {
                end.code() for end in ends if isinstance(end, grpc.aio.AioRpcError)
            }
            assert codes == {grpc.StatusCode.DEADLINE_EXCEEDED}
            (backend,) = channel.statistics().backends
            assert (backend.failed, backend.last_error) == (0, "")
            assert backend.recent_errors == 0.0
        assert backend.abandoned == 9 * MISSES
        assert channel.statistics().loop_stall_seconds > 3 * 2 * TIMEOUT


class StoodStill:
    """A loop of which a call asks, as it ends, whether it stood still at first."""

    def __init__(self) -> None:
        self.now = 0.0
        no_backends: Any = SimpleNamespace(nodes={})
        tasks = Tasks("test", Random(7))
        self.lag = LoopLag(tasks, lambda: self.now, no_backends)
        self.lag.start(0.0)

    def turn_until(self, now: float) -> None:
        self.now = now
        self.lag.start(now)

    def kept_back(self, began_at: float, now: float) -> bool:
        self.now = now
        return self.lag.kept_back(began_at, now)


async def test_a_call_that_meets_two_stalls_has_lost_both() -> None:
    loop = StoodStill()
    loop.kept_back(0.6, 0.6)
    loop.turn_until(0.61)
    assert loop.kept_back(0.1, 1.11)
    loop.turn_until(2.4)
    assert not loop.kept_back(0.61, 2.5), "it lost less than half"


async def test_a_call_that_had_most_of_its_time_counts() -> None:
    loop = StoodStill()
    assert loop.kept_back(0.01, 1.0)
    assert not loop.kept_back(-1.0, 1.0), "it was sent before"
    loop.turn_until(1.9)
    assert loop.kept_back(0.01, 1.9), "it was sent at 1.0"
    assert not loop.kept_back(1.0, 1.9), "it began after that"
    loop.turn_until(2.1)
    assert not loop.kept_back(0.01, 2.1)
    loop.lag.stop()


async def test_a_loop_that_is_busy_does_not_stand_still() -> None:
    loop = StoodStill()
    assert not loop.kept_back(0.01, PERIOD + STALL)
    loop.lag.stop()
