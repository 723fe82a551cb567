"""Changes of backends' states: logged one by one, and followed up together.

Many backends may change in one turn of the event loop, where a network fails or a fleet
is found. What follows from that is done once, after the turn. One backend may change
over and over: beyond a few changes its log lines are left out, and counted.
"""

import logging
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from lbclient.background.tasks import Alarm
from lbclient.client.channel_context import ChannelContext
from lbclient.core.model import State
from lbclient.log import Log

if TYPE_CHECKING:
    from lbclient.client.backends.backend import Backend

logger = Log("lbclient.balancer")  # as documented, for the whole channel

# Changes of a turn that are told one by one; the others are told together. A line costs
# as much as the change.
MOST_LOGGED = 20

# Changes of one backend that are logged in a period; a restart takes four.
MOST_OF_ONE = 10
PERIOD = 10.0  # seconds. Ours: some lines a minute tell that it flaps, and how much


class StateChanges:
    """Logs backends' changes of state, and follows up the changes of one turn of the
    loop together. Owned by a balancer. `follow_up` gets the number of changes by the
    new state."""

    def __init__(
        self, context: ChannelContext, follow_up: Callable[[Counter[State]], None]
    ) -> None:
        self._label = context.label
        self._clock = context.clock
        self._events = context.events
        self._follow_up = follow_up
        self._alarm = Alarm(context.tasks, self._follow_up_now)
        self._changed = Counter[State]()
        # Of the turn, without those of backends that have changed too often.
        self._logged = Counter[State]()
        self._period = Alarm(context.tasks, self._end_period)
        self._in_period = Counter[str]()  # changes by address
        self._last: dict[str, State] = {}  # by address, of those left out

    def log(self, backend: "Backend", before: State) -> None:
        """A backend's state was another before; a follow-up is for who logs to ask."""
        self._changed[backend.state] += 1
        count = MOST_LOGGED
        if self._is_seldom(backend):
            count = self._logged.total()
            self._logged[backend.state] += 1
        if count < MOST_LOGGED:
            what = f"{backend.state.value}, was {before.value}"
            condition = backend.condition
            address = backend.endpoint.address
            self._events.add(condition.since, address, what, condition.reason)
        level = logging.INFO if count < MOST_LOGGED else logging.DEBUG
        if logger.isEnabledFor(level):
            logger.log(
                level,
                "%s: %s is %s (was %s): %s",
                self._label,
                backend.endpoint.address,
                backend.state.value,
                before.value,
                backend.condition.reason,
                channel=self._label,
                backend=backend.endpoint.address,
                state=backend.state.value,
                reason=backend.condition.reason,
            )

    def _is_seldom(self, backend: "Backend") -> bool:
        """Counts a change; returns whether the backend had few in this period."""
        if not self._period.is_set():
            self._period.set(PERIOD)
        address = backend.endpoint.address
        self._in_period[address] += 1
        is_seldom = self._in_period[address] <= MOST_OF_ONE
        if not is_seldom:
            self._last[address] = backend.state
        return is_seldom

    def _end_period(self) -> None:
        """Tells of the changes that were left out."""
        counts, self._in_period = self._in_period, Counter()
        last, self._last = self._last, {}
        for address, state in last.items():
            what = f"{state.value}, after {counts[address] - MOST_OF_ONE} more changes"
            why = f"it changed {counts[address]} times in {PERIOD:.0f} s"
            self._events.add(self._clock(), address, what, why)
            logger.about(
                logging.INFO,
                "%s is %s: %s",
                address,
                what,
                why,
                channel=self._label,
                backend=address,
                state=state.value,
                reason=why,
            )

    def follow_up_soon(self) -> None:
        """Follows up after this turn: whoever observes a change may be inside a
        callback of a connection that is to close."""
        if not self._alarm.is_set():
            self._alarm.set(0.0)

    def _follow_up_now(self) -> None:
        changed, self._changed = self._changed, Counter()
        logged, self._logged = self._logged, Counter()
        if (count := logged.total()) > MOST_LOGGED:
            counts = ", ".join(f"{n} are {state.value}" for state, n in logged.items())
            label, words = self._label, "%s: %d changes at once: %s"
            logger.info(words, label, count, counts, channel=label, reason=counts)
            self._events.add(self._clock(), "all", f"{count} changes at once", counts)
        self._follow_up(changed)

    def stop(self) -> None:
        self._alarm.clear()
        self._period.clear()

    def __repr__(self) -> str:
        return f"<{self._changed.total()} changes in this turn>"
