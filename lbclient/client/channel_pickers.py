"""The pickers of a channel, and the parts that serve what a picker asks for.

One picker picks for most calls. It is replaced once endpoints have several priorities.
Another one picks for resumable streams. A picker may ask for probes, for answers, or
for connections to the backends of keys: `probing`, `answers` and `guests` see to that.
"""

from collections.abc import Callable
from random import Random

from lbclient.client.backends.backends import Backends
from lbclient.client.backends.key_guests import KeyGuests
from lbclient.client.backends.probing import Probing
from lbclient.client.calls.answers import Answers
from lbclient.client.calls.resumable_streams import ResumableStreams
from lbclient.client.channel_context import ChannelContext
from lbclient.core.call_hints import CallHints
from lbclient.core.protocols import Picker, PickerFactory
from lbclient.core.routing.keyed_picks import PickerForCall, sees_calls
from lbclient.core.routing.spillover import Spillover


class ChannelPickers:
    """Knows which picker picks for a call. Owned by a balancer.

    `current` picks for most calls.
    """

    def __init__(
        self,
        context: ChannelContext,
        picker: Picker,
        spillover: PickerFactory | None,
        backends: Backends,
        on_loop: Callable[..., None],
    ) -> None:
        """`spillover` makes the picker once endpoints have several priorities.
        `on_loop` calls a function on the loop's thread."""
        label, connections = context.label, backends.connections
        self.current = picker
        self.answers = Answers(label, picker)
        self.probing = Probing(label, picker, context.clock)
        self.guests = KeyGuests(context, connections, backends.idleness.waking, picker)
        self.streams = ResumableStreams(
            context, connections, backends.outliers, picker, on_loop
        )
        self._spillover = spillover
        self._connections = connections
        self._rng = context.rng

    def for_call(self, hints: CallHints) -> Picker:
        """The picker for a call with hints."""
        picker = self.current
        # Zones and priorities have an order of their own.
        if hints.is_resumable and not hints.keys and not isinstance(picker, Spillover):
            return self.streams.picker
        return PickerForCall(picker, hints) if sees_calls(picker) else picker

    def follow(self) -> None:
        """Adapts to the backends that are ready now."""
        subset = self._connections.subset
        if self._spillover is not None and getattr(subset, "has_priorities", False):
            make, self._spillover = self._spillover, None
            if not isinstance(self.current, Spillover):
                self._replace(make(Random(self._rng.getrandbits(64))))
        self.guests.follow()

    def _replace(self, picker: Picker) -> None:
        self.current = picker
        for part in (self.probing, self.answers, self.guests, self.streams):
            part.serve(picker)

    # --- what they count -------------------------------------------------------

    def inner(self) -> Picker:
        """The picker that was configured: `current`, or the one within spill-over."""
        picker = self.current
        return picker.inner if isinstance(picker, Spillover) else picker

    def each(self) -> tuple[Picker, ...]:
        """The pickers of all zones and priorities; without these, `current` alone."""
        return tuple(getattr(self.current, "pickers", (self.current,)))

    def total(self, name: str) -> int:
        """The sum of the pickers' counts of this name; 0 if they have none."""
        return int(sum(getattr(one, name, 0) for one in self.each()))

    def close(self) -> None:
        self.probing.close()
        self.guests.close()
        self.streams.close()

    def __repr__(self) -> str:
        return f"<{self.current!r}, {self.streams!r}>"
