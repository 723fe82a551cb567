"""What makes a backend doubted or silent, by examples; laws/test_lifecycle has more."""

from random import Random

import pytest

from lbclient.lifecycle import FIRST_LOOK, LOOK_PERIOD, MISSES, Lifecycle, Order, Step
from lbclient.model import State, TaskState

INTERVAL = 2.0
MOMENT = 0.01
SERVING = TaskState.SERVING


def take(life: Lifecycle, step: Step) -> Step:
    if step.state is not None:
        life.state = step.state
    return step


@pytest.fixture
def life() -> Lifecycle:
    """One of ours that is ready: it said so, with its load, at 0."""
    life = Lifecycle(INTERVAL, Random(7))
    take(life, life.connected())
    take(life, life.heard(SERVING, True, 0.0))
    return life


def miss(life: Lifecycle, now: float) -> Step:
    """As many deadlines as it takes to doubt it; the last one's step."""
    for _ in range(MISSES - 1):
        assert life.missed_deadline(0, True, now) == Step()
    return take(life, life.missed_deadline(0, True, now))


def test_who_just_answered_is_trusted_for_an_interval(life: Lifecycle) -> None:
    assert miss(life, 1.0).order is Order.CHECK
    assert take(life, life.checked(SERVING, 1.0)).state is State.READY
    trusted_until = 1.0 + INTERVAL
    assert miss(life, trusted_until - MOMENT) == Step()
    step = take(life, life.missed_deadline(0, True, trusted_until))
    assert (step.state, step.order) == (State.CONNECTING, Order.CHECK)


def test_silence_is_judged_when_it_is_due(life: Lifecycle) -> None:
    late = INTERVAL * 1.25  # as a busy loop is
    step = life.tick(late, reported_at=0.0)
    assert step.state is State.CONNECTING
    assert step.reason == f"silent for {late:.1f} s"


def test_who_stood_still_itself_first_reads_what_came_meanwhile(
    life: Lifecycle,
) -> None:
    late = INTERVAL * 1.25 + MOMENT
    assert life.tick(late, reported_at=0.0) == Step()
    due = life.due_at()
    assert due == late + INTERVAL / 2
    assert life.tick(due, reported_at=0.0).state is State.CONNECTING


def test_what_was_read_after_a_standstill_is_no_silence(life: Lifecycle) -> None:
    late = 10 * INTERVAL
    life.tick(late, reported_at=0.0)
    life.heard(SERVING, True, late + MOMENT)
    due = life.due_at()
    assert due is not None
    assert life.tick(due, reported_at=late + MOMENT) == Step()
    assert life.due_at() == pytest.approx(late + MOMENT + INTERVAL)


@pytest.mark.parametrize("pace", [INTERVAL / 4, 4 * INTERVAL])
def test_silence_is_judged_anew_when_another_pace_was_asked_for(
    life: Lifecycle, pace: float
) -> None:
    """At the old one its last report may be older than the new one allows."""
    asked_at = INTERVAL - MOMENT
    life.expect_every(pace, asked_at)
    due = life.due_at()
    assert due == asked_at + pace
    assert life.tick(due - MOMENT, reported_at=0.0) == Step()
    assert life.tick(due, reported_at=0.0).state is State.CONNECTING


def test_silence_by_udp_neither_hurries_nor_puts_off_a_look_that_is_due(
    life: Lifecycle,
) -> None:
    """Else who listens nowhere would be looked at after every look."""
    take(life, life.idle(300.0, 0.0, by_udp=True))
    life.not_told(1.0)
    first = life.due_at()
    assert first is not None
    assert 1.0 <= first <= 1.0 + FIRST_LOOK
    assert life.tick(first, 0.0).order is Order.LOOK
    take(life, life.seen(SERVING, first))
    second = life.due_at()
    assert second is not None
    assert second >= first + LOOK_PERIOD
    life.not_told(first + MOMENT)
    assert life.due_at() == second
