"""The states of one backend, and what makes it go from one to the next.

It decides and does no I/O: told what happened and when, it returns a `Step`, with the
state that follows, the reason, and the I/O to do. It never writes `state`: all changes
go through `Backends.observe`. Others change the state there, too: a pick that finds the
connection gone, a response that tells of a lame duck. So nothing here relies on having
made the last change itself.

    CONNECTING --its word--> STARTING, READY, LAME_DUCK --lost, silent--> CONNECTING
    READY --no calls--> INACTIVE --wanted--> CONNECTING;  cannot connect: REFUSING

Why a connection is doubted, and what follows from that, is decided in `trust`.

SRE book, ch. 20: the states of a task, and health checks of inactive connections.
"""

from random import Random

from lbclient.core.backends.connection_state import (
    NOTHING,
    STATE_OF_TASK,
    ConnectionState,
    Link,
    Order,
    Step,
    it_says,
)
from lbclient.core.backends.doubt import Doubt
from lbclient.core.backends.trust import Trust
from lbclient.core.model import State, TaskState

# Health intervals until a state that an answer told of expires, if no health report or
# check says so, too: behind a proxy the answer was that of one task of several.
TRAILER_INTERVALS = 2


class Lifecycle:
    """Decides the state of one backend. Owned by a backend. `interval`, in seconds, is
    the interval of its health reports; silence and checks go by it.

    `trust` judges what calls and health checks say of a connection, `silence` whether
    reports are overdue.
    """

    def __init__(self, interval: float, rng: Random) -> None:
        self.connection = ConnectionState(interval, rng)
        self.silence = self.connection.silence
        self.trust = Trust(self.connection, interval)
        self._interval = interval

    @property
    def state(self) -> State:
        return self.connection.state

    @state.setter
    def state(self, state: State) -> None:
        self.connection.state = state

    @property
    def link(self) -> Link:
        return self.connection.link

    def due_at(self) -> float | None:
        """When `tick` is to be called; None: not before something happens."""
        return self.connection.due_at()

    def is_connected(self) -> bool:
        return self.connection.link is Link.UP

    def is_away(self) -> bool:
        return self.connection.link is Link.AWAY

    def is_waking(self) -> bool:
        """Whether a call waits for it, and it has not failed to connect yet."""
        return self.connection.is_wanted and self.state is State.CONNECTING

    def answers_checks(self) -> bool:
        """Tells whether the backend answered a health question, on this connection or
        the last one."""
        return self.connection.has_answered

    def is_expected_back(self) -> bool:
        """Tells whether the backend left a connection by GOAWAY, and has said nothing
        on a new one."""
        return self.connection.is_expected_back

    def leaves(self, is_leaving: bool) -> Step:
        """Applies what the resolver says: the backend is about to leave, or is not any
        more."""
        return self.connection.leaves(is_leaving)

    # --- the connection -------------------------------------------------------

    def connected(self, now: float, patience: float) -> Step:
        """A connection is made. Waits for a health response, perhaps of a new task;
        doubts about the last one are dropped.

        `patience` is how long one answer may take, by how long connecting took.
        """
        if self.link is Link.AWAY:
            return NOTHING
        known = self.connection
        known.move(Link.UP)
        known.calls.heard(now)
        known.checks.connected(now, patience)
        known.looks.restart()
        return NOTHING

    def cannot_connect(self, why: str) -> Step:
        if self.link is not Link.DOWN:
            return NOTHING
        self.connection.expect_nothing()
        return self.connection.enter(State.REFUSING, why)

    def lost(self) -> Step:
        """The connection was lost, with what was sent on it."""
        if self.link is Link.AWAY:
            return NOTHING
        self.connection.move(Link.DOWN)
        self.connection.ended += 1
        self.connection.is_expected_back = False
        if self.state is State.REFUSING:
            return NOTHING
        return self.connection.enter(State.CONNECTING, "connection lost")

    def sent_goaway(self) -> Step:
        """Sends no new calls on this connection. The backend ends those that it has."""
        if self.link is Link.AWAY:
            return NOTHING
        self.connection.move(Link.DOWN)
        self.connection.ended += 1
        if self.state is State.REFUSING:
            return NOTHING
        self.connection.is_expected_back = self.state is not State.LAME_DUCK
        return self.connection.enter(State.LAME_DUCK, "it sent GOAWAY")

    # --- what the backend says over the connection ----------------------------

    def heard(
        self, state: TaskState, has_report: bool, now: float, reason: str = ""
    ) -> Step:
        """A health stream told a state. Streams owe no reports if they never had a
        load: servers other than ours speak when something changes."""
        if self.link is not Link.UP:
            return NOTHING
        self.connection.answered()
        self.connection.expect_nothing()
        self.connection.expires_at = None
        self.silence.heard(has_report, now)
        if self.connection.checks.doubt is Doubt.EXCLUDED:
            if state is TaskState.SERVING:
                return NOTHING  # it said so all the while; the check will tell
        else:
            self.connection.believe(now)
        return self.connection.enter(STATE_OF_TASK[state], reason or it_says(state))

    def told_by_answer(self, now: float) -> Step:
        """An answer to a call says that its task is a lame duck."""
        if self.state is not State.READY or self.link is not Link.UP:
            return NOTHING
        self.connection.expires_at = now + TRAILER_INTERVALS * self._interval
        return self.connection.enter(State.LAME_DUCK, "it says lame duck")

    def tick(self, now: float, reported_at: float) -> Step:
        """Decides what follows from the time alone; `reported_at` is when the backend
        last reported its load."""
        if self.silence.is_due(now):
            silent = self.silence.judge(now, reported_at)
            if silent is None:
                return NOTHING
            # It gets no calls before it is heard again.
            return self.connection.enter(State.CONNECTING, f"silent for {silent:.1f} s")
        if self.silence.is_too_long(now):
            self.connection.move(Link.DOWN)
            return self.connection.enter(
                State.CONNECTING, "dialling again", Order.REDIAL
            )
        if self.connection.expires_at is not None and now >= self.connection.expires_at:
            self.connection.expires_at = None
            if self.state is not State.LAME_DUCK:
                return NOTHING
            return self.connection.enter(
                State.READY, "lame duck state from a response trailer expired"
            )
        if self.connection.checks.take_due(now):
            return Step(order=Order.CHECK)
        if self.connection.looks.take_due(now):
            return Step(order=Order.LOOK)
        return NOTHING

    # --- without a connection -------------------------------------------------

    def idle(self, seconds: float, now: float, by_udp: bool) -> Step:
        """Disconnects a backend that had no calls for so many `seconds`. `by_udp`: it
        answers UDP health checks."""
        can_go = self.state is State.READY and self.link is Link.UP
        if not can_go and (self.state is not State.REFUSING or self.link is Link.AWAY):
            return NOTHING
        self.connection.move(Link.AWAY)
        self.connection.looks.restart()
        if not by_udp:
            self.connection.looks.later(now)
        if self.state is State.REFUSING:
            return Step(order=Order.DISCONNECT)
        reason = f"no calls for {seconds:.0f} s"
        return self.connection.enter(State.INACTIVE, reason, Order.DISCONNECT)

    def wanted(self) -> Step:
        """A call wants the backend: it connects, whatever its state was."""
        if self.link is not Link.AWAY:
            return NOTHING
        self.connection.move(Link.DOWN)
        self.connection.is_wanted = True
        return self.connection.enter(
            State.CONNECTING, "wanted for calls", Order.CONNECT
        )

    def told(self, state: TaskState) -> Step:
        """Takes a state that was told by UDP. As UDP works, no LOOK is needed."""
        if self.link is not Link.AWAY:
            return NOTHING
        self.connection.answered()
        self.connection.looks.put_off()
        self.connection.looks.restart()
        return self.connection.enter(_from_afar(state), f"{it_says(state)} by UDP")

    def not_told(self, now: float) -> Step:
        """A UDP health check was not answered: UDP is blocked, or the backend is gone.
        A LOOK is due soon, after a random pause as other clients see the same."""
        if self.link is Link.AWAY:
            self.connection.looks.soon(now)
        return NOTHING

    def seen(self, state: TaskState, now: float, reason: str = "") -> Step:
        """A LOOK found a state. `reason` is as in `heard`."""
        if self.link is Link.UP:
            return self.trust.looked_beside("", now, is_there=True, has_others=True)
        if self.link is not Link.AWAY:
            return NOTHING
        self.connection.answered()
        self.connection.looks.restart()
        self.connection.looks.later(now)
        return self.connection.enter(_from_afar(state), reason or it_says(state))

    def not_seen(
        self,
        why: str,
        now: float,
        is_there: bool = False,
        has_others: bool = True,
        status: str = "",
    ) -> Step:
        """A LOOK had no answer, for the reason `why`.

        `is_there`: a connection was made, and the other side acknowledges pings.
        `has_others`: other backends get calls, too; if `is_there`, others that answer
        health checks. `status`: the status that came at once instead of an answer.
        """
        if self.link is Link.UP:
            return self.trust.looked_beside(why, now, is_there, has_others, status)
        if self.link is not Link.AWAY:
            return NOTHING
        step = self.connection.enter(State.REFUSING, why)
        self.connection.looks.later(now, is_gone=True)
        return step

    def __repr__(self) -> str:
        return repr(self.connection)


def _from_afar(state: TaskState) -> State:
    return State.INACTIVE if state is TaskState.SERVING else STATE_OF_TASK[state]
