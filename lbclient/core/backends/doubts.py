"""What follows once a connection is in doubt: a check, a look, a new connection.

A connection that says nothing may be dead, or its server may be busy. Only servers of
ours owe a report every so often. Every other connection is asked (CHECK) when it has
said nothing since it was made, when calls on it miss their deadlines, and when calls on
it are not answered. A CHECK without an answer does not tell a dead connection from a
busy server, so a second connection is asked next (LOOK). An answer there proves that
the first connection is not worth waiting for, and it is replaced (REPLACE). No answer
there, but a connection that lives, is a busy server: nothing is replaced.
"""

from math import inf

from lbclient.core.backends.call_answers import MISSES
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
from lbclient.core.model import State, TaskState

BUSY = (
    "a health check on a second connection timed out too; pings are acknowledged, so "
    "the server is busy"
)
NO_CHECKS = (
    "connected, but health checks {}; used all the same, as no other backend answers "
    "them"
)


class Doubts:
    """Decides what follows when a connection is doubted: a check, a look, a new
    connection. Owned by a lifecycle, whose `ConnectionState` it changes. `interval`, in
    seconds, is that of health reports."""

    def __init__(self, connection: ConnectionState, interval: float) -> None:
        self._connection = connection
        self._interval = interval
        self._trusted_until = -inf

    # --- what raises a doubt --------------------------------------------------

    def deadline_missed(self, served: int, has_others: bool, now: float) -> Step:
        """A call ended so; `served` counts all that it ever served. Who has no others
        to send calls to is as well off with this one, which is asked all the same."""
        known = self._connection
        misses = known.calls.missed(served)
        if (
            misses < MISSES
            or known.state is not State.READY
            or known.link is not Link.UP
            or now < self._trusted_until
        ):
            return NOTHING
        cause = f"{misses} deadlines missed in a row"
        if has_others:
            known.calls.forgive()
            self._ask(Doubt.EXCLUDED, cause)
            return known.enter(State.CONNECTING, cause, Order.CHECK)
        if known.checks.doubt is not Doubt.NONE:
            return NOTHING
        self._ask(Doubt.CALLS_UNANSWERED, cause)
        return Step(order=Order.CHECK)

    def look_at_calls(self, in_flight: int, answered: int, now: float) -> Step:
        """Now and then: how many calls are in flight, and how many it ever answered.

        Asks where calls wait and the connection says nothing. Not where reports are
        owed, whose silence is judged.
        """
        known, calls, checks = (
            self._connection,
            self._connection.calls,
            self._connection.checks,
        )
        if not calls.are_owed(in_flight, answered, now):
            checks.calls_answered()
            if checks.doubt is Doubt.CALLS_UNANSWERED:
                known.believe(now)
            return NOTHING
        if (
            checks.doubt is not Doubt.NONE
            or known.link is not Link.UP
            or known.silence.is_judged()
            or not checks.is_late(calls.owed_since, now)
        ):
            return NOTHING
        quiet = now - calls.owed_since
        self._ask(
            Doubt.CALLS_UNANSWERED,
            f"{in_flight} in flight and no answer for {quiet:.1f} s",
        )
        return Step(order=Order.CHECK)

    def stream_ended_unheard(self, now: float, may_others_answer: bool) -> Step:
        """A health stream ended without a word over a connection that lives, with a
        status as of a proxy. A new connection is asked without delay if all others are
        away or refuse health checks, too: then calls wait for nothing but this."""
        if self._connection.link is Link.UP and not may_others_answer:
            self._connection.checks.hurry(now)
        return NOTHING

    def _ask(self, doubt: Doubt, cause: str) -> None:
        self._connection.checks.begin(doubt, cause)
        self._connection.looks.restart()

    # --- a CHECK --------------------------------------------------------------

    def check_answered(self, state: TaskState, now: float, reason: str = "") -> Step:
        """A CHECK had an answer. `reason` is as in `health_reported`."""
        known, checks = self._connection, self._connection.checks
        doubt = checks.doubt
        if known.link is not Link.UP:
            return NOTHING
        known.has_answered = True
        self._trusted_until = now + self._interval
        said = f"asked, {reason or it_says(state)}"
        if doubt is Doubt.NONE:
            return NOTHING
        if doubt is Doubt.NEVER_HEARD and state is not TaskState.SERVING:
            checks.answered_badly(now)
            known.looks.put_off()
            return known.enter(STATE_OF_TASK[state], said)
        if doubt is Doubt.CALLS_UNANSWERED:
            checks.slow_down()
        known.believe(now)
        known.silence.answered(now)
        if doubt is Doubt.CALLS_UNANSWERED:
            return NOTHING  # it lives; how it is it tells by its health stream
        return known.enter(STATE_OF_TASK[state], said)

    def check_unanswered(self, now: float) -> Step:
        """A CHECK had no answer: it comes again, and a LOOK before that."""
        checks = self._connection.checks
        if self._connection.link is not Link.UP or checks.doubt is Doubt.NONE:
            return NOTHING
        checks.not_answered(now)
        self._connection.looks.at_once(now)
        return self._still_out(f"{checks.cause}; a health check is not answered")

    def check_refused(self, status: str, now: float, has_others: bool) -> Step:
        """The server's core ended a CHECK: the connection lives, and no LOOK is needed.
        `has_others` is as in `look_unanswered`."""
        checks = self._connection.checks
        if self._connection.link is not Link.UP or checks.doubt is Doubt.NONE:
            return NOTHING
        checks.not_answered(now)
        return self._is_busy(now, has_others, status)

    # --- a LOOK ---------------------------------------------------------------

    def look_answered(self) -> Step:
        """A second connection has an answer: the first one is not worth waiting for."""
        known, checks = self._connection, self._connection.checks
        if known.looks.end() is None or not checks.is_unanswered:
            return NOTHING  # it was heard meanwhile
        reason = f"{checks.cause}; a second connection is answered"
        known.move(Link.DOWN)
        step = known.enter(State.CONNECTING, reason, Order.REPLACE)
        return step._replace(reason=reason)

    def look_unanswered(
        self, why: str, now: float, is_there: bool, has_others: bool, status: str
    ) -> Step:
        """A second connection has no answer, either. The arguments are as in
        `Lifecycle.look_unanswered`."""
        known, checks = self._connection, self._connection.checks
        began_at = known.looks.end()
        if began_at is None or not checks.is_unanswered:
            return NOTHING  # it was heard meanwhile
        known.looks.again(began_at, now, is_there)
        if is_there:
            return self._is_busy(now, has_others, status)
        if known.state is State.READY and not has_others:
            return NOTHING
        if checks.doubt is Doubt.CALLS_UNANSWERED:
            checks.begin(Doubt.EXCLUDED, checks.cause)
        known.expect_nothing()
        return known.enter(State.REFUSING, f"{checks.cause}; {why}")

    def _is_busy(self, now: float, has_others: bool, status: str) -> Step:
        """Its connection lives, and no health check is answered."""
        known, checks = self._connection, self._connection.checks
        refused = f"are refused: {status}" if status else ""
        is_unclear = has_others or known.has_answered
        if is_unclear or checks.doubt is Doubt.CALLS_UNANSWERED:
            said = f"health checks {refused}" if refused else BUSY
            return self._still_out(f"{checks.cause}; {said}")
        # A server that answers calls, perhaps, but never a health check.
        known.believe(now)
        return known.enter(State.READY, NO_CHECKS.format(refused or "time out"))

    def _still_out(self, reason: str) -> Step:
        """Keeps it out, for this reason, if it is out."""
        is_out = self._connection.state is State.CONNECTING
        return Step(reason=reason) if is_out else NOTHING

    def __repr__(self) -> str:
        return f"<{self._connection.checks!r}, trusted until {self._trusted_until:.1f}>"
