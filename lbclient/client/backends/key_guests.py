"""Connects to the backends of keys that are outside of the channel's subset.

A `ReachingPicker` names the endpoints that it wants. These are the pool's guests: they
are connected on demand, up to `max_connections` with the subset, and closed once they
have had no call for `idle_after`. If there is no room, a new guest replaces the one
that has had no call for longest, if that is at least `STAY`: keys that take turns must
not open connections all the time. Fleets of more than `MOST_MEMBERS`, and those whose
tasks have workers, have no guests: keys stay within the subset.
"""

from math import inf

from lbclient.background.tasks import Alarm
from lbclient.client.backends.backend import Backend
from lbclient.client.backends.connections import Connections
from lbclient.client.backends.waking import Waking
from lbclient.client.channel_context import ChannelContext
from lbclient.core.model import Endpoint, Endpoints, State
from lbclient.core.protocols import ReachingPicker
from lbclient.core.routing.keyed_picks import reaching

STAY = 30.0  # seconds; ours: some picks go elsewhere meanwhile, and none fails
SOON = 0.01  # seconds, in which wishes are collected
MOST_MEMBERS = 2000  # of the fleet; each new key looks at all of them
LOOKS = 4  # at the use of guests, while one that has no call stays


class Guest:
    """When a backend that was invited last had calls."""

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
        self.guests: dict[str, Guest] = {}  # by address
        self._full_until = -inf  # no guest may leave for another before that
        self._connections, self._pool = connections, connections.pool
        self._waking = waking
        self._workers = connections.workers
        self._clock = context.clock
        self._idle_after = config.idle_after or inf
        self._most = config.max_connections
        self._wanted: dict[str, None] = {}  # addresses
        self._invite = Alarm(context.tasks, self._invite_wanted)
        self._look = Alarm(context.tasks, self._leave_idle)
        self.serve(picker)

    def serve(self, picker: object) -> None:
        """Connects what this picker wants from now on, and closes all other guests."""
        self._known: Endpoints | None = None  # what the picker was told last
        self._listed: frozenset[str] = frozenset()  # their addresses
        self._wanted.clear()
        self._picker: ReachingPicker | None = reaching(picker)
        if self._picker is not None:
            self._picker.want = self._want
        self._leave_all()

    def follow(self) -> None:
        """Tells the picker of all members, if the subset does not have them all."""
        if self._picker is None:
            return
        found = self._pool.members if self._may_have_guests() else ()
        if found is not self._known:
            self._known = found
            self._listed = frozenset(endpoint.address for endpoint in found)
            self._full_until = -inf
            self._picker.know(found)
            if not found:
                self._leave_all()

    def _may_have_guests(self) -> bool:
        """Not where tasks have workers: a key's home is a task, of whose workers this
        client would learn only once it is connected."""
        pool = self._pool
        is_more = pool.tasks() < len(pool.members) <= MOST_MEMBERS
        return is_more and self._room() > 0 and not any(self._workers.counts())

    def _room(self) -> int:
        return self._most - self._pool.subset_size()

    def _want(self, endpoint: Endpoint) -> None:
        """A key's first choice is not ready. In the midst of a pick: nothing is done
        yet."""
        address = endpoint.address
        node = self._pool.nodes.get(address)
        if node is not None:
            is_wanted = node.state is State.INACTIVE
        else:
            is_wanted = address in self._listed and self._clock() >= self._full_until
        if is_wanted and len(self._wanted) < self._most:
            self._wanted[address] = None
            if not self._invite.is_set():
                self._invite.set(SOON)

    def _invite_wanted(self) -> None:
        wanted = list(self._wanted)
        self._wanted.clear()
        now, before = self._clock(), list(self.guests)
        self._note_use(now)
        for address in wanted:
            node = self._pool.nodes.get(address)
            if node is not None:
                self._waking.wake_one(node)
            elif address in self._listed and self._has_room(now):
                self.guests[address] = Guest(now)
        if list(self.guests) != before:
            self._carry_out(now)

    def _has_room(self, now: float) -> bool:
        """Whether another may come; the one without a call for longest may go."""
        room = self._room()
        if len(self.guests) < room:
            return True
        if room <= 0:
            return False
        longest = min(self.guests, key=lambda it: self.guests[it].used_at)
        may_leave_at = self.guests[longest].used_at + STAY
        if now < may_leave_at:
            self._full_until = may_leave_at
            return False
        del self.guests[longest]
        return True

    def _carry_out(self, now: float) -> None:
        self._connections.carry_out(self._pool.invite(self.guests, now))
        if self.guests and self._idle_after < inf and not self._look.is_set():
            self._look.set(self._idle_after / LOOKS)

    def _leave_all(self) -> None:
        if self.guests:
            self.guests.clear()
            self._carry_out(self._clock())

    def _note_use(self, now: float) -> None:
        """Notes which guests had calls, and forgets those that are none any more, as
        they are in the subset now, or gone."""
        nodes, guests = self._pool.nodes, self._pool.guests
        self.guests = {
            one: guest for one, guest in self.guests.items() if one in guests
        }
        for address, guest in self.guests.items():
            _use(guest, nodes[address], now)

    def _leave_idle(self) -> None:
        now, before = self._clock(), list(self.guests)
        self._note_use(now)
        idle_since = now - self._idle_after
        self.guests = {
            address: guest
            for address, guest in self.guests.items()
            if guest.used_at > idle_since
        }
        if list(self.guests) != before:
            self._full_until = -inf
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
