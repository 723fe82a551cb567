"""The state and connection of a backend, which `Lifecycle` and `Doubts` share.

These two decide what follows. Here are the facts that both decide by, and `enter`, the
only way to another state: a backend that the resolver says leaves is a lame duck there.
"""

from enum import Enum
from random import Random
from typing import NamedTuple

from lbclient.core.backends.call_answers import CallAnswers
from lbclient.core.backends.checks import Checks
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
    """Whether a backend has a connection."""

    DOWN = "down"  # no, and one is being made
    UP = "up"
    AWAY = "away"  # no, and none is wanted: its health is checked from afar


class Order(Enum):
    """The I/O that follows from a decision; a backend carries it out."""

    CONNECT = "connect"  # `link` was AWAY
    DISCONNECT = "disconnect"  # `link` is AWAY now
    REDIAL = "redial"  # replace a connection that may be dead
    # Replace a connection beside which a second one was answered: it may just be full.
    REPLACE = "replace"
    CHECK = "check"  # check health over the connection
    # Check health over a new connection, which is then closed. Also while there is a
    # connection.
    LOOK = "look"


class Step(NamedTuple):
    """A decision: the new state, why, and the I/O that follows.

    `state` is never the present one; None: it stays, perhaps for another `reason`.
    """

    state: State | None = None
    reason: str = ""
    order: Order | None = None


NOTHING = Step()


class ConnectionState:
    """Holds a backend's state and connection. Owned by a lifecycle, which shares it
    with its `Doubts`; these two write it, and `Backends.observe` writes `state`.

    `has_answered`: the backend answered a health check, on this connection or the last
    one. `is_wanted`: a call waits for it, and it has not failed yet.
    `is_expected_back`: it sent GOAWAY, and has said nothing on a new connection.
    `is_leaving`: the resolver says that it leaves; without that, its state would be
    `state_if_staying`. `ended` counts connections that ended, by GOAWAY or otherwise.
    `expires_at` is when a state that was learned from a response to a call expires;
    None: never.
    """

    def __init__(self, interval: float, rng: Random) -> None:
        self.state = State.CONNECTING
        self.link = Link.DOWN
        self.has_answered = False
        self.is_wanted = False
        self.is_expected_back = False
        self.ended = 0
        self.expires_at: float | None = None
        self.silence = Silence(interval, rng)
        self.checks = Checks(interval)
        self.looks = Looks(rng)
        self.calls = CallAnswers()
        self.is_leaving = False
        self.state_if_staying = State.CONNECTING

    def move(self, link: Link) -> None:
        """Forgets what was known of the last connection, and what was to be done about
        it: there is another one now, or none."""
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

    def expect_nothing(self) -> None:
        """The backend was heard, or has failed: nobody waits for it in particular."""
        self.is_wanted = self.is_expected_back = False

    # --- states ---------------------------------------------------------------

    def enter(self, state: State, reason: str, order: Order | None = None) -> Step:
        """The step to a state, as far as it is another one and the resolver allows."""
        self.state_if_staying = state
        if self.is_leaving and state in WELL:
            state, reason = State.LAME_DUCK, "the resolver says that it leaves"
        if state is self.state:
            return Step(order=order)
        return Step(state, reason, order)

    def __repr__(self) -> str:
        return f"<{self.state.value}, {self.link.value}>"


def it_says(state: TaskState) -> str:
    """
    >>> it_says(TaskState.LAME_DUCK)
    'it says lame duck'
    """
    return f"it says {state.name.lower().replace('_', ' ')}"
