"""The states of one backend, and what makes it go from one to the next.

It decides and does nothing: told what happened and when, it returns the state that
follows, with the reason, and the one thing that is to be done. It never writes
`state`: that is for the one door through which all changes go (`Balancer.observe`),
and others go through it too, a pick that finds the connection gone, a response that
tells of a lame duck. So nothing here relies on having made the last change itself.

    CONNECTING --its word--> STARTING, READY, LAME_DUCK --lost, silent--> CONNECTING
    READY --no calls--> INACTIVE --wanted--> CONNECTING;  cannot connect: REFUSING

SRE book, ch. 20: the states of a task, and health checks of inactive connections.
"""

from enum import Enum
from math import inf
from random import Random
from typing import NamedTuple

from lbclient.model import State, TaskState

# After so many health intervals of silence a connection is given up for a new one. A
# healed network carries on with the old one only when TCP tries again, which after a
# minute's silence may take another.
REDIAL_INTERVALS = 3

# Deadlines in a row, with nothing served in between, until a backend must say how it
# is. With one in ten missed for other reasons, five in a row are one in 100,000.
MISSES = 5

LOOK_PERIOD = 120.0  # seconds between looks over TCP, at least; as the slowest by UDP
FIRST_LOOK = 5.0  # seconds: between the first looks at one that cannot be reached
LOOK_SPREAD = 0.25  # of such a time, on top: clients that lost UDP together look apart

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
    CHECK = "check"  # ask how it is, over the connection; then `checked`
    LOOK = "look"  # connect, ask how it is, disconnect; then `seen` or `not_seen`


class Step(NamedTuple):
    """`state` is never the one that the backend is in; None: it stays."""

    state: State | None = None
    reason: str = ""
    order: Order | None = None


NOTHING = Step()


class Lifecycle:
    """Owned by a backend. `interval` is how long a backend of ours may be silent."""

    def __init__(self, interval: float, rng: Random) -> None:
        self.state = State.CONNECTING
        self.link = Link.DOWN
        self.interval = self._usual_interval = interval
        self._rng = rng
        self._silent_at: float | None = None
        self._give_up_at: float | None = None
        self._check_at: float | None = None
        self._look_at: float | None = None
        self._look_period = FIRST_LOOK
        self._misses = 0
        self._served = 0  # when the last deadline was missed
        self._is_doubted = False
        self._trusted_until = -inf
        self._is_wanted = False
        self._is_called_off = False
        self._is_leaving = False
        self._else = State.CONNECTING  # what it would be if it were not

    def due_at(self) -> float | None:
        """When `tick` is wanted; None: not before something happens."""
        times = (self._silent_at, self._give_up_at, self._check_at, self._look_at)
        return min((at for at in times if at is not None), default=None)

    def is_connected(self) -> bool:
        return self.link is Link.UP

    def is_away(self) -> bool:
        return self.link is Link.AWAY

    def is_waking(self) -> bool:
        """A call wanted it, and it has not failed yet."""
        return self._is_wanted and self.state is State.CONNECTING

    def is_expected_back(self) -> bool:
        """It left a connection by GOAWAY, and has said nothing on a new one."""
        return self._is_called_off

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

    def connected(self) -> Step:
        """Its word is to come. It is a new task, perhaps: no doubt remains."""
        if self.link is Link.AWAY:
            return NOTHING
        self._forget()
        self.link = Link.UP
        return NOTHING

    def cannot_connect(self, why: str) -> Step:
        if self.link is not Link.DOWN:
            return NOTHING
        self._is_wanted = self._is_called_off = False
        return self._enter(State.REFUSING, why)

    def lost(self) -> Step:
        """The connection, and what was sent on it."""
        if self.link is Link.AWAY:
            return NOTHING
        self._forget()
        self.link = Link.DOWN
        self._is_called_off = False
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
        self._is_called_off = self.state is not State.LAME_DUCK
        return self._enter(State.LAME_DUCK, "it sent GOAWAY")

    # --- its word, over the connection ----------------------------------------

    def heard(
        self, state: TaskState, has_report: bool, now: float, reason: str = ""
    ) -> Step:
        """By a stream of health reports, which are silent only if they never had a
        load: others than ours speak when something changes."""
        if self.link is not Link.UP:
            return NOTHING
        self._is_wanted = self._is_called_off = False
        if not has_report:
            self._silent_at = self._give_up_at = None
        elif self._silent_at is None:
            self._give_up_at = None
            self._silent_at = now + self.interval
        if self._is_doubted and state is TaskState.SERVING:
            return NOTHING  # it said so all the while; the check will tell
        return self._enter(STATE_OF_TASK[state], reason or _it_says(state))

    def expect_every(self, interval: float, now: float) -> None:
        """It was asked for reports at another pace: silence is judged anew."""
        self.interval = interval
        if self._silent_at is not None:
            self._silent_at = now + interval

    def tick(self, now: float, reported_at: float) -> Step:
        """What time alone brings about; `reported_at` is when it last told its load."""
        if self._silent_at is not None and now >= self._silent_at:
            return self._judge_silence(now, reported_at)
        if self._give_up_at is not None and now >= self._give_up_at:
            self._forget()
            self.link = Link.DOWN
            return self._enter(State.CONNECTING, "dialling again", Order.REDIAL)
        if self._check_at is not None and now >= self._check_at:
            self._check_at = None
            return Step(order=Order.CHECK)
        if self._look_at is not None and now >= self._look_at:
            self._look_at = None
            return Step(order=Order.LOOK)
        return NOTHING

    def _judge_silence(self, now: float, reported_at: float) -> Step:
        """Frozen, overloaded or cut off: no calls until its next word."""
        due, self._silent_at = self._silent_at, None
        assert due is not None
        silent = now - reported_at
        if silent < self.interval:
            self._silent_at = now + self.interval - silent
            return NOTHING
        if now - due > self.interval / 4:
            # It was us who stood still; its word may lie unread.
            self._silent_at = now + self.interval / 2
            return NOTHING
        self._give_up_at = now + (REDIAL_INTERVALS - 1) * self._usual_interval
        return self._enter(State.CONNECTING, f"silent for {silent:.1f} s")

    # --- deadlines ------------------------------------------------------------

    def missed_deadline(self, served: int, has_others: bool, now: float) -> Step:
        """A call ended so; `served` counts all that it ever served. Who has no others
        to send calls to is as well off with this one."""
        if served != self._served:
            self._served, self._misses = served, 0
        self._misses += 1
        if (
            self._misses < MISSES
            or self.state is not State.READY
            or self.link is not Link.UP
            or not has_others
            or now < self._trusted_until
        ):
            return NOTHING
        reason = f"{self._misses} deadlines missed in a row"
        self._misses = 0
        self._is_doubted = True
        return self._enter(State.CONNECTING, reason, Order.CHECK)

    def checked(self, state: TaskState | None, now: float) -> Step:
        """The answer to a CHECK; None: there was none."""
        if not self._is_doubted or self.link is not Link.UP:
            return NOTHING
        if state is None:
            # It speaks, or its silence would be judged, but it does not answer.
            self._check_at = now + self._usual_interval
            return NOTHING
        self._is_doubted = False
        self._trusted_until = now + self._usual_interval
        if self._give_up_at is not None:  # silent, too, but it answers
            self._give_up_at = None
            self._silent_at = now + self.interval
        return self._enter(STATE_OF_TASK[state], f"asked, {_it_says(state)}")

    # --- without a connection -------------------------------------------------

    def idle(self, seconds: float, now: float, by_udp: bool) -> Step:
        """It had no calls for so long. `by_udp`: there is somebody to ask there."""
        can_go = self.state is State.READY and self.link is Link.UP
        if not can_go and (self.state is not State.REFUSING or self.link is Link.AWAY):
            return NOTHING
        self._forget()
        self.link = Link.AWAY
        self._look_period = FIRST_LOOK
        if not by_udp:
            self._look_again(now)
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
        self._look_at = None
        self._look_period = FIRST_LOOK
        return self._enter(_from_afar(state), f"{_it_says(state)} by UDP")

    def not_told(self, now: float) -> Step:
        """UDP is blocked, or it is gone. A look then, if none is due: soon, but not
        all clients at once."""
        if self.link is Link.AWAY and self._look_at is None:
            self._look_at = now + self._rng.random() * FIRST_LOOK
        return NOTHING

    def seen(self, state: TaskState, now: float) -> Step:
        """By a LOOK."""
        if self.link is not Link.AWAY:
            return NOTHING
        self._look_period = FIRST_LOOK
        self._look_again(now)
        return self._enter(_from_afar(state), _it_says(state))

    def not_seen(self, why: str, now: float) -> Step:
        """By a LOOK: nobody answers."""
        if self.link is not Link.AWAY:
            return NOTHING
        step = self._enter(State.REFUSING, why)
        self._look_again(now, is_gone=True)
        return step

    def _look_again(self, now: float, is_gone: bool = False) -> None:
        """Seldom; at one that is gone sooner, and less and less often."""
        period = LOOK_PERIOD
        if is_gone:
            period = min(self._look_period, LOOK_PERIOD)
            self._look_period = 2 * period
        self._look_at = now + period * (1 + LOOK_SPREAD * self._rng.random())

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
        self._silent_at = self._give_up_at = self._check_at = self._look_at = None
        self.interval = self._usual_interval
        self._misses = 0
        self._is_doubted = False

    def __repr__(self) -> str:
        return f"<{self.state.value}, {self.link.value}>"


def _it_says(state: TaskState) -> str:
    return f"it says {state.name.lower().replace('_', ' ')}"


def _from_afar(state: TaskState) -> State:
    return State.INACTIVE if state is TaskState.SERVING else STATE_OF_TASK[state]
