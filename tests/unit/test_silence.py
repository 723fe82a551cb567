"""When reports of a backend are overdue, and what is due then."""

from random import Random

import pytest

from lbclient.core.backends.silence import (
    JITTER,
    LONGEST,
    REDIAL_AFTER,
    UNREAD,
    Silence,
)

EVERY = 2.0
LATER = EVERY * UNREAD  # after a report was due


@pytest.fixture
def silence() -> Silence:
    """It owes a report at EVERY."""
    silence = Silence(EVERY, Random(7))
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


def pause_of(silence: Silence) -> float:
    """From the time that it is silent to a new connection."""
    due = silence.due_at()
    assert due is not None
    return due - EVERY - LATER


def around(pause: float) -> tuple[float, float]:
    return pause * (1 - JITTER), pause * (1 + JITTER)


def test_silence_is_followed_by_a_new_connection(silence: Silence) -> None:
    assert silent(silence).is_judged()
    least, most = around(EVERY * REDIAL_AFTER)
    assert least <= pause_of(silence) <= most
    due = silence.due_at()
    assert due is not None
    assert not silence.is_too_long(due - 0.1)
    assert silence.is_too_long(due)
    silence.clear()
    assert not silence.is_judged()


def test_who_is_silent_again_on_each_connection_has_ever_fewer(
    silence: Silence,
) -> None:
    pauses = []
    for _ in range(8):
        pauses.append(pause_of(silent(silence)))
        silence.clear()
        silence.heard(True, 0.0)
        assert silence.judge(EVERY, 0.001) is None  # its first word, read a bit later
        silence.expect_every(EVERY, 0.0)
    for doubled, pause in enumerate(pauses):
        least, most = around(EVERY * min(LONGEST, REDIAL_AFTER * 2**doubled))
        assert least <= pause <= most
    assert silence.judge(EVERY, EVERY / 2) is None  # in time: it speaks again
    silence.clear()
    silence.heard(True, 0.0)
    assert pause_of(silent(silence)) <= around(EVERY * REDIAL_AFTER)[1]


def test_clients_of_one_that_is_silent_do_not_come_together() -> None:
    pauses = set()
    for seed in range(10):
        silence = Silence(EVERY, Random(seed))
        silence.heard(True, 0.0)
        pauses.add(pause_of(silent(silence)))
    assert len(pauses) == 10


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
    due = silent(silence).due_at()
    silence.expect_every(9.0, EVERY)  # no report is owed: it is silent
    assert silence.due_at() == due
    silence.owes_nothing()
    assert silence.is_judged()  # a new connection is due all the same
