"""What becomes of calls, and of the log, where the application's picker fails."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from lbclient.core.counting.line_limit import PERIOD
from lbclient.pickers import RoundRobin
from tests.loop.fleet import Fleet

CALLS = 600


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if "falling back to round robin" in record.getMessage()
    ]


def making(pick: Callable[[Any], Any]) -> type[RoundRobin]:
    class Own(RoundRobin):
        def pick(self, ready: Any, now: float) -> Any:
            return pick(ready)

    return Own


def raises(ready: Any) -> Any:
    raise KeyError("oops")


async def test_a_picker_that_raises_at_each_pick_is_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Fleet(3, picker=making(raises)) as fleet:
        for _ in range(CALLS):
            await fleet.call()
        assert lines_of(caplog) == ["fleet: picker raised; falling back to round robin"]
        assert caplog.text.count("Traceback") == 1
        assert "KeyError: 'oops'" in caplog.text

        await asyncio.sleep(PERIOD)
        await fleet.call()
        _, last = lines_of(caplog)
        assert last.endswith(f"; {CALLS - 1} more times since this was last logged")


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (lambda ready: None, "None"),
        (lambda ready: 0, "0"),
        (lambda ready: ready[0].endpoint.address, "'b0:1'"),
        (lambda ready: ready[:1], "(<b0:1 "),
        (lambda ready: ready[0].endpoint, "Endpoint(address='b0:1'"),
    ],
)
async def test_what_a_picker_returned_is_named(
    caplog: pytest.LogCaptureFixture, returned: Callable[[Any], Any], said: str
) -> None:
    async with Fleet(3, picker=making(returned)) as fleet:
        for _ in range(CALLS):
            await fleet.call()
        (line,) = lines_of(caplog)
        assert line.startswith(f"fleet: picker returned {said}")
        assert line.endswith(", which is not in `ready`; falling back to round robin")
        (record,) = (one for one in caplog.records if one.levelno == logging.ERROR)
        assert record.exc_info is None
        counts = Counter({one.address: len(one.calls) for one in fleet.servers})
        assert min(counts.values()) > 0


async def test_a_picker_that_keeps_a_backend_that_has_left_costs_no_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It was asked again and again, in one turn of the loop: for ever."""
    kept: list[Any] = []

    def pick(ready: Any) -> Any:
        kept.append(kept[0] if kept else ready[0])
        assert len(kept) < CALLS, "asked for ever"
        return kept[0]

    async with Fleet(3, picker=making(pick)) as fleet:
        await fleet.call()
        fleet.resolver.tell(fleet.endpoints[1:])
        await asyncio.sleep(PERIOD)
        await fleet.call()
        (line,) = lines_of(caplog)
        assert line.startswith("fleet: picker returned <b0:1 ")


async def test_no_picks_go_to_an_ejected_backend_where_the_picker_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Fleet(4, picker=making(lambda ready: None)) as fleet:
        bad = fleet.servers[0]
        bad.serve = lambda call: call.fail(grpc.StatusCode.INTERNAL, "no")
        for _ in range(CALLS):
            await asyncio.gather(fleet.call(), return_exceptions=True)
            await asyncio.sleep(0.05)
        assert fleet.balancer.outliers.count == 1
        counts = [len(one.calls) for one in fleet.servers]
        assert counts[0] < min(counts[1:]) / 2, counts


async def test_calls_that_begin_together_are_spread_where_the_picker_fails() -> None:
    """All went to one backend: it went by how many calls were over."""
    async with Fleet(3, picker=making(raises)) as fleet:
        await fleet.call()
        before = [len(one.calls) for one in fleet.servers]
        await asyncio.gather(*(fleet.call() for _ in range(30)))
        pairs = zip(fleet.servers, before, strict=True)
        assert [len(one.calls) - then for one, then in pairs] == [10] * 3
