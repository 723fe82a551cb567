"""Asks resumable streams to move: those of backends that have too many, or that leave.

Which and how many decides `core.routing.stream_moves`. Here is who they are, and the
look, about once a second, while there are any. The application ends a stream that was
asked and opens another, which is picked anew.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from itertools import islice
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

from lbclient.background.tasks import Alarm, is_fatal
from lbclient.client.backends.connections import Connections
from lbclient.client.channel_context import ChannelContext
from lbclient.core.backoff import Backoff
from lbclient.core.call_hints import CallHints
from lbclient.core.model import State
from lbclient.core.outliers.outliers import Outliers
from lbclient.core.protocols import Node
from lbclient.core.resumable import OnMove
from lbclient.core.routing.keyed_picks import home_of
from lbclient.core.routing.stream_moves import BackendStreams, StreamMoves
from lbclient.log import Log
from lbclient.pickers.fewest_streams import FewestStreams

if TYPE_CHECKING:
    from lbclient.client.backends.backend import Backend

logger = Log("lbclient.balancer")  # as documented, for the whole channel

LOOKS = Backoff(1.0, 1.0, jitter=0.25)  # seconds between two looks
# Seconds that the application has to end a stream; then it counts as one that stays.
PATIENCE = 30.0
MOST_STRAYS = 200  # streams with keys that a look finds the homes of: some 2 ms
SETTLED = 3.0  # seconds that one is open before it is sent home


class StreamCall(Protocol):
    """What is asked of a call: whom it tells that it should move, and the counts of its
    method, by which outliers know that."""

    counts: dict[int, int]

    @property
    def on_move(self) -> OnMove | None: ...


class OpenStream:
    """A resumable stream. Its call is not kept: who drops it ends it."""

    __slots__ = ("asked_at", "call", "hints", "home", "is_bound", "method", "opened_at")

    def __init__(
        self,
        call: StreamCall,
        home: "_OnBackend",
        hints: CallHints | None,
        opened_at: float,
    ) -> None:
        self.call = weakref.ref(call)
        self.home = home
        self.method = id(call.counts)
        self.hints = hints
        self.is_bound = hints is not None and bool(hints.keys)  # by a key
        self.opened_at = opened_at
        self.asked_at: float | None = None


class _OnBackend:
    """The streams of one backend, oldest first. `going` were asked and are not gone,
    and `movable` can be asked: all but these and those with a key. Of a backend that
    `leaves` they will be ended."""

    __slots__ = ("_ended", "backend", "going", "leaves", "movable", "streams")

    def __init__(self, backend: "Backend") -> None:
        self.backend, self._ended = backend, backend.ended_connections()
        self.streams: dict[OpenStream, None] = {}
        self.going = self.movable = 0
        self.leaves = False

    def outlived_connection(self) -> bool:
        """Whether their connection has ended for new calls, and soon for them."""
        return self.backend.ended_connections() != self._ended

    def take_over(self, other: "_OnBackend") -> None:
        """Counts the streams of another one as its own."""
        for stream in other.streams:
            stream.home = self
        self.streams = other.streams | self.streams
        self.going += other.going
        self.movable += other.movable


class ResumableStreams:
    """The resumable streams of a channel. Owned by a balancer.

    `picker` is for those without keys. `count` is how many there are, and `asked` how
    often one was asked to move.
    """

    def __init__(
        self,
        context: ChannelContext,
        connections: Connections,
        outliers: Outliers["Backend"],
        picker: object,
        on_loop: Callable[..., None],
    ) -> None:
        """`picker` is the channel's, which may know the homes of keys. `on_loop` does
        what another thread asks for. Made in the loop's thread."""
        config, rng = context.config, context.rng
        self.picker = FewestStreams(rng, config.slow_start, self._own)
        self.count = self.asked = 0
        self._moves: StreamMoves[Backend | _OnBackend] = StreamMoves(
            rng, config.stream_move_rate, context.clock()
        )
        self._bound: dict[OpenStream, None] = {}  # with keys; who was looked at is last
        self.serve(picker)
        self._thread, self._on_loop = get_ident(), on_loop
        self._connections = connections
        self._outliers = outliers
        self._clock = context.clock
        self._label = context.label
        self._rng = rng
        self._open: dict[Node, _OnBackend] = {}
        # They outlived their connection; the backend may have another, or refuse one.
        self._left: dict[_OnBackend, None] = {}
        self._methods = Counter[int]()  # of those that are open
        self._going: dict[OpenStream, None] = {}  # asked, in this order, and not gone
        self._has_failed = False
        self._look = Alarm(context.tasks, self._look_at_all)

    def serve(self, picker: object) -> None:
        """Another picker is the channel's from now on."""
        self._home_of = home_of(picker)
        if self._home_of is None:
            self._bound.clear()

    def begun(
        self, call: StreamCall, backend: "Backend", inner: Any, hints: CallHints | None
    ) -> None:
        """A stream is on its way to a backend; `inner` is grpc.aio's call."""
        found = self._open.get(backend)
        if found is not None and found.outlived_connection():
            self._left[found], found = None, None
        if found is None:
            found = self._open[backend] = _OnBackend(backend)
        stream = OpenStream(call, found, hints, self._clock())
        found.streams[stream] = None
        found.movable += not stream.is_bound
        if stream.is_bound and self._home_of is not None:
            self._bound[stream] = None
        self._methods[stream.method] += 1
        self.count += 1
        inner.add_done_callback(partial(self._over, stream, backend))
        if not self._look.is_set():
            self._look.set(LOOKS.varied(LOOKS.first, self._rng))

    def _over(self, stream: OpenStream, backend: "Backend", inner: Any) -> None:
        if get_ident() != self._thread:
            self._on_loop(self._over, stream, backend, inner)
            return
        found = stream.home
        del found.streams[stream]
        self._bound.pop(stream, None)
        self.count -= 1
        self._methods[stream.method] -= 1
        if not self._methods[stream.method]:
            del self._methods[stream.method]
        if stream.asked_at is None:
            found.movable -= not stream.is_bound
        else:
            self._forget_going(stream)
        if not found.streams:
            self._left.pop(found, None)
            if self._open.get(backend) is found:
                del self._open[backend]

    def _forget_going(self, stream: OpenStream) -> None:
        """It has gone, or it stays."""
        if stream in self._going:
            del self._going[stream]
            stream.home.going -= 1

    def _own(self, node: Node) -> tuple[int, int]:
        """This client's streams on a backend, and those of them that can be asked."""
        found = self._open.get(node)
        if found is None:
            return 0, 0
        return len(found.streams) - found.going, found.movable

    # --- who is asked -------------------------------------------------------------

    def _look_at_all(self) -> None:
        if not self.count:
            return
        self._look.set(LOOKS.varied(LOOKS.first, self._rng))
        now = self._clock()
        for stream in list(self._going):
            asked_at = stream.asked_at
            if asked_at is not None and now - asked_at >= PATIENCE:
                self._forget_going(stream)
        seen = self._seen(now)
        asked = self._moves.to_ask(seen, len(self._going), now)
        for key, count in asked.items():
            found = key if isinstance(key, _OnBackend) else self._open.get(key)
            if found is not None:
                self._ask_some(found, count, leaves=not seen[key].worth, now=now)
        self._send_home(now)

    def _send_home(self, now: float) -> None:
        """Asks streams whose key has another home than where they are."""
        room = self._moves.room() if self._bound else 0
        if room <= 0 or self._home_of is None:
            return
        for stream in list(islice(self._bound, MOST_STRAYS)):
            if stream not in self._bound:
                continue  # ended by the application, as another one was asked
            if self._is_stray(stream, now):
                self._ask(stream, now)
                room -= 1
                if not room:
                    return
            else:
                del self._bound[stream]
                self._bound[stream] = None

    def _is_stray(self, stream: OpenStream, now: float) -> bool:
        assert self._home_of is not None
        assert stream.hints is not None
        if stream.asked_at is not None or now - stream.opened_at < SETTLED:
            return False
        ready = self._outliers.allowed(stream.method)
        home = self._home_of(stream.hints, ready, now) if ready else None
        return home is not None and home is not stream.home.backend

    def _seen(self, now: float) -> dict["Backend | _OnBackend", BackendStreams]:
        pool = self._connections.pool
        self._find_left(pool.nodes.values())
        staying = tuple(
            node
            for node in pool.nodes.values()
            if pool.takes(node)
            and not any(self._outliers.is_ejected(key, node) for key in self._methods)
        )
        even = self.picker.look(staying, now) if staying else {}
        seen: dict[Backend | _OnBackend, BackendStreams] = dict(even.items())
        for backend in (*pool.nodes.values(), *self._connections.draining.values()):
            leaves = backend.state is State.LAME_DUCK
            if leaves or self._connections.is_draining(backend):
                seen[backend] = _of_leaving(self._open.get(backend), leaves)
        for home in self._left:
            seen[home] = _of_leaving(home, leaves=True)
        return seen

    def _find_left(self, backends: Collection["Backend"]) -> None:
        """Tells streams whose backend leaves, or has been replaced at its address, from
        those whose connection was merely renewed: a proxy does that all the time."""
        for key, home in list(self._open.items()):
            home.leaves = home.backend.state is State.LAME_DUCK
            if home.outlived_connection():
                self._left[self._open.pop(key)] = None
        for home in list(self._left):
            is_back = home.backend in backends and home.backend.state is State.READY
            home.leaves = home.leaves or not is_back
            if not home.leaves:
                del self._left[home]
                found = self._open.setdefault(home.backend, _OnBackend(home.backend))
                found.take_over(home)

    def _ask_some(
        self, found: _OnBackend, count: int, leaves: bool, now: float
    ) -> None:
        for stream in list(found.streams):
            if count <= 0:
                return
            if stream not in found.streams:
                continue  # ended by the application, as another one was asked
            if stream.asked_at is None and (leaves or not stream.is_bound):
                count -= 1
                self._ask(stream, now)

    def _ask(self, stream: OpenStream, now: float) -> None:
        stream.asked_at = now
        self._going[stream] = None
        stream.home.going += 1
        stream.home.movable -= not stream.is_bound
        self._bound.pop(stream, None)
        self.asked += 1
        call = stream.call()
        on_move = None if call is None else call.on_move
        if on_move is None:
            return
        try:
            on_move()
        except BaseException as error:  # of the application
            if is_fatal(error):
                raise
            if not self._has_failed:
                self._has_failed = True
                words = "%s: an on_move of `resumable` raised; its stream stays"
                label = self._label
                logger.exception(words, label, channel=label, reason=error)

    def close(self) -> None:
        self._look.clear()

    def __repr__(self) -> str:
        return f"<{self.count} resumable streams, {self.asked} asked to move>"


def _of_leaving(found: _OnBackend | None, leaves: bool) -> BackendStreams:
    """Those with a key can be asked, too: it has another backend now."""
    if found is None:
        return BackendStreams(0, 0, worth=0.0, leaves=leaves)
    own = len(found.streams) - found.going
    movable = sum(one.asked_at is None for one in found.streams)
    return BackendStreams(own, movable, worth=0.0, leaves=leaves)
