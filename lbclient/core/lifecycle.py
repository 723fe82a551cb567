"""The states of one backend, and what makes it go from one to the next.

It decides and does nothing: told what happened and when, it returns the state that
follows, with the reason, and the one thing that is to be done. It never writes
`state`: that is for the one door through which all changes go (`Balancer.observe`),
and others go through it too, a pick that finds the connection gone, a response that
tells of a lame duck. So nothing here relies on having made the last change itself.

    CONNECTING --its word--> STARTING, READY, LAME_DUCK --lost, silent--> CONNECTING
    READY --no calls--> INACTIVE --wanted--> CONNECTING;  cannot connect: REFUSING

A connection that says nothing may be dead, or its server may be busy. Only servers of
ours owe a report every so often. Every other connection is asked (CHECK) when it has
said nothing since it was made, when calls on it miss their deadlines, and when calls on
it are not answered. A CHECK without an answer does not tell a dead connection from a
busy server, so a second connection is asked next (LOOK). An answer there proves that
the first connection is not worth waiting for, and it is replaced (REPLACE). No answer
there, but a connection that lives, is a busy server: nothing is replaced.

SRE book, ch. 20: the states of a task, and health checks of inactive connections.
"""

from enum import Enum
from math import inf
from random import Random
from typing import NamedTuple

from lbclient.core.call_answers import MISSES, CallAnswers
from lbclient.core.doubt import Checks, Doubt
from lbclient.core.looks import Looks
from lbclient.core.model import State, TaskState
from lbclient.core.silence import Silence

# Health intervals until a state that an answer told of expires, if no health report or
# check says so, too: behind a proxy the answer was that of one task of several.
TRAILER_INTERVALS = 2

STATE_OF_TASK = {
    TaskState.STARTING: State.STARTING,
    TaskState.SERVING: State.READY,
    TaskState.LAME_DUCK: State.LAME_DUCK,
}

BUSY = (
    "a health check on a second connection timed out too; pings are acknowledged, so "
    "the server is busy"
)
NO_CHECKS = (
    "connected, but health checks time out; used all the same, as no other backend "
    "answers them"
)

WELL = frozenset({State.READY, State.INACTIVE})  # but for the resolver's word


class Link(Enum):
    """What there is of a connection."""

    DOWN = "down"  # none, and one is being made
    UP = "up"
    AWAY = "away"  # none is wanted: the backend is watched from afar


class Order(Enum):
    """What is to be done, by whoever does the I/O."""

    CONNECT = "connect"  # `link` is not AWAY any more
    DISCONNECT = "disconnect"  # it is now
    REDIAL = "redial"  # give up a connection that may be dead for a new one
    # The same, where a second connection was answered: the first one may just be full.
    REPLACE = "replace"
    CHECK = "check"  # ask how it is, over the connection; then `checked`
    # Ask how it is, over a new connection that is then closed; then `seen` or
    # `not_seen`. Also while there is a connection.
    LOOK = "look"


class Step(NamedTuple):
    """`state` is never the one that the backend is in; None: it stays, perhaps for
    another `reason`."""

    state: State | None = None
    reason: str = ""
    order: Order | None = None


NOTHING = Step()


class Lifecycle:
    """Owned by a backend. `interval` is that of its health reports, for silence and
    for checks."""

    def __init__(self, interval: float, rng: Random) -> None:
        self.state = State.CONNECTING
        self.link = Link.DOWN
        self._silence = Silence(interval)
        self._checks = Checks(interval)
        self._looks = Looks(rng)
        self._calls = CallAnswers()
        self._usual_interval = interval
        self._expires_at: float | None = None  # what an answer told
        self._has_answered = False  # one, on this connection or the last one
        self._trusted_until = -inf
        self._is_wanted = False
        self._sent_goaway = False
        self._is_leaving = False
        self._else = State.CONNECTING  # what it would be if it were not

    @property
    def interval(self) -> float:
        """How long a backend of ours may be silent."""
        return self._silence.interval

    def due_at(self) -> float | None:
        """When `tick` is wanted; None: not before something happens."""
        times = (
            self._silence.due_at(),
            self._checks.due_at,
            self._looks.due_at,
            self._expires_at,
        )
        return min((at for at in times if at is not None), default=None)

    def is_connected(self) -> bool:
        return self.link is Link.UP

    def is_away(self) -> bool:
        return self.link is Link.AWAY

    def is_waking(self) -> bool:
        """A call wanted it, and it has not failed yet."""
        return self._is_wanted and self.state is State.CONNECTING

    def answers_checks(self) -> bool:
        """It answered a health question, on this connection or the last one."""
        return self._has_answered

    def is_expected_back(self) -> bool:
        """It left a connection by GOAWAY, and has said nothing on a new one."""
        return self._sent_goaway

    # --- the resolver's word --------------------------------------------------

    def leaves(self, is_leaving: bool) -> Step:
        """It is about to, or is not any more. The resolver knows that before the task
        does, so the task's own word that it serves counts no more."""
        if is_leaving is self._is_leaving:
            return NOTHING
        self._is_leaving = is_leaving
        if is_leaving:
            return self._enter(self.state, self.state.value)
        if self.state is not State.LAME_DUCK:
            return NOTHING
        return self._enter(self._else, "the resolver wants it back")

    # --- the connection -------------------------------------------------------

    def connected(self, now: float, patience: float) -> Step:
        """Its word is to come. It is a new task, perhaps: no old doubt remains.

        `patience` is how long one answer may take, by what the connecting took.
        """
        if self.link is Link.AWAY:
            return NOTHING
        self._forget()
        self.link = Link.UP
        self._has_answered = False
        self._calls.heard(now)
        self._checks.connected(now, patience)
        self._looks.restart()
        return NOTHING

    def cannot_connect(self, why: str) -> Step:
        if self.link is not Link.DOWN:
            return NOTHING
        self._is_wanted = self._sent_goaway = False
        return self._enter(State.REFUSING, why)

    def lost(self) -> Step:
        """The connection, and what was sent on it."""
        if self.link is Link.AWAY:
            return NOTHING
        self._forget()
        self.link = Link.DOWN
        self._sent_goaway = False
        if self.state is State.REFUSING:
            return NOTHING
        return self._enter(State.CONNECTING, "connection lost")

    def sent_goaway(self) -> Step:
        """It wants no new calls on this connection, and ends those that it has."""
        if self.link is Link.AWAY:
            return NOTHING
        self._forget()
        self.link = Link.DOWN
        if self.state is State.REFUSING:
            return NOTHING
        self._sent_goaway = self.state is not State.LAME_DUCK
        return self._enter(State.LAME_DUCK, "it sent GOAWAY")

    # --- its word, over the connection ----------------------------------------

    def heard(
        self, state: TaskState, has_report: bool, now: float, reason: str = ""
    ) -> Step:
        """By a stream of health reports, which are silent only if they never had a
        load: others than ours speak when something changes."""
        if self.link is not Link.UP:
            return NOTHING
        self._has_answered = True
        self._is_wanted = self._sent_goaway = False
        self._expires_at = None
        self._silence.heard(has_report, now)
        if self._checks.doubt is Doubt.EXCLUDED:
            if state is TaskState.SERVING:
                return NOTHING  # it said so all the while; the check will tell
        else:
            self._believe(now)
        return self._enter(STATE_OF_TASK[state], reason or _it_says(state))

    def told_by_answer(self, now: float) -> Step:
        """An answer to a call says that its task is a lame duck."""
        if self.state is not State.READY or self.link is not Link.UP:
            return NOTHING
        self._expires_at = now + TRAILER_INTERVALS * self._usual_interval
        return self._enter(State.LAME_DUCK, "it says lame duck")

    def owes_nothing(self) -> None:
        """Its stream of reports ended in order, and another one is to be opened."""
        self._silence.owes_nothing()

    def expect_every(self, interval: float, now: float) -> None:
        """It was asked for reports at another pace: silence is judged anew."""
        self._silence.expect_every(interval, now)

    def tick(self, now: float, reported_at: float) -> Step:
        """What time alone brings about; `reported_at` is when it last told its load."""
        if self._silence.is_due(now):
            silent = self._silence.judge(now, reported_at)
            if silent is None:
                return NOTHING
            # No calls before its next word.
            return self._enter(State.CONNECTING, f"silent for {silent:.1f} s")
        if self._silence.is_too_long(now):
            self._forget()
            self.link = Link.DOWN
            return self._enter(State.CONNECTING, "dialling again", Order.REDIAL)
        if self._expires_at is not None and now >= self._expires_at:
            self._expires_at = None
            if self.state is not State.LAME_DUCK:
                return NOTHING
            return self._enter(
                State.READY, "lame duck state from a response trailer expired"
            )
        if self._checks.take_due(now):
            return Step(order=Order.CHECK)
        if self._looks.take_due(now):
            return Step(order=Order.LOOK)
        return NOTHING

    # --- doubt ----------------------------------------------------------------

    def missed_deadline(self, served: int, has_others: bool, now: float) -> Step:
        """A call ended so; `served` counts all that it ever served. Who has no others
        to send calls to is as well off with this one, which is asked all the same."""
        misses = self._calls.missed(served)
        if (
            misses < MISSES
            or self.state is not State.READY
            or self.link is not Link.UP
            or now < self._trusted_until
        ):
            return NOTHING
        cause = f"{misses} deadlines missed in a row"
        if has_others:
            self._calls.forgive()
            self._ask(Doubt.EXCLUDED, cause)
            return self._enter(State.CONNECTING, cause, Order.CHECK)
        if self._checks.doubt is not Doubt.NONE:
            return NOTHING
        self._ask(Doubt.CALLS_UNANSWERED, cause)
        return Step(order=Order.CHECK)

    def look_at_calls(self, in_flight: int, answered: int, now: float) -> Step:
        """Now and then: how many calls are in flight, and how many it ever answered.

        Asks where calls wait and the connection says nothing. Not where reports are
        owed, whose silence is judged.
        """
        calls, checks = self._calls, self._checks
        if not calls.are_owed(in_flight, answered, now):
            checks.calls_answered()
            if checks.doubt is Doubt.CALLS_UNANSWERED:
                self._believe(now)
            return NOTHING
        if (
            checks.doubt is not Doubt.NONE
            or self.link is not Link.UP
            or self._silence.is_judged()
            or not checks.is_late(calls.owed_since, now)
        ):
            return NOTHING
        quiet = now - calls.owed_since
        self._ask(
            Doubt.CALLS_UNANSWERED,
            f"{in_flight} in flight and no answer for {quiet:.1f} s",
        )
        return Step(order=Order.CHECK)

    def checked(self, state: TaskState | None, now: float, reason: str = "") -> Step:
        """The answer to a CHECK; None: there was none. `reason` as in `heard`."""
        checks, doubt = self._checks, self._checks.doubt
        if self.link is not Link.UP:
            return NOTHING
        if state is None:
            return self._not_answered(now)
        self._has_answered = True
        self._trusted_until = now + self._usual_interval
        if doubt is Doubt.NONE:
            return NOTHING
        if doubt is Doubt.NEVER_HEARD and state is not TaskState.SERVING:
            checks.answered_badly(now)
            self._looks.put_off()
            return self._enter(
                STATE_OF_TASK[state], f"asked, {reason or _it_says(state)}"
            )
        if doubt is Doubt.CALLS_UNANSWERED:
            checks.slow_down()
        self._believe(now)
        self._silence.answered(now)
        if doubt is Doubt.CALLS_UNANSWERED:
            return NOTHING  # it lives; how it is it tells by its health stream
        return self._enter(STATE_OF_TASK[state], f"asked, {reason or _it_says(state)}")

    def _not_answered(self, now: float) -> Step:
        """A CHECK was not: it comes again, and a LOOK before that."""
        if self._checks.doubt is Doubt.NONE:
            return NOTHING
        self._checks.not_answered(now)
        self._looks.at_once(now)
        return self._tell(f"{self._checks.cause}; a health check is not answered")

    def _looked_beside(
        self, why: str, now: float, is_there: bool, has_others: bool
    ) -> Step:
        """A LOOK beside the connection had an answer, or not: '', or `why` not."""
        began_at, checks = self._looks.end(), self._checks
        if began_at is None or not checks.is_unanswered:
            return NOTHING  # it was heard meanwhile
        cause, doubt = checks.cause, checks.doubt
        if not why:
            self._forget()
            self.link = Link.DOWN
            reason = f"{cause}; a second connection is answered"
            step = self._enter(State.CONNECTING, reason, Order.REPLACE)
            return step._replace(reason=reason)
        self._looks.again(began_at, now, is_there)
        if is_there:
            if doubt is Doubt.CALLS_UNANSWERED or has_others or self._has_answered:
                return self._tell(f"{cause}; {BUSY}")
            # A server that answers calls, perhaps, but never a health check.
            self._believe(now)
            return self._enter(State.READY, NO_CHECKS)
        if self.state is State.READY and not has_others:
            return NOTHING
        if doubt is Doubt.CALLS_UNANSWERED:
            checks.begin(Doubt.EXCLUDED, cause)
        self._is_wanted = self._sent_goaway = False
        return self._enter(State.REFUSING, f"{cause}; {why}")

    def _ask(self, doubt: Doubt, cause: str) -> None:
        self._checks.begin(doubt, cause)
        self._looks.restart()

    def _believe(self, now: float) -> None:
        """It was heard: there is nothing to ask."""
        self._is_wanted = self._sent_goaway = False
        self._checks.end()
        self._looks.put_off()
        self._calls.heard(now)

    def _tell(self, reason: str) -> Step:
        """It is still out, for this reason."""
        return Step(reason=reason) if self.state is State.CONNECTING else NOTHING

    # --- without a connection -------------------------------------------------

    def idle(self, seconds: float, now: float, by_udp: bool) -> Step:
        """It had no calls for so long. `by_udp`: there is somebody to ask there."""
        can_go = self.state is State.READY and self.link is Link.UP
        if not can_go and (self.state is not State.REFUSING or self.link is Link.AWAY):
            return NOTHING
        self._forget()
        self.link = Link.AWAY
        self._looks.restart()
        if not by_udp:
            self._looks.later(now)
        if self.state is State.REFUSING:
            return Step(order=Order.DISCONNECT)
        reason = f"no calls for {seconds:.0f} s"
        return self._enter(State.INACTIVE, reason, Order.DISCONNECT)

    def wanted(self) -> Step:
        """By a call. What it was thought to be does not count any more."""
        if self.link is not Link.AWAY:
            return NOTHING
        self._forget()
        self.link = Link.DOWN
        self._is_wanted = True
        return self._enter(State.CONNECTING, "wanted for calls", Order.CONNECT)

    def told(self, state: TaskState) -> Step:
        """By UDP, which works: no looks are wanted."""
        if self.link is not Link.AWAY:
            return NOTHING
        self._has_answered = True
        self._looks.put_off()
        self._looks.restart()
        return self._enter(_from_afar(state), f"{_it_says(state)} by UDP")

    def not_told(self, now: float) -> Step:
        """UDP is blocked, or it is gone. A look then, if none is due: soon, but not
        all clients at once."""
        if self.link is Link.AWAY:
            self._looks.soon(now)
        return NOTHING

    def seen(self, state: TaskState, now: float, reason: str = "") -> Step:
        """By a LOOK. `reason` as in `heard`."""
        if self.link is Link.UP:
            return self._looked_beside("", now, is_there=True, has_others=True)
        if self.link is not Link.AWAY:
            return NOTHING
        self._has_answered = True
        self._looks.restart()
        self._looks.later(now)
        return self._enter(_from_afar(state), reason or _it_says(state))

    def not_seen(
        self, why: str, now: float, is_there: bool = False, has_others: bool = True
    ) -> Step:
        """By a LOOK: nobody answers. `is_there`: but the connection was made, and the
        other side acknowledges pings. `has_others`: others get calls, too; where
        `is_there`, others that answer health checks."""
        if self.link is Link.UP:
            return self._looked_beside(why, now, is_there, has_others)
        if self.link is not Link.AWAY:
            return NOTHING
        step = self._enter(State.REFUSING, why)
        self._looks.later(now, is_gone=True)
        return step

    # --------------------------------------------------------------------------

    def _enter(self, state: State, reason: str, order: Order | None = None) -> Step:
        self._else = state
        if self._is_leaving and state in WELL:
            state, reason = State.LAME_DUCK, "the resolver says that it leaves"
        if state is self.state:
            return Step(order=order)
        return Step(state, reason, order)

    def _forget(self) -> None:
        """What was known of a connection, and what was to be done about it."""
        self._silence.clear()
        self._checks.clear()
        self._looks.clear()
        self._calls.forgive()
        self._expires_at = None

    def __repr__(self) -> str:
        return f"<{self.state.value}, {self.link.value}>"


def _it_says(state: TaskState) -> str:
    return f"it says {state.name.lower().replace('_', ' ')}"


def _from_afar(state: TaskState) -> State:
    return State.INACTIVE if state is TaskState.SERVING else STATE_OF_TASK[state]
