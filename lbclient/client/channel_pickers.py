"""The pickers of a channel, and those who go by what they want and count.

One picker is for most calls; it is replaced once endpoints have several priorities.
Another one is for resumable streams. A picker may want probes, be told of answers, or
want backends of keys connected: who sees to that follows the picker that is in use.
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
    """Which picker a call's backend is picked by. Owned by a balancer.

    `current` is that of most calls.
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
        `on_loop` does what another thread asks for."""
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
        """The picker for a call of which something is known."""
        picker = self.current
        # Zones and priorities have an order of their own.
        if hints.is_resumable and not hints.keys and not isinstance(picker, Spillover):
            return self.streams.picker
        return PickerForCall(picker, hints) if sees_calls(picker) else picker

    def follow(self) -> None:
        """The backends that are ready may be others now."""
        if self._spillover is not None:
            self._heed_priorities()
        self.guests.follow()

    def _heed_priorities(self) -> None:
        """Without any there is nothing to do at a pick, so nothing is done."""
        if getattr(self._connections.subset, "has_priorities", False):
            make, self._spillover = self._spillover, None
            if make is not None and not isinstance(self.current, Spillover):
                self.current = make(Random(self._rng.getrandbits(64)))
                for follower in (
                    self.probing,
                    self.answers,
                    self.guests,
                    self.streams,
                ):
                    follower.serve(self.current)

    # --- what they count -------------------------------------------------------

    def inner(self) -> Picker:
        """The picker that was chosen, within spill-over or not."""
        picker = self.current
        return picker.inner if isinstance(picker, Spillover) else picker

    def each(self) -> tuple[Picker, ...]:
        """The pickers of all zones and priorities, or the only one."""
        return tuple(getattr(self.current, "pickers", (self.current,)))

    def total(self, name: str) -> int:
        """What they count by this name, together; 0 where they do not."""
        return int(sum(getattr(one, name, 0) for one in self.each()))

    def close(self) -> None:
        self.probing.close()
        self.guests.close()
        self.streams.close()

    def __repr__(self) -> str:
        return f"<{self.current!r}, {self.streams!r}>"
