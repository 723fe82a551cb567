"""The states of one backend: a table of all transitions, and a method for each event.

A backend has a state and a connection, which is DOWN (being made), UP, or AWAY (closed,
and none is wanted). It begins as CONNECTING DOWN. The first row of an event that fits
applies; if none fits, nothing changes. "told" is the state that the task tells; of a
backend AWAY that serves it is INACTIVE, not READY.

event                 before            if                 after            order
--------------------  ----------------  -----------------  ---------------  ----------
the connection: client/backends/connection.py
connected             any DOWN          -                  same UP          -
connect_failed        any DOWN          -                  REFUSING DOWN    -
connection_lost       REFUSING UP/DOWN  -                  same DOWN        -
connection_lost       any UP/DOWN       -                  CONNECTING DOWN  -
goaway_received       REFUSING UP/DOWN  -                  same DOWN        -
goaway_received       any UP/DOWN       -                  LAME_DUCK DOWN   -

calls, and the resolver: client/backends/backend.py
became_idle           READY UP          -                  INACTIVE AWAY    DISCONNECT
became_idle           REFUSING UP/DOWN  -                  same AWAY        DISCONNECT
wanted                any AWAY          -                  CONNECTING DOWN  CONNECT
resolver_said         READY any         it leaves          LAME_DUCK same   -
resolver_said         INACTIVE any      it leaves          LAME_DUCK same   -
resolver_said         LAME_DUCK any     it stays           told same        -

health reports, trailers, UDP: client/reported.py
health_reported       any UP            EXCLUDED, serving  same UP          -
health_reported       any UP            -                  told UP          -
lame_duck_in_trailer  READY UP          -                  LAME_DUCK UP     -
udp_answered          any AWAY          -                  told AWAY        -
udp_unanswered        any AWAY          -                  same AWAY        -

time: `tick`
fell_silent           any UP            -                  CONNECTING UP    -
stayed_silent         any UP            -                  CONNECTING DOWN  REDIAL
trailer_expired       LAME_DUCK UP      -                  READY UP         -

a LOOK without a connection: client/health/ordered_checks.py
look_answered         any AWAY          -                  told AWAY        -
look_unanswered       any AWAY          -                  REFUSING AWAY    -

a doubt about the connection, decided in `doubts`: client/backends/backend.py
deadline_missed       READY UP          others are ready   CONNECTING UP    CHECK
deadline_missed       READY UP          no other is ready  same UP          CHECK
look_at_calls         any UP            none is answered   same UP          CHECK

a doubted connection, decided in `doubts`: client/health/ordered_checks.py
check_answered        any UP            CALLS_UNANSWERED   same UP          -
check_answered        any UP            NEVER_HEARD        told UP          -
check_answered        any UP            EXCLUDED           told UP          -
check_unanswered      any UP            -                  same UP          -
check_refused         any UP            nobody answers     READY UP         -
check_refused         any UP            -                  same UP          -
look_answered         any UP            -                  CONNECTING DOWN  REPLACE
look_unanswered       any UP            nobody answers     READY UP         -
look_unanswered       any UP            it answers pings   same UP          -
look_unanswered       READY UP          no other is ready  same UP          -
look_unanswered       any UP            -                  REFUSING UP      -

While the resolver says that a backend leaves, LAME_DUCK stands for READY and INACTIVE.
EXCLUDED, NEVER_HEARD and CALLS_UNANSWERED are of `Doubt`. "Nobody answers": the
connection lives, and neither this backend nor another one that gets calls answers
health checks.

A `Lifecycle` decides and does no I/O: told what happened and when, it returns a `Step`:
the state that follows, the reason, and the order to carry out. CHECK is a health check
over the connection; LOOK is one over a new connection, which is then closed. `tick`
orders those that are due.

`Backends.observe` alone writes the state. It has two transitions of its own: a pick
that finds no connection makes it CONNECTING; where an address has the wrong worker, or
one twice, REFUSING stands for READY.

SRE book, ch. 20: the states of a task, and health checks of inactive connections.
"""

from random import Random

from lbclient.core.backends.checks import Doubt
from lbclient.core.backends.connection_state import (
    NOTHING,
    STATE_OF_TASK,
    ConnectionState,
    Link,
    Order,
    Step,
    it_says,
)
from lbclient.core.backends.doubts import Doubts
from lbclient.core.model import State, TaskState

# Health intervals until a state that an answer told of expires, if no health report or
# check says so, too: behind a proxy the answer was that of one task of several.
TRAILER_INTERVALS = 2


class Lifecycle:
    """Decides the state of one backend. Owned by a backend. `interval`, in seconds, is
    the interval of its health reports; silence and checks go by it.

    `doubts` decides what follows when the connection is doubted, `silence` whether
    reports are overdue.
    """

    def __init__(self, interval: float, rng: Random) -> None:
        self.connection = ConnectionState(interval, rng)
        self.silence = self.connection.silence
        self.doubts = Doubts(self.connection, interval)
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
        known = self.connection
        times = (
            known.silence.due_at(),
            known.checks.due_at,
            known.looks.due_at,
            known.expires_at,
        )
        return min((at for at in times if at is not None), default=None)

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
        on a new one. Not if the resolver says that it leaves."""
        return self.connection.is_expected_back and not self.connection.is_leaving

    # --- the connection ---------------------------------------------------------------

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

    def connect_failed(self, why: str) -> Step:
        if self.link is not Link.DOWN:
            return NOTHING
        self.connection.expect_nothing()
        return self.connection.enter(State.REFUSING, why)

    def connection_lost(self) -> Step:
        """The connection was lost, with what was sent on it."""
        if self.link is Link.AWAY:
            return NOTHING
        self.connection.move(Link.DOWN)
        self.connection.ended += 1
        self.connection.is_expected_back = False
        if self.state is State.REFUSING:
            return NOTHING
        return self.connection.enter(State.CONNECTING, "connection lost")

    def goaway_received(self) -> Step:
        """Sends no new calls on this connection. The backend ends those that it has."""
        if self.link is Link.AWAY:
            return NOTHING
        self.connection.move(Link.DOWN)
        self.connection.ended += 1
        if self.state is State.REFUSING:
            return NOTHING
        self.connection.is_expected_back = self.state is not State.LAME_DUCK
        return self.connection.enter(State.LAME_DUCK, "it sent GOAWAY")

    # --- calls, and the resolver ------------------------------------------------------

    def became_idle(self, seconds: float, now: float, by_udp: bool) -> Step:
        """Disconnects a backend that had no calls for so many `seconds`. `by_udp`: it
        answers UDP health checks."""
        is_ready = self.state is State.READY and self.link is Link.UP
        is_refusing = self.state is State.REFUSING and self.link is not Link.AWAY
        if not (is_ready or is_refusing):
            return NOTHING
        self.connection.move(Link.AWAY)
        self.connection.looks.restart()
        if not by_udp:
            self.connection.looks.later(now)
        if is_refusing:
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

    def resolver_said(self, is_leaving: bool) -> Step:
        """The backend is about to leave, or is not any more. The resolver knows before
        the task does: a leaving backend is a lame duck, even if the task says that it
        serves."""
        known = self.connection
        if is_leaving is known.is_leaving:
            return NOTHING
        known.is_leaving = is_leaving
        if is_leaving:
            return known.enter(self.state, self.state.value)
        if self.state is not State.LAME_DUCK:
            return NOTHING
        return known.enter(known.state_if_staying, "the resolver wants it back")

    # --- health reports, trailers, UDP ------------------------------------------------

    def health_reported(
        self, state: TaskState, has_report: bool, now: float, reason: str = ""
    ) -> Step:
        """A health stream told a state. Streams owe no reports if they never had a
        load: servers other than ours speak when something changes."""
        if self.link is not Link.UP:
            return NOTHING
        self.connection.has_answered = True
        self.connection.expect_nothing()
        self.connection.expires_at = None
        self.silence.heard(has_report, now)
        if self.connection.checks.doubt is Doubt.EXCLUDED:
            if state is TaskState.SERVING:
                return NOTHING  # it said so all the while; the check will tell
        else:
            self.connection.believe(now)
        return self.connection.enter(STATE_OF_TASK[state], reason or it_says(state))

    def lame_duck_in_trailer(self, now: float) -> Step:
        """An answer to a call says that its task is a lame duck."""
        if self.state is not State.READY or self.link is not Link.UP:
            return NOTHING
        self.connection.expires_at = now + TRAILER_INTERVALS * self._interval
        return self.connection.enter(State.LAME_DUCK, "it says lame duck")

    def udp_answered(self, state: TaskState) -> Step:
        """Takes a state that was told by UDP. As UDP works, no LOOK is needed."""
        if self.link is not Link.AWAY:
            return NOTHING
        self.connection.has_answered = True
        self.connection.looks.put_off()
        self.connection.looks.restart()
        return self.connection.enter(_from_afar(state), f"{it_says(state)} by UDP")

    def udp_unanswered(self, now: float) -> Step:
        """A UDP health check was not answered: UDP is blocked, or the backend is gone.
        A LOOK is due soon, after a random pause as other clients see the same."""
        if self.link is Link.AWAY:
            self.connection.looks.soon(now)
        return NOTHING

    # --- time -------------------------------------------------------------------------

    def tick(self, now: float, reported_at: float) -> Step:
        """Decides what follows from the time alone; `reported_at` is when the backend
        last reported its load."""
        if self.silence.is_due(now):
            silent = self.silence.judge(now, reported_at)
            return NOTHING if silent is None else self.fell_silent(silent)
        if self.silence.is_too_long(now):
            return self.stayed_silent()
        expires_at = self.connection.expires_at
        if expires_at is not None and now >= expires_at:
            return self.trailer_expired()
        if self.connection.checks.take_due(now):
            return Step(order=Order.CHECK)
        if self.connection.looks.take_due(now):
            return Step(order=Order.LOOK)
        return NOTHING

    def fell_silent(self, seconds: float) -> Step:
        """Health reports are overdue. It gets no calls before it is heard again."""
        return self.connection.enter(State.CONNECTING, f"silent for {seconds:.1f} s")

    def stayed_silent(self) -> Step:
        """Nothing was heard since `fell_silent`: a new connection may do better."""
        self.connection.move(Link.DOWN)
        return self.connection.enter(State.CONNECTING, "dialling again", Order.REDIAL)

    def trailer_expired(self) -> Step:
        """No health report or check has confirmed what a trailer told."""
        self.connection.expires_at = None
        if self.state is not State.LAME_DUCK:
            return NOTHING
        return self.connection.enter(
            State.READY, "lame duck state from a response trailer expired"
        )

    # --- a LOOK -----------------------------------------------------------------------

    def look_answered(self, state: TaskState, now: float, reason: str = "") -> Step:
        """A LOOK found a state. `reason` is as in `health_reported`."""
        if self.link is Link.UP:
            return self.doubts.look_answered()
        if self.link is not Link.AWAY:
            return NOTHING
        self.connection.has_answered = True
        self.connection.looks.restart()
        self.connection.looks.later(now)
        return self.connection.enter(_from_afar(state), reason or it_says(state))

    def look_unanswered(
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
            return self.doubts.look_unanswered(why, now, is_there, has_others, status)
        if self.link is not Link.AWAY:
            return NOTHING
        step = self.connection.enter(State.REFUSING, why)
        self.connection.looks.later(now, is_gone=True)
        return step

    def __repr__(self) -> str:
        return repr(self.connection)


def _from_afar(state: TaskState) -> State:
    return State.INACTIVE if state is TaskState.SERVING else STATE_OF_TASK[state]
