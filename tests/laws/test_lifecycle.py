"""Whatever happens to a backend in whatever order, its states keep their promises."""

from copy import deepcopy
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lbclient.core.backends.call_answers import MISSES
from lbclient.core.backends.connection_state import Link, Order, Step
from lbclient.core.backends.lifecycle import Lifecycle
from lbclient.core.backends.looks import FIRST_LOOK, LOOK_PERIOD, LOOK_SPREAD
from lbclient.core.backends.silence import JITTER, REDIAL_AFTER, UNREAD
from lbclient.core.model import State, TaskState

INTERVAL = 2.0
READY = State.READY
PATIENCE = 3.0  # for an answer: the connecting took a second
SERVING = TaskState.SERVING
TASK_STATES = st.sampled_from(TaskState)
SECONDS = st.floats(0.0, 400.0)


class LifecycleMachine(RuleBasedStateMachine):
    """A backend's I/O as a model: what is connected, asked and looked at.

    It does what it is ordered, and checks that the orders make sense.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.life = Lifecycle(INTERVAL, Random(7))
        self.is_connected = False
        self.speaks = False  # with a load, last
        self.reported_at = 0.0
        self.asked_at = 0.0  # for another pace
        self.stood_at = 0.0
        self.is_asked_by_udp = False
        self.looking = self.checking = False
        self.was_heard = False  # on this connection, or is taken to be well
        self.has_answered = False  # on this connection, by a word or an answer
        self.is_unanswered = False  # the last question, on this connection
        self.served = 0
        self.vouched_at = -INTERVAL
        self.is_leaving = False
        self.said: TaskState | None = None  # on this connection, last

    def take(self, step: Step, says: TaskState | None = None) -> None:
        """`says` is the task's own word, if that is what happened."""
        if step.order is Order.CHECK:
            assert self.is_connected
            self.checking = True
        elif step.order is Order.LOOK:
            assert not self.looking
            assert self.life.is_away() or self.is_unanswered
            self.looking = True
        elif step.order is not None:
            is_away = step.order is Order.DISCONNECT
            assert self.life.link is (Link.AWAY if is_away else Link.DOWN)
            self.is_connected = self.speaks = self.looking = self.checking = False
            self.is_unanswered = False
        if step.state is None:
            return
        assert step.reason
        assert step.state is not self.life.state
        if step.state is State.READY:
            assert says is SERVING
        self.life.state = step.state

    # --- what happens ---------------------------------------------------------

    @rule(seconds=SECONDS)
    def wait(self, seconds: float) -> None:
        """The timer rings when it is due."""
        until = self.now + seconds
        for _ in range(1000):
            due = self.life.due_at()
            if due is None or due > until:
                break
            self.now = max(self.now, due)
            self.take(self.life.tick(self.now, self.reported_at))
        else:
            pytest.fail("it rings for ever")
        self.now = until
        if self.life.state is State.READY and self.speaks:
            last = max(self.reported_at, self.asked_at)
            silent_at = last + self.life.silence.interval * (1 + UNREAD)
            grace = (
                self.stood_at + self.life.silence.interval / 2
            )  # its word may lie unread
            assert self.now < max(silent_at, grace) + 1e-9

    @rule(seconds=SECONDS)
    def stand_still(self, seconds: float) -> None:
        """The process was stopped: the timer rings late."""
        self.now = self.stood_at = self.now + seconds
        self.take(self.life.tick(self.now, self.reported_at))

    @precondition(lambda self: self.life.link is Link.DOWN)
    @rule()
    def connect(self) -> None:
        self.is_connected, self.speaks, self.checking = True, False, False
        self.said = None
        self.looking = self.was_heard = self.is_unanswered = False
        self.has_answered = False
        self.take(self.life.connected(self.now, PATIENCE))

    @precondition(lambda self: self.life.link is Link.DOWN)
    @rule()
    def fail_to_connect(self) -> None:
        self.take(self.life.connect_failed("refused"))
        assert self.life.state is State.REFUSING

    @precondition(lambda self: self.is_connected)
    @rule(is_goaway=st.booleans())
    def lose(self, is_goaway: bool) -> None:
        self.is_connected = self.checking = self.speaks = self.looking = False
        self.is_unanswered = False
        self.take(
            self.life.goaway_received() if is_goaway else self.life.connection_lost()
        )

    @rule(is_leaving=st.booleans())
    def the_resolver_tells_whether_it_leaves(self, is_leaving: bool) -> None:
        self.is_leaving = is_leaving
        self.take(self.life.resolver_said(is_leaving), self.said)

    @precondition(lambda self: self.is_connected)
    @rule(state=TASK_STATES, has_report=st.booleans())
    def hear(self, state: TaskState, has_report: bool) -> None:
        self.speaks, self.said, self.was_heard = has_report, state, True
        self.has_answered = True
        self.take(self.life.health_reported(state, has_report, self.now), state)
        if has_report:
            self.reported_at = self.now

    @precondition(lambda self: self.is_connected)
    @rule(interval=st.sampled_from([INTERVAL, 8.0, 120.0]))
    def ask_at_another_pace(self, interval: float) -> None:
        self.asked_at = self.now
        self.life.silence.expect_every(interval, self.now)

    @precondition(lambda self: self.life.state is State.READY)
    @rule(state=st.sampled_from([State.LAME_DUCK, State.CONNECTING]))
    def others_find_out(self, state: State) -> None:
        """Through the door: trailers tell of a lame duck, a pick finds it lost."""
        self.life.state = state

    @precondition(lambda self: self.is_asked_by_udp)
    @rule(state=st.none() | TASK_STATES)
    def hear_by_udp(self, state: TaskState | None) -> None:
        if state is None:
            self.take(self.life.udp_unanswered(self.now))
            self.is_asked_by_udp = False
        else:
            self.take(self.life.udp_answered(state))

    @precondition(lambda self: self.looking)
    @rule(state=st.none() | TASK_STATES, is_there=st.booleans(), others=st.booleans())
    def end_look(self, state: TaskState | None, is_there: bool, others: bool) -> None:
        self.looking = False
        is_away, was = self.life.is_away(), self.life.state
        if state is not None:
            step = self.life.look_answered(state, self.now)
            if not is_away and step.order is Order.REPLACE:
                assert self.is_unanswered, "it gave up a connection that answers"
            self.take(step)
        elif is_away:
            self.take(self.life.look_unanswered("refused", self.now))
            assert self.life.state is State.REFUSING
        else:
            step = self.life.look_unanswered("refused", self.now, is_there, others)
            assert step.order is None, "a new connection is no better"
            if is_there and not others and not self.has_answered:
                # Who never answers a question may yet answer calls.
                self.take(step, SERVING)
                if self.life.state is READY or self.is_leaving:
                    self.said, self.was_heard = SERVING, True
                return
            self.take(step)
            if is_there or not others:
                assert self.life.state in (was, State.REFUSING)
                assert was is not State.READY or self.life.state is State.READY

    @precondition(lambda self: self.checking)
    @rule(state=st.none() | TASK_STATES)
    def end_check(self, state: TaskState | None) -> None:
        self.checking = False
        self.is_unanswered = state is None
        if state is not None:
            self.vouched_at, self.was_heard = self.now, True
            self.has_answered = True
        doubts, now = self.life.doubts, self.now
        step = (
            doubts.check_unanswered(now)
            if state is None
            else doubts.check_answered(state, now)
        )
        if state is SERVING or step.state is not None:
            self.said = state  # else its health stream has spoken meanwhile
        self.take(step, state)

    @rule(in_flight=st.integers(0, 2), is_answered=st.booleans())
    def look_at_calls(self, in_flight: int, is_answered: bool) -> None:
        """Calls that are not answered take no backend out: it may be busy."""
        self.served += is_answered
        before = self.life.state
        self.take(self.life.doubts.look_at_calls(in_flight, self.served, self.now))
        assert self.life.state is before

    @rule(by_udp=st.booleans())
    def rest(self, by_udp: bool) -> None:
        was_away = self.life.is_away()
        self.take(self.life.became_idle(300.0, self.now, by_udp))
        if not was_away:
            self.is_asked_by_udp = by_udp and self.life.is_away()

    @rule()
    def want(self) -> None:
        self.take(self.life.wanted())
        self.is_asked_by_udp = False
        assert not self.life.is_away()

    @rule(is_served=st.booleans(), has_others=st.booleans())
    def miss_deadlines(self, is_served: bool, has_others: bool) -> None:
        was_ready = self.life.state is State.READY
        self.served += is_served
        for _ in range(MISSES - 1):
            self.take(self.life.doubts.deadline_missed(self.served, False, self.now))
        self.take(self.life.doubts.deadline_missed(self.served, has_others, self.now))
        is_early = self.now < self.vouched_at + INTERVAL
        stays = was_ready and (not has_others or is_early)
        assert (self.life.state is State.READY) is stays

    # --- what holds -----------------------------------------------------------

    @invariant()
    def only_who_is_connected_is_ready(self) -> None:
        assert self.life.is_connected() is self.is_connected
        if self.life.state is State.READY:
            assert self.is_connected

    @invariant()
    def who_leaves_gets_no_calls_while_others_do(self) -> None:
        if self.is_leaving:
            assert self.life.state not in (State.READY, State.INACTIVE)

    @invariant()
    def an_inactive_one_has_no_connection(self) -> None:
        if self.life.state is State.INACTIVE:
            assert self.life.is_away()
            assert not self.is_connected

    @invariant()
    def the_silence_of_who_speaks_is_judged(self) -> None:
        if self.life.state is State.READY and self.speaks:
            assert self.life.due_at() is not None

    @invariant()
    def who_has_said_nothing_since_it_was_connected_is_asked(self) -> None:
        is_asked = self.checking or self.looking or self.life.due_at() is not None
        if self.is_connected and not self.was_heard and self.life.state is not READY:
            assert is_asked

    @invariant()
    def who_is_away_is_looked_at_seldom_but_not_forgotten(self) -> None:
        due = self.life.due_at()
        if self.life.is_away() and not self.looking:
            assert due is not None or self.is_asked_by_udp
        if self.life.is_away() and due is not None:
            assert due <= self.now + LOOK_PERIOD * (1 + LOOK_SPREAD)

    @invariant()
    def there_is_a_way_back_to_ready(self) -> None:
        """A new connection that says it serves, from wherever it is."""
        life = deepcopy(self.life)
        steps = [life.resolver_said(False)]
        steps += [life.wanted()] if life.is_away() else [life.connection_lost()]
        steps += [
            life.connected(self.now, PATIENCE),
            life.health_reported(SERVING, True, self.now),
        ]
        assert steps[-1].state is State.READY or life.state is State.READY


TestLifecycleMachine = LifecycleMachine.TestCase


def taking(life: Lifecycle, step: Step) -> Step:
    life.state = life.state if step.state is None else step.state
    return step


def ready(seed: int = 7) -> Lifecycle:
    """One of ours, that said so at 0."""
    life = Lifecycle(INTERVAL, Random(seed))
    taking(life, life.connected(0.0, PATIENCE))
    taking(life, life.health_reported(SERVING, True, 0.0))
    assert life.state is State.READY
    return life


def test_one_that_stays_silent_is_given_up_for_a_new_connection() -> None:
    life = ready()
    assert life.due_at() == INTERVAL
    assert taking(life, life.tick(INTERVAL, 0.0)) == Step()
    later = INTERVAL * UNREAD
    assert life.due_at() == INTERVAL + later
    assert taking(life, life.tick(INTERVAL + later, 0.0)).state is State.CONNECTING
    due = life.due_at()
    assert due is not None
    pause = due - INTERVAL - later
    assert pause == pytest.approx(REDIAL_AFTER * INTERVAL, rel=JITTER)
    assert taking(life, life.tick(due, 0.0)).order is Order.REDIAL
    assert life.link is Link.DOWN


def test_a_lame_duck_that_went_away_is_ready_again_by_its_own_word_alone() -> None:
    life = ready()
    step = taking(life, life.goaway_received())
    assert (step.state, step.reason) == (State.LAME_DUCK, "it sent GOAWAY")
    assert life.health_reported(SERVING, True, 1.0).state is None, (
        "on the old connection"
    )
    assert taking(life, life.connected(0.0, PATIENCE)).state is None
    assert taking(life, life.health_reported(SERVING, True, 1.0)).state is State.READY


@given(seed=st.integers(0, 1000))
def test_one_that_is_gone_is_looked_at_less_and_less_often(seed: int) -> None:
    life = ready(seed)
    taking(life, life.became_idle(300.0, 0.0, by_udp=True))
    assert life.due_at() is None
    now, period = 0.0, FIRST_LOOK
    taking(life, life.udp_unanswered(now))
    due = life.due_at()
    assert due is not None
    assert due <= FIRST_LOOK
    for _ in range(10):
        now = due
        assert taking(life, life.tick(now, 0.0)).order is Order.LOOK
        taking(life, life.look_unanswered("refused", now))
        due = life.due_at()
        assert due is not None
        assert period <= due - now <= period * (1 + LOOK_SPREAD)
        period = min(2 * period, LOOK_PERIOD)
    assert period == LOOK_PERIOD
    step = taking(life, life.udp_answered(SERVING))
    assert step.state is State.INACTIVE
    assert life.due_at() is None


def test_what_is_served_in_between_ends_a_row_of_missed_deadlines() -> None:
    life = ready()
    for served in range(3):
        for _ in range(MISSES - 1):
            assert life.doubts.deadline_missed(served, True, 0.0) == Step()
    step = life.doubts.deadline_missed(2, True, 0.0)
    assert step.state is State.CONNECTING
    assert step.reason == f"{MISSES} deadlines missed in a row"


def test_who_is_doubted_is_not_believed_until_it_answers() -> None:
    life = ready()
    for _ in range(MISSES):
        taking(life, life.doubts.deadline_missed(0, True, 0.0))
    assert life.state is State.CONNECTING
    assert life.health_reported(SERVING, True, 0.5) == Step()
    assert taking(life, life.doubts.check_unanswered(1.0)).state is None
    assert taking(life, life.tick(1.0, 0.5)).order is Order.LOOK
    assert (
        taking(life, life.look_unanswered("no answer", 1.5, is_there=True)).state
        is None
    )
    assert taking(life, life.tick(1.0 + INTERVAL, 2.9)).order is None  # it spoke
    due = life.due_at()
    assert due is not None
    assert taking(life, life.tick(due, due)).order is Order.CHECK
    assert taking(life, life.doubts.check_answered(SERVING, due)).state is State.READY


def test_who_leaves_by_the_resolver_s_word_is_a_lame_duck_whatever_it_says() -> None:
    life = ready()
    step = taking(life, life.resolver_said(True))
    assert step == Step(State.LAME_DUCK, "the resolver says that it leaves")
    assert taking(life, life.health_reported(SERVING, True, 1.0)) == Step()
    assert taking(life, life.resolver_said(False)).state is State.READY


def test_a_lame_duck_by_its_own_word_stays_one_when_the_resolver_wants_it() -> None:
    life = ready()
    taking(life, life.resolver_said(True))
    taking(life, life.health_reported(TaskState.LAME_DUCK, True, 1.0))
    assert taking(life, life.resolver_said(False)) == Step()
    assert life.state is State.LAME_DUCK


def test_one_that_leaves_is_taken_to_be_well_though_it_never_answers() -> None:
    """A way that few examples go: nothing is to be asked of it, and when the resolver
    wants it back it is ready."""
    machine = LifecycleMachine()
    machine.connect()
    machine.stand_still(PATIENCE)
    machine.the_resolver_tells_whether_it_leaves(True)
    machine.end_check(None)
    machine.stand_still(0.0)
    machine.end_look(None, True, False)
    machine.who_has_said_nothing_since_it_was_connected_is_asked()
    machine.the_resolver_tells_whether_it_leaves(False)
    assert machine.life.state is READY
