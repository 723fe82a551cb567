"""Whether streams of ours may take slots of a connection."""

import pytest

from lbclient.core.backends.stream_permit import (
    LEAST_PATIENCE,
    LONGEST_ANSWER,
    SUSPENSIONS,
    TOLD_FOR,
    CheckPatience,
    StreamPermit,
    patience,
)


def test_streams_that_cost_too_much_are_not_opened_for_longer_each_time() -> None:
    permit, now = StreamPermit(), 100.0
    for times in range(10):
        assert permit.may_stream(now)
        permit.suspend(now)
        pause = min(SUSPENSIONS.first * 2**times, SUSPENSIONS.longest)
        assert not permit.may_stream(now + pause - 1)
        now += pause


def test_errors_tell_what_filled_the_connection_for_a_while() -> None:
    permit = StreamPermit()
    assert permit.error_note(0.0) == ""
    permit.record_ended(streams=2, in_flight=5, now=10.0)
    said = permit.error_note(12.0)
    assert "2 health or load streams" in said
    assert "5 calls" in said
    assert said.endswith("the streams were ended 2.0 s ago")
    assert permit.error_note(10.0 + TOLD_FOR + 1) == ""
    assert permit.may_stream(12.0), "that they were in the way is not known yet"


def test_a_slow_peer_has_longer_to_answer_beside_a_stream() -> None:
    assert patience(0.001, 2.0) == 0.25
    assert patience(0.1, 2.0) == pytest.approx(0.8)
    assert patience(5.0, 2.0) == 2.0


def test_a_suspension_is_forgotten_after_ten_good_minutes() -> None:
    permit, now = StreamPermit(), 100.0
    for _ in range(5):
        permit.suspend(now)
        now = permit.expires_at
    now += SUSPENSIONS.first
    permit.suspend(now)
    assert permit.expires_at == now + SUSPENSIONS.first


def test_to_suspend_twice_for_one_cause_is_to_suspend_once() -> None:
    permit = StreamPermit()
    permit.suspend(100.0)
    permit.suspend(101.0)
    assert permit.expires_at == 100.0 + SUSPENSIONS.first
    now = permit.expires_at
    permit.suspend(now)
    assert permit.expires_at == now + 2 * SUSPENSIONS.first


def test_patience_grows_with_a_slow_server_and_shrinks_again() -> None:
    slow = CheckPatience()
    slow.start(round_trip=0.001, longest=2.0)
    assert slow.seconds == LEAST_PATIENCE
    slow.answered_late(1.0)
    assert slow.seconds == 2.0
    slow.answered(1.0)
    assert slow.seconds == 2.0
    for _ in range(10):
        slow.answered(0.01)
    assert slow.seconds == LEAST_PATIENCE
    slow.answered_late(100.0)
    assert slow.seconds == LONGEST_ANSWER
