"""The state and connection of a backend, which `Lifecycle` and `Trust` share.

`Lifecycle` and `Trust` decide what follows. Here is what both go by, and the one way to
another state, which the resolver's word may turn into that of a lame duck.
"""

from enum import Enum
from random import Random
from typing import NamedTuple

from lbclient.core.backends.call_answers import CallAnswers
from lbclient.core.backends.doubt import Checks
from lbclient.core.backends.looks import Looks
from lbclient.core.backends.silence import Silence
from lbclient.core.model import State, TaskState

STATE_OF_TASK = {
    TaskState.STARTING: State.STARTING,
    TaskState.SERVING: State.READY,
    TaskState.LAME_DUCK: State.LAME_DUCK,
}

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


class ConnectionState:
    """Holds a backend's state and connection. Owned by a lifecycle, which shares it
    with its `Trust`.

    Only `Backends.observe` writes `state` from outside; the other fields are read.
    `has_answered`: the backend answered a health check, on this connection or the last
    one. `is_wanted`: a call waits for it, and it has not failed yet. `sent_goaway`: it
    sent GOAWAY, and has said nothing on a new connection. `ended` counts connections
    that ended, by GOAWAY or otherwise. `expires_at` is when a state learned from an
    answer expires.
    """

    def __init__(self, interval: float, rng: Random) -> None:
        self.state = State.CONNECTING
        self.link = Link.DOWN
        self.has_answered = False
        self.is_wanted = False
        self.sent_goaway = False
        self.ended = 0
        self.expires_at: float | None = None
        self.silence = Silence(interval, rng)
        self.checks = Checks(interval)
        self.looks = Looks(rng)
        self.calls = CallAnswers()
        self._is_leaving = False
        self._else = State.CONNECTING  # what it would be if it were not

    def due_at(self) -> float | None:
        """When time alone brings something about; None: never."""
        times = (
            self.silence.due_at(),
            self.checks.due_at,
            self.looks.due_at,
            self.expires_at,
        )
        return min((at for at in times if at is not None), default=None)

    def move(self, link: Link) -> None:
        """There is another connection, or none. What was known of the last one, and
        what was to be done about it, is over."""
        self.link = link
        if link is Link.UP:
            self.has_answered = False
        self.silence.clear()
        self.checks.clear()
        self.looks.clear()
        self.calls.forgive()
        self.expires_at = None

    def believe(self, now: float) -> None:
        """Stops asking, as the backend was heard."""
        self.expect_nothing()
        self.checks.end()
        self.looks.put_off()
        self.calls.heard(now)

    def answered(self) -> None:
        """A health question."""
        self.has_answered = True

    def expire_at(self, moment: float | None) -> None:
        """What an answer told then expires; None: it does not."""
        self.expires_at = moment

    def want(self) -> None:
        """A call waits for it."""
        self.is_wanted = True

    def count_end(self) -> None:
        self.ended += 1

    def expect_back(self, is_expected: bool) -> None:
        self.sent_goaway = is_expected

    def expect_nothing(self) -> None:
        """Nobody waits for it in particular: it came, or failed."""
        self.is_wanted = self.sent_goaway = False

    # --- states ---------------------------------------------------------------

    def enter(self, state: State, reason: str, order: Order | None = None) -> Step:
        """The step to a state, as far as it is another one and the resolver allows."""
        self._else = state
        if self._is_leaving and state in WELL:
            state, reason = State.LAME_DUCK, "the resolver says that it leaves"
        if state is self.state:
            return Step(order=order)
        return Step(state, reason, order)

    def leaves(self, is_leaving: bool) -> Step:
        """Sets whether the resolver says that the backend is about to leave. The
        resolver knows before the task does: a leaving backend is a lame duck, even if
        the task says that it serves."""
        if is_leaving is self._is_leaving:
            return NOTHING
        self._is_leaving = is_leaving
        if is_leaving:
            return self.enter(self.state, self.state.value)
        if self.state is not State.LAME_DUCK:
            return NOTHING
        return self.enter(self._else, "the resolver wants it back")

    def __repr__(self) -> str:
        return f"<{self.state.value}, {self.link.value}>"


def it_says(state: TaskState) -> str:
    """
    >>> it_says(TaskState.LAME_DUCK)
    'it says lame duck'
    """
    return f"it says {state.name.lower().replace('_', ' ')}"
