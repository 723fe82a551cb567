"""A channel that nobody calls rests, and nobody can tell but by what it costs."""

import asyncio
from itertools import cycle

import pytest

from lbclient.client.backends import idleness
from lbclient.client.backends.backend import Backend
from tests.loop.fleet import INTERVAL, FakeCall, Fleet

LONG = 1000.0
IDLE_AFTER = 300.0


def hold(call: object) -> None:
    """The call is left in flight."""


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When backends were looked at."""
    times: list[float] = []
    look = Backend.look

    def noted(backend: Backend, now: float) -> None:
        times.append(now)
        look(backend, now)

    monkeypatch.setattr(Backend, "look", noted)
    return times


async def test_without_calls_nothing_is_looked_at(looks: list[float]) -> None:
    async with Fleet(3) as fleet:
        await fleet.call()
        await asyncio.sleep(LONG)
        before = len(looks)
        await asyncio.sleep(LONG)
        assert len(looks) == before
        await fleet.call()
        assert len(looks) == before + 3, "just before the call"
        await asyncio.sleep(LONG)
        assert len(looks) - before < 3 * 120, "and then no more"


@pytest.mark.parametrize("idle_after", [0.0, IDLE_AFTER])
async def test_the_call_that_ends_a_rest_is_looked_after(idle_after: float) -> None:
    """Its backend has frozen meanwhile: that is seen as soon as without a rest."""
    async with Fleet(2, idle_after=idle_after) as fleet:
        for _ in range(8):  # so that both connections stay
            await asyncio.gather(fleet.call(), fleet.call())
            await asyncio.sleep(60.0)
        await asyncio.sleep(100.0)
        for server in fleet.servers:
            server.is_frozen = True
        call = asyncio.ensure_future(fleet.call(timeout=LONG))
        await asyncio.sleep(2.5 * INTERVAL)
        assert "connecting" in fleet.states()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


async def test_a_call_in_flight_is_looked_after_as_long_as_it_takes(
    looks: list[float],
) -> None:
    async with Fleet(1) as fleet:
        server = fleet.servers[0]
        server.serve = hold
        await asyncio.sleep(LONG)
        call, began = fleet.call(), len(looks)
        await asyncio.sleep(LONG)
        assert len(looks) - began >= LONG / INTERVAL
        server.calls[-1].serve()
        await call


async def two_hours() -> tuple[list[str], list[int]]:
    """What callers and `states` tell; and how often each server was asked."""
    told = []
    async with Fleet(3, idle_after=IDLE_AFTER) as fleet:
        pauses = cycle(
            (0.1, 0.1, 5.0, 0.1, 40.0, 100.0, 250.0, 3.0, 240.0, 400.0, 900.0)
        )
        for number, pause in zip(range(38), pauses, strict=False):
            for server in fleet.servers:
                server.serve = hold if number % 7 == 3 else FakeCall.serve
            ended = await asyncio.gather(fleet.call(12.0), return_exceptions=True)
            await asyncio.sleep(pause)
            told.append(f"{number}: {ended}, {fleet.states()}")
        return told, [len(server.asked) for server in fleet.servers]


async def test_who_rests_does_what_it_would_do_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resting, asked = await two_hours()
    monkeypatch.setattr(idleness, "_needs_looks", lambda _: True)
    assert resting == (always := await two_hours())[0]
    assert "inactive" in resting[-1]
    assert any("DEADLINE_EXCEEDED" in told for told in resting)
    assert asked == pytest.approx(always[1], abs=3)
