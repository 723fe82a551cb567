"""Connects to the backends of keys that are outside of the channel's subset.

A picker that knows keys says whom it wants. They are the pool's guests: connected on
demand, up to `max_connections` with the subset, and closed once they have had no call
for `idle_after`. Where there is no room for another, the guest without a call for
longest makes it, if that is at least `STAY`: keys that take turns must not open
connections all the time.
"""

from math import inf

from lbclient.background.tasks import Alarm
from lbclient.client.backends.backend import Backend
from lbclient.client.backends.connections import Connections
from lbclient.client.backends.waking import Waking
from lbclient.client.channel_context import ChannelContext
from lbclient.core.model import Endpoint, Endpoints
from lbclient.core.routing.keyed_picks import Reaching, reaching

STAY = 30.0  # seconds; ours: some picks go elsewhere meanwhile, and none fails
SOON = 0.01  # seconds, in which wishes are collected
LOOKS = 4  # at the use of guests, while one that has no call stays


class Guest:
    """What is known of the use of a backend that was invited."""

    __slots__ = ("started", "used_at")

    def __init__(self, now: float) -> None:
        self.used_at = now
        self.started = 0  # calls that were ever sent there

    def __repr__(self) -> str:
        return f"<{self.started} calls, the last until {self.used_at:.1f}>"


class KeyGuests:
    """Keeps connections to the backends that keys want. Owned by a balancer, which
    calls `follow` when backends may have changed and `serve` for another picker."""

    def __init__(
        self,
        context: ChannelContext,
        connections: Connections,
        waking: Waking,
        picker: object,
    ) -> None:
        config = context.config
        self.guests: dict[str, Guest] = {}  # by address of the task
        self._connections, self._pool = connections, connections.pool
        self._waking = waking
        self._clock = context.clock
        self._idle_after = config.idle_after or inf
        self._most = config.max_connections
        self._wanted: dict[str, None] = {}  # addresses
        self._invite = Alarm(context.tasks, self._invite_wanted)
        self._look = Alarm(context.tasks, self._leave_idle)
        self.serve(picker)

    def serve(self, picker: object) -> None:
        """Connects whom this picker wants from now on."""
        self._known: Endpoints | None = None  # by the picker
        self._picker: Reaching | None = reaching(picker)
        if self._picker is not None:
            self._picker.want = self._want

    def follow(self) -> None:
        """Tells the picker of all members, if there are others than the subset's."""
        if self._picker is None or self._pool.members is self._known:
            return
        self._known = members = self._pool.members
        is_more = len(members) > self._pool.tasks() and self._room() > 0
        self._picker.know(members if is_more else ())

    def _room(self) -> int:
        return self._most - self._pool.subset_size()

    def _want(self, endpoint: Endpoint) -> None:
        """A key's first choice is not ready. In the midst of a pick: nothing is done
        yet."""
        address = endpoint.address
        node = self._pool.nodes.get(address)
        is_there = (
            address in self.guests if node is None else not node.lifecycle.is_away()
        )
        if not is_there and len(self._wanted) < self._most:
            self._wanted[address] = None
            if not self._invite.is_set():
                self._invite.set(SOON)

    def _invite_wanted(self) -> None:
        wanted, self._wanted = self._wanted, {}
        now = self._clock()
        listed = {endpoint.address for endpoint in self._pool.members}
        before = list(self.guests)
        self._note_use(now)
        for address in wanted:
            node = self._pool.nodes.get(address)
            if node is not None:
                self._waking.wake_one(node)
            elif address in listed and self._has_room(now):
                self.guests[address] = Guest(now)
        if list(self.guests) != before:
            self._carry_out(now)

    def _has_room(self, now: float) -> bool:
        """Whether another may come; the one without a call for longest may go."""
        room = self._room()
        if len(self.guests) < room:
            return True
        longest = min(self.guests, key=lambda it: self.guests[it].used_at, default="")
        if room <= 0 or self.guests[longest].used_at > now - STAY:
            return False
        del self.guests[longest]
        return True

    def _carry_out(self, now: float) -> None:
        self._connections.carry_out(self._pool.invite(self.guests, now))
        if self.guests and self._idle_after < inf and not self._look.is_set():
            self._look.set(self._idle_after / LOOKS)

    def _note_use(self, now: float) -> None:
        for node in self._pool.nodes.values():
            guest = self.guests.get(self._pool.task_of(node.endpoint.address))
            if guest is not None:
                _use(guest, node, now)

    def _leave_idle(self) -> None:
        now = self._clock()
        self._note_use(now)
        idle_since = now - self._idle_after
        listed = {endpoint.address for endpoint in self._pool.members}
        staying = {
            address: guest
            for address, guest in self.guests.items()
            if guest.used_at > idle_since and address in listed
        }
        if len(staying) < len(self.guests):
            self.guests = staying
            self._carry_out(now)
        if self.guests:
            self._look.set(self._idle_after / LOOKS)

    def close(self) -> None:
        self._invite.clear()
        self._look.clear()

    def __repr__(self) -> str:
        return f"<{len(self.guests)} guests, {len(self._wanted)} wanted>"


def _use(guest: Guest, node: Backend, now: float) -> None:
    started = node.load.started
    if node.load.in_flight or started != guest.started:
        guest.started, guest.used_at = started, now
