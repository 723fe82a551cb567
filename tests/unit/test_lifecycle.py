"""What makes a backend doubted or silent, by examples; laws/test_lifecycle has more."""

from itertools import pairwise
from random import Random

import pytest

from lbclient.core.backends.call_answers import MISSES
from lbclient.core.backends.checks import RAREST_CHECK
from lbclient.core.backends.connection_state import Order, Step
from lbclient.core.backends.lifecycle import TRAILER_INTERVALS, Lifecycle
from lbclient.core.backends.looks import FIRST_LOOK, LOOK_PERIOD
from lbclient.core.backends.silence import UNREAD
from lbclient.core.model import State, TaskState

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
    take(life, life.connected(0.0, INTERVAL))
    take(life, life.health_reported(SERVING, True, 0.0))
    return life


def miss(life: Lifecycle, now: float) -> Step:
    """As many deadlines as it takes to doubt it; the last one's step."""
    for _ in range(MISSES - 1):
        assert life.doubts.deadline_missed(0, True, now) == Step()
    return take(life, life.doubts.deadline_missed(0, True, now))


def test_who_just_answered_is_trusted_for_an_interval(life: Lifecycle) -> None:
    assert miss(life, 1.0).order is Order.CHECK
    assert take(life, life.doubts.check_answered(SERVING, 1.0)).state is State.READY
    trusted_until = 1.0 + INTERVAL
    assert miss(life, trusted_until - MOMENT) == Step()
    step = take(life, life.doubts.deadline_missed(0, True, trusted_until))
    assert (step.state, step.order) == (State.CONNECTING, Order.CHECK)


def test_a_report_that_is_as_old_as_may_be_rings_once(life: Lifecycle) -> None:
    """By rounding it was due again at the very moment, for ever."""
    reported_at, now = 12.026867862137802, 14.0268678621378
    assert life.tick(now, reported_at) == Step()
    due = life.due_at()
    assert due is not None
    assert due > now


def test_silence_is_judged_when_it_is_due(life: Lifecycle) -> None:
    late = INTERVAL * 1.25  # as a busy loop is
    assert life.tick(late, reported_at=0.0) == Step()
    assert life.due_at() == late + INTERVAL * UNREAD
    late += INTERVAL * UNREAD
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
    life.health_reported(SERVING, True, late + MOMENT)
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
    life.silence.expect_every(pace, asked_at)
    due = life.due_at()
    assert due == asked_at + pace
    assert life.tick(due - MOMENT, reported_at=0.0) == Step()
    assert life.tick(due, reported_at=0.0) == Step()
    due += pace * UNREAD
    assert life.tick(due, reported_at=0.0).state is State.CONNECTING


def test_silence_by_udp_neither_hurries_nor_puts_off_a_look_that_is_due(
    life: Lifecycle,
) -> None:
    """Else who listens nowhere would be looked at after every look."""
    take(life, life.became_idle(300.0, 0.0, by_udp=True))
    life.udp_unanswered(1.0)
    first = life.due_at()
    assert first is not None
    assert 1.0 <= first <= 1.0 + FIRST_LOOK
    assert life.tick(first, 0.0).order is Order.LOOK
    take(life, life.look_answered(SERVING, first))
    second = life.due_at()
    assert second is not None
    assert second >= first + LOOK_PERIOD
    life.udp_unanswered(first + MOMENT)
    assert life.due_at() == second


# --- a connection that may be dead, or its server busy -------------------------


PATIENCE = 3.0  # for an answer


@pytest.fixture
def stranger() -> Lifecycle:
    """Not ours, connected at 0, with nothing said yet."""
    life = Lifecycle(INTERVAL, Random(7))
    take(life, life.connected(0.0, PATIENCE))
    return life


def ring(life: Lifecycle, reported_at: float = 0.0) -> tuple[float, Step]:
    """When the timer rings next, and what it brings."""
    due = life.due_at()
    assert due is not None
    return due, take(life, life.tick(due, reported_at))


def test_a_connection_that_never_spoke_is_asked_after_its_patience(
    stranger: Lifecycle,
) -> None:
    assert ring(stranger) == (PATIENCE, Step(order=Order.CHECK))
    step = take(stranger, stranger.doubts.check_answered(SERVING, 3.1))
    assert step == Step(State.READY, "asked, it says serving")
    assert stranger.due_at() is None


def test_what_a_server_said_in_its_own_words_is_the_reason(
    life: Lifecycle, stranger: Lifecycle
) -> None:
    """Of grpc.health.v1's NOT_SERVING the state is our guess."""
    words, gone = "it says NOT_SERVING (grpc.health.v1)", TaskState.LAME_DUCK
    step = take(stranger, stranger.doubts.check_answered(gone, 3.1, words))
    assert step == Step(State.LAME_DUCK, f"asked, {words}")
    assert miss(life, 1.0).order is Order.CHECK
    step = take(life, life.doubts.check_answered(gone, 1.0, words))
    assert step == Step(State.LAME_DUCK, f"asked, {words}")


def test_a_connection_that_never_spoke_is_replaced_once_another_is_answered(
    stranger: Lifecycle,
) -> None:
    ring(stranger)
    now = 2 * PATIENCE
    step = take(stranger, stranger.doubts.check_unanswered(now))
    assert step.reason == (
        "connected; no health response yet; a health check is not answered"
    )
    assert ring(stranger) == (now, Step(order=Order.LOOK))
    step = take(stranger, stranger.look_answered(SERVING, now + 0.1))
    assert step.order is Order.REPLACE
    assert step.reason == (
        "connected; no health response yet; a second connection is answered"
    )
    assert not stranger.is_connected()


def test_it_refuses_while_another_connection_is_as_dead_and_is_looked_at_again(
    stranger: Lifecycle,
) -> None:
    ring(stranger)
    take(stranger, stranger.doubts.check_unanswered(6.0))
    ring(stranger)
    step = take(stranger, stranger.look_unanswered("cannot connect: ...", 10.0))
    assert step.state is State.REFUSING
    assert step.reason == "connected; no health response yet; cannot connect: ..."
    looks = []
    for _ in range(4):
        due, step = ring(stranger)
        if step.order is Order.CHECK:
            take(stranger, stranger.doubts.check_unanswered(due))
        else:
            assert step.order is Order.LOOK
            looks.append(due)
            take(stranger, stranger.look_unanswered("cannot connect: ...", due + 4.0))
    assert looks
    assert looks[0] <= 6.0 + FIRST_LOOK * 1.25
    assert (
        take(stranger, stranger.health_reported(SERVING, False, 40.0)).state
        is State.READY
    )


def test_a_busy_server_keeps_its_connection(stranger: Lifecycle) -> None:
    """Its threads answer no question, but its core acknowledges pings."""
    ring(stranger)
    take(stranger, stranger.doubts.check_unanswered(6.0))
    ring(stranger)
    step = take(stranger, stranger.look_unanswered("no answer", 11.0, is_there=True))
    assert (step.state, step.order) == (None, None)
    assert stranger.is_connected()
    assert stranger.state is State.CONNECTING


def test_a_lone_server_that_answers_no_question_gets_its_calls(
    stranger: Lifecycle,
) -> None:
    """As it would from grpc.aio."""
    ring(stranger)
    take(stranger, stranger.doubts.check_unanswered(6.0))
    ring(stranger)
    step = stranger.look_unanswered("no answer", 11.0, is_there=True, has_others=False)
    assert take(stranger, step).state is State.READY


def test_a_lone_server_that_once_said_that_it_starts_is_not_taken_to_serve(
    stranger: Lifecycle,
) -> None:
    ring(stranger)
    step = stranger.doubts.check_answered(TaskState.STARTING, 3.1)
    assert take(stranger, step).state is State.STARTING
    due, _ = ring(stranger)
    take(stranger, stranger.doubts.check_unanswered(due + PATIENCE))
    ring(stranger)
    step = stranger.look_unanswered("no answer", 15.0, is_there=True, has_others=False)
    assert take(stranger, step).state is None


def test_calls_without_an_answer_have_the_connection_asked_ever_more_seldom(
    stranger: Lifecycle,
) -> None:
    take(stranger, stranger.health_reported(SERVING, False, 0.0, "no health service"))
    asked = list[float]()
    now = 0.0
    while now < 300.0:
        now += INTERVAL / 2
        step = take(stranger, stranger.doubts.look_at_calls(1, 0, now))
        if step.order is Order.CHECK:
            pause = now - (asked[-1] if asked else 0.0)
            cause = f"1 in flight and no answer for {pause:.1f} s"
            assert stranger.connection.checks.cause == cause
            asked.append(now)
            assert (
                take(stranger, stranger.doubts.check_answered(SERVING, now)) == Step()
            )
    pauses = [after - before for before, after in pairwise([0.0, *asked])]
    assert pauses[:4] == [PATIENCE, 2 * PATIENCE, 4 * PATIENCE, 8 * PATIENCE]
    assert max(pauses) == RAREST_CHECK
    assert stranger.state is State.READY
    stranger.doubts.look_at_calls(1, 1, now)  # an answer came
    assert stranger.doubts.look_at_calls(1, 1, now + PATIENCE).order is Order.CHECK


def quiet(life: Lifecycle) -> float:
    """A call that is not answered, nor is the CHECK: at the time of the LOOK."""
    take(life, life.health_reported(SERVING, False, 0.0, "no health service"))
    assert life.doubts.look_at_calls(1, 0, PATIENCE).order is Order.CHECK
    now = 2 * PATIENCE
    assert take(life, life.doubts.check_unanswered(now)) == Step()
    assert ring(life) == (now, Step(order=Order.LOOK))
    return now


def test_a_long_call_on_a_busy_server_changes_nothing(stranger: Lifecycle) -> None:
    now = quiet(stranger)
    step = stranger.look_unanswered("no answer", now + 5.0, is_there=True)
    assert take(stranger, step) == Step()
    assert stranger.state is State.READY


def test_a_connection_whose_calls_are_not_answered_is_replaced_by_one_that_answers(
    stranger: Lifecycle,
) -> None:
    now = quiet(stranger)
    step = take(stranger, stranger.look_answered(SERVING, now + 0.1))
    assert (step.state, step.order) == (State.CONNECTING, Order.REPLACE)


def test_who_was_heard_during_the_look_is_not_out_as_that_was_not_answered(
    stranger: Lifecycle,
) -> None:
    ring(stranger)
    take(stranger, stranger.doubts.check_unanswered(6.0))
    ring(stranger)
    take(stranger, stranger.health_reported(SERVING, False, 7.0))
    assert stranger.look_unanswered("cannot connect", 8.0) == Step()
    assert stranger.due_at() is None


def test_a_look_that_was_answered_without_a_connection_is_an_answer(
    stranger: Lifecycle,
) -> None:
    take(stranger, stranger.health_reported(SERVING, False, 0.0))
    away(stranger, 1.0)
    stranger.connection.has_answered = False
    take(stranger, stranger.look_answered(SERVING, 2.0))
    assert stranger.answers_checks()


def test_an_answer_during_the_look_ends_the_doubt(stranger: Lifecycle) -> None:
    now = quiet(stranger)
    assert stranger.doubts.look_at_calls(1, 1, now + 0.1) == Step()
    assert take(stranger, stranger.look_answered(SERVING, now + 0.2)) == Step()
    assert stranger.is_connected()


@pytest.mark.parametrize("has_others", [True, False])
def test_who_cannot_be_reached_either_way_gets_no_calls_if_others_do(
    stranger: Lifecycle, has_others: bool
) -> None:
    now = quiet(stranger)
    step = stranger.look_unanswered("cannot connect", now + 5.0, has_others=has_others)
    expected = State.REFUSING if has_others else State.READY
    take(stranger, step)
    assert stranger.state is expected
    back = stranger.doubts.check_answered(SERVING, now + 6.0)
    take(stranger, back)
    assert stranger.state is State.READY


def test_the_last_one_that_misses_deadlines_is_asked_and_gets_calls_meanwhile(
    stranger: Lifecycle,
) -> None:
    take(stranger, stranger.health_reported(SERVING, False, 0.0, "no health service"))
    for _ in range(MISSES - 1):
        assert stranger.doubts.deadline_missed(0, False, 1.0) == Step()
    assert stranger.doubts.deadline_missed(0, False, 1.0) == Step(order=Order.CHECK)
    assert stranger.doubts.deadline_missed(0, False, 1.0) == Step(), (
        "it is asked already"
    )
    assert take(stranger, stranger.doubts.check_unanswered(3.0)) == Step()
    assert ring(stranger)[1].order is Order.LOOK
    assert take(stranger, stranger.look_answered(SERVING, 3.1)).order is Order.REPLACE


def test_one_that_missed_deadlines_and_never_answers_checks_gets_calls_again(
    stranger: Lifecycle,
) -> None:
    """If no other that gets calls answers checks: then they tell nothing."""
    ring(stranger)
    take(stranger, stranger.doubts.check_unanswered(6.0))
    ring(stranger)
    take(stranger, stranger.look_unanswered("no answer", 11.0, True, has_others=False))
    step = miss(stranger, 20.0)
    assert (step.state, step.order) == (State.CONNECTING, Order.CHECK)
    take(stranger, stranger.doubts.check_unanswered(23.0))
    assert ring(stranger)[1].order is Order.LOOK
    step = stranger.look_unanswered("no answer", 28.0, is_there=True, has_others=False)
    assert take(stranger, step).state is State.READY


def test_one_that_answers_checks_and_missed_deadlines_must_answer_again(
    life: Lifecycle,
) -> None:
    miss(life, 1.0)
    take(life, life.doubts.check_unanswered(1.5))
    assert ring(life, reported_at=1.5)[1].order is Order.LOOK
    step = life.look_unanswered("no answer", 1.6, is_there=True, has_others=False)
    assert take(life, step).state is None
    assert life.state is State.CONNECTING


# --- what answers tell ---------------------------------------------------------


def ready_by_its_word() -> Lifecycle:
    life = Lifecycle(2.0, Random(1))
    life.connected(0.0, 2.0)
    apply(life, life.health_reported(TaskState.SERVING, False, 0.0))
    return life


def apply(life: Lifecycle, step: Step) -> None:
    if step.state is not None:
        life.state = step.state


def test_a_lame_duck_by_an_answer_alone_expires() -> None:
    life = ready_by_its_word()
    apply(life, life.lame_duck_in_trailer(10.0))
    assert repr(life) == "<lame duck, up>"
    until = 10.0 + TRAILER_INTERVALS * 2.0
    assert life.due_at() == until
    apply(life, life.tick(until, 0.0))
    assert repr(life) == "<ready, up>"


def test_a_lame_duck_by_its_health_stream_stays() -> None:
    life = ready_by_its_word()
    apply(life, life.lame_duck_in_trailer(10.0))
    apply(life, life.health_reported(TaskState.LAME_DUCK, False, 11.0))
    assert life.due_at() is None
    apply(life, life.tick(100.0, 0.0))
    assert life.state is State.LAME_DUCK


def test_what_an_answer_told_is_forgotten_with_its_connection() -> None:
    life = ready_by_its_word()
    apply(life, life.lame_duck_in_trailer(10.0))
    apply(life, life.connection_lost())
    assert life.due_at() is None


def test_what_an_answer_told_says_nothing_of_another_state() -> None:
    """A pick may find its connection gone, which is noted elsewhere."""
    life = ready_by_its_word()
    apply(life, life.lame_duck_in_trailer(10.0))
    life.state = State.CONNECTING
    assert life.tick(10.0 + TRAILER_INTERVALS * 2.0, 0.0) == Step()
    assert life.due_at() is None


def test_a_doubted_backend_may_say_that_it_leaves_but_not_that_it_serves(
    life: Lifecycle,
) -> None:
    miss(life, 1.0)
    assert take(life, life.health_reported(SERVING, True, 1.1)) == Step()
    assert take(life, life.health_reported(TaskState.LAME_DUCK, True, 1.2)).state is (
        State.LAME_DUCK
    )


def test_a_check_that_nobody_waits_for_changes_nothing(life: Lifecycle) -> None:
    due = life.due_at()
    assert life.doubts.check_unanswered(1.0) == Step()
    assert life.due_at() == due
    assert life.doubts.check_answered(TaskState.LAME_DUCK, 1.0) == Step()
    assert life.due_at() == due
    take(life, life.connection_lost())
    assert life.doubts.check_answered(SERVING, 1.0) == Step()
    other = Lifecycle(INTERVAL, Random(7))
    take(other, other.connected(0.0, INTERVAL))
    take(other, other.connection_lost())
    assert other.doubts.check_answered(SERVING, 1.0) == Step()
    assert not other.answers_checks()


def test_of_calls_without_an_answer_a_check_tells_that_it_lives_and_no_state(
    stranger: Lifecycle,
) -> None:
    take(stranger, stranger.doubts.check_answered(SERVING, 1.0))
    assert stranger.doubts.look_at_calls(1, 0, 1.0 + PATIENCE).order is Order.CHECK
    assert stranger.doubts.check_answered(TaskState.LAME_DUCK, 5.0) == Step()
    assert stranger.due_at() is None


def test_what_a_backend_answered_is_known_until_it_has_another_connection() -> None:
    life = Lifecycle(INTERVAL, Random(7))
    assert not life.answers_checks()
    assert not life.is_waking()
    assert not life.is_expected_back()
    take(life, life.connected(0.0, INTERVAL))
    take(life, life.health_reported(SERVING, True, 0.0))
    take(life, life.connection_lost())
    assert life.answers_checks()
    take(life, life.connected(1.0, INTERVAL))
    assert not life.answers_checks()


def test_who_was_to_leave_is_wanted_back_as_what_it_is(life: Lifecycle) -> None:
    for _ in range(2):
        take(life, life.resolver_said(True))
    assert life.state is State.LAME_DUCK
    assert take(life, life.resolver_said(False)).state is State.READY
    take(life, life.resolver_said(True))
    life.state = State.CONNECTING  # a pick found its connection gone
    assert life.resolver_said(False) == Step()


def away(life: Lifecycle, now: float) -> None:
    """It had no calls for long."""
    assert (
        take(life, life.became_idle(300.0, now, by_udp=False)).state is State.INACTIVE
    )


def test_what_comes_late_of_a_connection_that_was_given_up_says_nothing(
    life: Lifecycle,
) -> None:
    """An inactive backend is not woken, or refused, by the end of its last one."""
    away(life, 1.0)
    late = (
        life.connected(1.0, INTERVAL),
        life.connect_failed("connection refused"),
        life.connection_lost(),
        life.goaway_received(),
        life.health_reported(SERVING, True, 1.0),
        life.lame_duck_in_trailer(1.0),
        life.became_idle(300.0, 1.0, by_udp=False),
    )
    assert late == (Step(),) * len(late)
    assert life.state is State.INACTIVE
    assert life.is_away()


def test_what_is_heard_from_afar_is_of_inactive_backends_only(life: Lifecycle) -> None:
    assert life.udp_answered(TaskState.LAME_DUCK) == Step()
    assert life.wanted() == Step()
    due = life.due_at()
    assert life.udp_unanswered(1.0) == Step()
    assert life.due_at() == due, "no look beside a connection"
    take(life, life.connection_lost())
    for late in (
        life.udp_answered(SERVING),
        life.look_unanswered("nobody answers", 1.0),
        life.look_answered(SERVING, 1.0),
        life.wanted(),
    ):
        assert late == Step()
    assert life.state is State.CONNECTING
    assert take(life, life.connect_failed("refused")).state is State.REFUSING


def test_a_refusing_backend_stays_so_while_its_connections_are_lost(
    life: Lifecycle,
) -> None:
    """It is no news, and a call would be sent there in vain."""
    take(life, life.connection_lost())
    take(life, life.connect_failed("connection refused"))
    take(life, life.connected(1.0, INTERVAL))
    assert life.connection_lost() == Step()
    take(life, life.connected(1.0, INTERVAL))
    assert life.goaway_received() == Step()
    assert life.state is State.REFUSING


def test_a_refusing_backend_can_be_disconnected_and_stays_refusing(
    life: Lifecycle,
) -> None:
    take(life, life.connection_lost())
    assert life.became_idle(300.0, 1.0, by_udp=False) == Step()  # it is connecting
    take(life, life.connected(0.5, INTERVAL))
    assert life.became_idle(300.0, 1.0, by_udp=False) == Step()  # it has not spoken yet
    take(life, life.connection_lost())
    take(life, life.connect_failed("connection refused"))
    step = life.became_idle(300.0, 1.0, by_udp=False)
    assert step == Step(order=Order.DISCONNECT)
    assert life.is_away()


@pytest.mark.parametrize("was_lame_duck", [False, True])
def test_who_sent_goaway_is_expected_back_unless_it_leaves(
    life: Lifecycle, was_lame_duck: bool
) -> None:
    if was_lame_duck:
        take(life, life.health_reported(TaskState.LAME_DUCK, True, 1.0))
    assert take(life, life.goaway_received()).state is (
        None if was_lame_duck else State.LAME_DUCK
    )
    assert life.is_expected_back() == (not was_lame_duck)
    take(life, life.resolver_said(True))
    assert not life.is_expected_back()
    take(life, life.resolver_said(False))
    assert life.is_expected_back() == (not was_lame_duck)
    take(life, life.connected(1.0, INTERVAL))
    take(life, life.connection_lost())
    assert not life.is_expected_back()


def test_it_is_waking_from_a_call_that_wants_it_until_it_answers(
    life: Lifecycle,
) -> None:
    assert life.answers_checks()
    assert not life.is_waking()
    take(life, life.connection_lost())
    assert not life.is_waking()  # it connects, and nobody wanted it
    take(life, life.connected(0.5, INTERVAL))
    take(life, life.health_reported(SERVING, True, 0.5))
    away(life, 1.0)
    assert not life.is_waking()
    step = take(life, life.wanted())
    assert (step.state, step.order) == (State.CONNECTING, Order.CONNECT)
    assert life.is_waking()
    take(life, life.connect_failed("connection refused"))
    assert not life.is_waking()


def test_a_lame_duck_of_an_answer_is_no_news_of_one_that_is_not_ready(
    life: Lifecycle,
) -> None:
    take(life, life.health_reported(TaskState.STARTING, True, 1.0))
    assert life.lame_duck_in_trailer(1.0) == Step()
    assert life.state is State.STARTING


def test_the_reason_of_a_state_is_the_one_that_is_given(life: Lifecycle) -> None:
    assert (
        life.health_reported(TaskState.STARTING, True, 1.0, "warming up").reason
        == "warming up"
    )
    assert "starting" in life.health_reported(TaskState.STARTING, True, 1.0).reason
    away(life, 2.0)
    assert (
        life.look_answered(TaskState.STARTING, 2.0, "warming up").reason == "warming up"
    )


def test_a_stream_without_a_word_has_a_new_connection_asked_at_once() -> None:
    """If nobody else may answer, and once: then the checks have pauses of their own."""
    life = Lifecycle(INTERVAL, Random(7))
    assert life.doubts.stream_ended_unheard(0.0, may_others_answer=False) == Step()
    assert life.due_at() is None
    take(life, life.connected(1.0, INTERVAL))
    life.doubts.stream_ended_unheard(1.5, may_others_answer=True)
    assert life.due_at() == 1.0 + INTERVAL
    life.doubts.stream_ended_unheard(1.5, may_others_answer=False)
    assert life.due_at() == 1.5
    assert life.tick(1.5, 0.0).order is Order.CHECK
    life.doubts.check_unanswered(1.5)
    assert life.tick(1.5, 0.0).order is Order.LOOK
    life.doubts.stream_ended_unheard(2.0, may_others_answer=False)
    assert life.due_at() == 1.5 + INTERVAL


def test_a_stream_without_a_word_has_it_asked_once_more_after_the_check_under_way(
    stranger: Lifecycle,
) -> None:
    due, step = ring(stranger)
    assert step.order is Order.CHECK
    assert stranger.due_at() is None
    stranger.doubts.stream_ended_unheard(due + MOMENT, may_others_answer=False)
    assert stranger.due_at() == due + MOMENT


def test_one_that_was_heard_is_not_asked_for_that(life: Lifecycle) -> None:
    due = life.due_at()
    life.doubts.stream_ended_unheard(1.0, may_others_answer=False)
    assert life.due_at() == due
