"""What keeps calls away from a backend before it is ejected is told at every place.

On virtual time: one of three alone answers UNIMPLEMENTED, at once, to a slow client.
"""

import asyncio
from contextlib import suppress

import grpc

from lbclient.admin import shape
from lbclient.admin.snapshot import of_channel
from lbclient.cli.operate.inspect import channel as told
from lbclient.core.statistics.records import ChannelStatistics
from lbclient.metrics import samples
from tests.loop.fleet import FakeCall, Fleet

Code = grpc.StatusCode
PAUSE = 0.1  # seconds between two calls
MOST = 100  # of them


def refuse(call: FakeCall) -> None:
    call.fail(Code.UNIMPLEMENTED, "Method not found!")


def serve_later(call: FakeCall) -> None:
    asyncio.get_running_loop().call_later(0.005, call.serve)


async def avoided(fleet: Fleet) -> ChannelStatistics:
    """What the channel says once its second backend has got an error or two, and a call
    in between that went elsewhere."""
    for server in fleet.servers:
        server.serve = serve_later
    bad = fleet.servers[1]
    bad.serve = refuse
    for _ in range(MOST):
        before = len(bad.calls)
        with suppress(grpc.aio.AioRpcError):
            await fleet.call()
        if before >= 2 and len(bad.calls) == before:
            break
        await asyncio.sleep(PAUSE)
    return fleet.channel.statistics()


async def test_errors_that_keep_calls_away_are_told_before_the_ejection() -> None:
    async with Fleet(3) as fleet:
        fleet.balancer.picks.keep()  # from now on picks are kept
        seen = await avoided(fleet)
        well, ill, also_well = seen.backends
        assert [one.state for one in seen.backends] == ["ready"] * 3
        assert [one.ejected for one in seen.backends] == [()] * 3
        assert 0.9 < ill.recent_errors < ill.started
        assert well.recent_errors == also_well.recent_errors == 0.0
        assert ill.last_error == "a call ended with UNIMPLEMENTED"
        gauges = dict(samples.backend_gauges(seen, "t", most=9))
        name = "lbclient_backend_recent_errors"
        assert gauges[name, "t", ill.address] == ill.recent_errors
        page = of_channel(1, fleet.channel, room=9)
        assert shape.flaw(page, shape.CHANNEL) == ""
        assert page["backends"][1]["recent_errors"] == ill.recent_errors
        held = f"{ill.recent_errors:.1f} recent errors held against it"
        assert page["picks"][0]["because"].endswith(f"; {ill.address} has {held}")
        text = " ".join("\n".join(told(page, None, 0.0)).split())
        why = f"{ill.address} a call ended with UNIMPLEMENTED, 0.1 s ago; {held}"
        assert why in text


async def test_errors_that_have_faded_are_told_no_more() -> None:
    async with Fleet(3) as fleet:
        await avoided(fleet)
        await asyncio.sleep(120.0)
        page = of_channel(1, fleet.channel, room=9)
        assert page["backends"][1]["recent_errors"] < 0.001
        assert "errors held against it" not in "\n".join(told(page, None, 0.0))
