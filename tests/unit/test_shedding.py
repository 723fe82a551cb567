"""What is ended without an answer in a flood, and when that begins and ends."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lbclient import wire
from lbclient.core.criticality import Criticality
from lbclient.server.overload import shedding as module
from lbclient.server.overload.core_queue import CoreQueue
from lbclient.server.overload.metadata import RequestMetadata
from lbclient.server.overload.shedding import (
    ANSWERED,
    ANSWERED_BESIDE_LONG,
    ANSWERED_FOR_QUOTAS,
    LONG,
    Shedding,
)

TICK = 0.1  # seconds
FEW, MANY = int(0.5 * ANSWERED * TICK), int(2 * ANSWERED * TICK)  # in each
PLUS = ((wire.CRITICALITY_KEY, "CRITICAL_PLUS"),)
SHEDDABLE = ((wire.CRITICALITY_KEY, "SHEDDABLE"),)
CRITICAL = ((wire.CRITICALITY_KEY, "CRITICAL"),)
BAD = (wire.CUSTOMER_KEY, "bad")


class Request:
    def __init__(self, metadata: Any) -> None:
        self.metadata = metadata


class Flood:
    """Of what comes all that is not CRITICAL is to be dropped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "metadata_of", lambda request: request.metadata)
        self.core = CoreQueue()
        self.least = Criticality.CRITICAL
        self.counted: list[Criticality] = []
        self.used_up: list[Criticality] = []
        self.shedding = Shedding(
            self.core,
            RequestMetadata().named,
            lambda criticality: criticality >= self.least,
            lambda _, criticality: self.counted.append(criticality),
            lambda metadata, _: BAD in metadata,
            lambda _, criticality: self.used_up.append(criticality),
        )
        self._now, self._refused, self._out_of_quota = 0.0, 0, 0

    def sample(
        self,
        refused: int = 0,
        *,
        are_long: bool = False,
        each: float = LONG,
        out_of_quota: int = 0,
    ) -> bool:
        """Whether requests are dropped from now on."""
        self._now += TICK
        self._refused += refused
        self._out_of_quota += out_of_quota
        out = self._out_of_quota
        self.shedding.sample(self._now, self._refused, are_long, each, out)
        return self.core.intake.drops is not None

    def drops(self, metadata: Any) -> bool:
        """Whether one that comes is; it waits if not."""
        intake, dropped = self.core.intake, self.core.intake.dropped
        self.come(metadata)
        return intake.dropped > dropped and not (
            intake._waiting and intake._waiting[-1].metadata is metadata
        )

    def come(self, metadata: Any) -> None:
        intake = self.core.intake
        intake.asked += 2  # so that it asks for no more
        intake._take(Request(metadata))
        intake.asked -= 1

    def waiting(self) -> list[Any]:
        return [request.metadata for request in self.core.intake._waiting]


@pytest.fixture
def flood(monkeypatch: pytest.MonkeyPatch) -> Flood:
    return Flood(monkeypatch)


def test_refusals_are_answered_but_where_many_wait_and_many_are_refused(
    flood: Flood,
) -> None:
    assert not flood.sample(MANY)
    flood.core.delay.is_limited = True
    assert not flood.sample(FEW)
    assert flood.sample(MANY)
    assert flood.sample(0)  # as long as many wait
    flood.core.delay.is_limited = False
    assert not flood.sample(MANY)


def test_where_handlers_take_long_all_are_answered_but_of_very_many(
    flood: Flood,
) -> None:
    most = int(ANSWERED_BESIDE_LONG * TICK)
    assert not flood.sample(most + 10, are_long=True, each=0.9 * LONG)
    assert flood.sample(most + 10, are_long=True)
    flood.core.core_ended_some = flood.core.delay.is_limited = True
    assert not flood.sample(most - 10, are_long=True)
    assert flood.sample(MANY)
    assert not flood.sample(most - 10, are_long=True)


def test_where_the_core_ends_some_the_server_chooses_whom(flood: Flood) -> None:
    flood.core.core_ended_some = True
    assert flood.sample()
    assert flood.drops(SHEDDABLE)
    assert not flood.drops(CRITICAL)


def test_what_names_no_criticality_and_what_was_tried_before_is_answered(
    flood: Flood,
) -> None:
    flood.core.core_ended_some = True
    flood.sample()
    retry = (wire.ATTEMPT_KEY, "1")
    assert not flood.drops(())
    assert not flood.drops((("other", "SHEDDABLE"),))
    assert not flood.drops(((wire.CRITICALITY_KEY, "none"),))
    assert not flood.drops((*SHEDDABLE, retry))
    assert not flood.drops((retry, *SHEDDABLE))


def test_whoever_is_let_in_is_not_asked_again(flood: Flood) -> None:
    assert not flood.shedding.has_asked(CRITICAL)
    flood.core.core_ended_some = True
    flood.sample()
    assert flood.shedding.has_asked(CRITICAL)
    assert not flood.shedding.has_asked(())


def test_the_core_keeps_room_only_where_most_may_be_dropped(flood: Flood) -> None:
    flood.core.core_ended_some = True
    for named in (0, 1, 2, 1):
        flood.sample()
        for number in range(3):
            flood.drops(CRITICAL if number < named else ())
        flood.sample()
        assert flood.core.drops_by_criticality == (named == 2)


def test_where_events_come_one_a_turn_all_are_answered(flood: Flood) -> None:
    flood.core.core_ended_some = flood.core.delay.is_limited = True
    flood.shedding.is_possible = False
    assert not flood.sample(MANY)
    flood.shedding.is_possible = True
    assert flood.sample(MANY)


def test_who_came_before_the_flood_was_seen_is_asked_when_it_is(flood: Flood) -> None:
    intake = flood.core.intake
    for metadata in (SHEDDABLE, CRITICAL, ()):
        flood.come(metadata)
    flood.core.core_ended_some = True
    assert flood.sample(MANY)
    assert len(intake) == 3  # they do not wait for too long yet
    flood.core.delay.is_limited, flood.core.delay.seconds = True, 1.0
    assert flood.sample(MANY)
    assert flood.waiting() == [CRITICAL, ()]
    assert intake.dropped == 1
    assert flood.core.delay.seconds == 0.0  # so that nobody takes it for a quick rate


def test_who_finds_no_room_takes_the_place_of_the_first_of_the_least_critical(
    flood: Flood,
) -> None:
    flood.core.core_ended_some = True
    flood.least = Criticality.SHEDDABLE
    flood.sample()
    for metadata in (CRITICAL, (), SHEDDABLE, CRITICAL, SHEDDABLE):
        flood.come(metadata)
    flood.least = Criticality.CRITICAL_PLUS + 1  # type: ignore[assignment]
    flood.come(PLUS)
    assert flood.waiting() == [CRITICAL, (), PLUS, CRITICAL, SHEDDABLE]
    flood.come(CRITICAL)
    assert flood.waiting() == [CRITICAL, (), PLUS, CRITICAL, CRITICAL]
    flood.come(CRITICAL)
    flood.come(SHEDDABLE)
    flood.come(PLUS)
    assert flood.waiting() == [PLUS, (), PLUS, CRITICAL, CRITICAL]
    counted = [criticality.name for criticality in flood.counted]
    assert counted == 2 * ["SHEDDABLE"] + ["CRITICAL", "SHEDDABLE", "CRITICAL"]
    assert flood.core.intake.dropped == len(counted)


async def test_who_is_served_and_who_came_before_the_flood_loses_no_place(
    flood: Flood,
) -> None:
    flood.come(SHEDDABLE)
    flood.core.core_ended_some = True
    flood.least = Criticality.SHEDDABLE
    flood.sample()
    flood.come(SHEDDABLE)
    flood.core.intake.take_from(SimpleNamespace(ask=lambda *_: None))
    for _ in range(2):
        flood.core.intake.next(asyncio.Future())
    flood.least = Criticality.CRITICAL_PLUS + 1  # type: ignore[assignment]
    flood.come(PLUS)
    assert flood.waiting() == []
    assert len(flood.core.intake.ranks) == 0
    flood.least = Criticality.SHEDDABLE
    flood.come(SHEDDABLE)
    assert repr(flood.core.intake.ranks) == "<1 SHEDDABLE>"
    flood.core.core_ended_some = False
    flood.sample()
    assert repr(flood.core.intake.ranks) == "<>"


def test_a_flood_beyond_a_quota_leaves_nobody_else_unanswered(flood: Flood) -> None:
    most = int(ANSWERED_FOR_QUOTAS * TICK)
    assert not flood.sample(FEW, are_long=True, out_of_quota=most - 1)
    assert flood.sample(FEW, are_long=True, out_of_quota=10 * most)
    assert not flood.drops(SHEDDABLE)
    assert not flood.shedding.has_asked(SHEDDABLE)
    assert [flood.drops((*CRITICAL, BAD)) for _ in range(most + 2)] == [
        *[False] * most,
        *[True] * 2,
    ]
    assert flood.used_up == [Criticality.CRITICAL] * 2
    assert not flood.counted
    assert not flood.sample(FEW, are_long=True, out_of_quota=most - 1)
