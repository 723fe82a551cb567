"""Floods of health and load streams, from a process of their own: the short form."""

from time import monotonic, process_time

import pytest

from benchmarks.faults import stream_flood
from lbclient import wire

PER_CONNECTION = 8  # ServerConfig.max_streams_per_connection
WORDS = {
    wire.WATCH_METHOD: "RESOURCE_EXHAUSTED",
    wire.ORCA_METHOD: "RESOURCE_EXHAUSTED",
    wire.SERVING_WATCH_METHOD: "UNIMPLEMENTED",
}


MOST_SLOW = 4.0  # with longer deadlines the calls would all be served


def slowness(seconds: float = 0.5) -> float:
    """How many seconds pass on this machine for one of its processor to a process that
    wants one. 1.0: nobody else wants it."""
    began_at, had = monotonic(), process_time()
    while monotonic() - began_at < seconds:
        pass
    return (monotonic() - began_at) / (process_time() - had)


async def test_other_clients_fare_as_with_a_stock_server() -> None:
    """Twice as many at once as gRPC's core keeps for a server of ours.

    To refuse these takes a server of ours some 0.4 s of a processor, a stock server
    half of that; so on a busy machine the calls have longer deadlines, up to a bound.
    """
    deadline = stream_flood.DEADLINE * min(MOST_SLOW, slowness())
    row = await stream_flood.many(4.0, streams=2000, connections=20, deadline=deadline)
    assert row.holds, row


@pytest.mark.parametrize("method", WORDS)
async def test_a_connection_holds_a_few_streams_and_the_others_are_told(
    method: str,
) -> None:
    connections = 5
    flooded = await stream_flood.victim_of(
        "ours", method, 3.0, streams=400, connections=connections, rate=400.0
    )
    seen = flooded.seen
    assert seen.held == connections * PER_CONNECTION
    assert seen.ended == {WORDS[method]: 400 - seen.held}
    assert "on a connection" in seen.words
    assert not flooded.calls.failed()


async def test_streams_that_close_and_open_without_end_are_held_back() -> None:
    row = await stream_flood.churn(4.0, streams=80)
    assert row.holds, row


async def test_many_streams_take_little_and_all_hear_of_a_lame_duck() -> None:
    row = await stream_flood.held(2.0, streams=1000)
    assert row.holds, row
