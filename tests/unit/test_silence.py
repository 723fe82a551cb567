"""When reports of a backend are overdue, and what is due then."""

import pytest

from lbclient.core.backends.silence import REDIAL_INTERVALS, UNREAD, Silence

EVERY = 2.0
LATER = EVERY * UNREAD  # after a report was due


@pytest.fixture
def silence() -> Silence:
    """It owes a report at EVERY."""
    silence = Silence(EVERY)
    silence.heard(True, 0.0)
    return silence


def silent(silence: Silence) -> Silence:
    assert silence.judge(EVERY, -1.0) is None
    due = EVERY + LATER
    assert silence.due_at() == due
    assert silence.judge(due, -1.0) == due + 1.0  # since it last told its load
    return silence


def test_a_report_is_owed_an_interval_after_the_first_one(silence: Silence) -> None:
    assert silence.is_judged()
    assert silence.due_at() == EVERY
    silence.heard(True, 1.0)  # judged by when it last told its load
    assert silence.due_at() == EVERY
    assert not silence.is_due(EVERY - 0.1)
    assert silence.is_due(EVERY)
    assert silence.judge(EVERY, 1.0) is None
    assert silence.due_at() == 1.0 + EVERY


def test_who_never_told_a_load_owes_nothing(silence: Silence) -> None:
    silence.heard(False, 1.0)
    assert not silence.is_judged()
    assert silence.due_at() is None
    silence.expect_every(1.0, 1.0)
    assert silence.due_at() is None


def test_silence_is_followed_by_a_new_connection(silence: Silence) -> None:
    due = LATER + EVERY * REDIAL_INTERVALS
    assert silent(silence).is_judged()
    assert silence.due_at() == due
    assert not silence.is_too_long(due - 0.1)
    assert silence.is_too_long(due)
    silence.clear()
    assert not silence.is_judged()


def test_a_word_ends_silence(silence: Silence) -> None:
    silent(silence).heard(True, 3.0)
    assert silence.due_at() == 3.0 + EVERY
    assert not silence.is_too_long(1e9)


def test_an_answer_ends_silence_and_puts_off_nothing_else(silence: Silence) -> None:
    silence.answered(1.0)
    assert silence.due_at() == EVERY
    silent(silence).answered(3.0)
    assert silence.due_at() == 3.0 + EVERY
    assert not silence.is_too_long(1e9)


def test_who_stood_still_itself_judges_half_an_interval_later(silence: Silence) -> None:
    now = EVERY + EVERY / 4 + 0.1
    assert silence.judge(now, 0.0) is None
    assert silence.due_at() == now + EVERY / 2
    assert not silence.is_too_long(1e9)


def test_what_was_read_late_is_no_silence(silence: Silence) -> None:
    """Our loop stood still until the report was due, which had come meanwhile."""
    assert silence.judge(EVERY, 0.0) is None
    assert silence.judge(EVERY + LATER, EVERY) is None
    assert silence.due_at() == 2 * EVERY
    assert silence.judge(2 * EVERY, EVERY) is None  # as it was the first time
    assert silence.due_at() == 2 * EVERY + LATER


def test_another_interval_does_not_put_off_a_new_connection(silence: Silence) -> None:
    silent(silence)
    silence.expect_every(9.0, EVERY)  # no report is owed: it is silent
    assert silence.due_at() == LATER + EVERY * REDIAL_INTERVALS
    silence.owes_nothing()
    assert silence.is_judged()  # a new connection is due all the same
