"""Changes of backends' states: logged one by one, and followed up together.

Many backends may change in one turn of the event loop, where a network fails or a fleet
is found. What follows from that is done once, after the turn.
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

    def log(self, backend: "Backend", before: State) -> None:
        """A backend's state was another before; a follow-up is for who logs to ask."""
        count = self._changed.total()
        self._changed[backend.state] += 1
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

    def follow_up_soon(self) -> None:
        """Follows up after this turn: whoever observes a change may be inside a
        callback of a connection that is to close."""
        if not self._alarm.is_set():
            self._alarm.set(0.0)

    def _follow_up_now(self) -> None:
        changed, self._changed = self._changed, Counter()
        if (count := changed.total()) > MOST_LOGGED:
            counts = ", ".join(f"{n} are {state.value}" for state, n in changed.items())
            label, words = self._label, "%s: %d changes at once: %s"
            logger.info(words, label, count, counts, channel=label, reason=counts)
            self._events.add(self._clock(), "all", f"{count} changes at once", counts)
        self._follow_up(changed)

    def stop(self) -> None:
        self._alarm.clear()

    def __repr__(self) -> str:
        return f"<{self._changed.total()} changes in this turn>"
