"""What the log and the page say of backends whose states change over and over."""

import asyncio
import logging
import re

import pytest

from lbclient.client.backends.state_changes import MOST_OF_ONE, PERIOD
from lbclient.v1 import load_pb2
from tests.loop.fleet import Fleet

FLAPS = 500


def lines_of(caplog: pytest.LogCaptureFixture, address: str) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.INFO
        and vars(record)["lbclient_backend"] == address
    ]


async def test_a_backend_that_flaps_fills_neither_the_log_nor_the_page(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with Fleet(2) as fleet:
        flaps, steady = fleet.servers
        await asyncio.sleep(PERIOD)
        caplog.clear()
        before = len(fleet.balancer.backends.events.newest_first())
        for _ in range(FLAPS):
            for state in (load_pb2.LAME_DUCK, load_pb2.SERVING):
                flaps.enter(state)
                await asyncio.sleep(PERIOD / FLAPS / 4)
        steady.enter(load_pb2.LAME_DUCK)
        await asyncio.sleep(PERIOD)
        assert fleet.states() == ["ready", "lame duck"]

        lines = lines_of(caplog, flaps.address)
        assert len(lines) == MOST_OF_ONE + 1
        told = re.search(r"b0:1 is ready, after (\d+) more changes", lines[-1])
        assert told is not None, lines[-1]
        assert int(told[1]) > MOST_OF_ONE
        assert len(lines_of(caplog, steady.address)) == 1
        events = fleet.balancer.backends.events.newest_first()
        assert len(events) - before == MOST_OF_ONE + 2

        # The next change is logged again.
        caplog.clear()
        flaps.enter(load_pb2.LAME_DUCK)
        await asyncio.sleep(PERIOD)
        assert len(lines_of(caplog, flaps.address)) == 1
