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
MOST_STRAYS = 200  # streams with keys whose homes are looked up in one look: 2 ms
SETTLED = 3.0  # seconds that a stream with a key is open before it is sent home


class StreamCall(Protocol):
    """A call with a response stream. `on_move` tells the application to move it; the
    identity of `counts` stands for its method, as in `Outliers`."""

    counts: dict[int, int]

    @property
    def on_move(self) -> OnMove | None: ...


class OpenStream:
    """A resumable stream; `is_bound` to a backend by a key. Refers to its call weakly:
    a caller that drops the call ends the stream."""

    __slots__ = (
        "asked_at", "call", "group", "hints", "is_bound", "method", "opened_at",
    )  # fmt: skip

    def __init__(
        self,
        call: StreamCall,
        group: "StreamGroup",
        hints: CallHints | None,
        opened_at: float,
    ) -> None:
        self.call = weakref.ref(call)
        self.group = group
        self.method = id(call.counts)
        self.hints = hints
        self.is_bound = hints is not None and bool(hints.keys)
        self.opened_at = opened_at
        self.asked_at: float | None = None


class StreamGroup:
    """The streams to one backend, oldest first, that began while it had one connection.

    `going` of them were asked to move and are still open. `movable` can be asked: they
    are not going and have no key. `leaves`: the backend leaves and will end them.
    """

    __slots__ = ("_ended", "backend", "going", "leaves", "movable", "streams")

    def __init__(self, backend: "Backend") -> None:
        self.backend, self._ended = backend, backend.ended_connections()
        self.streams: dict[OpenStream, None] = {}
        self.going = self.movable = 0
        self.leaves = False

    def outlived_connection(self) -> bool:
        """Whether the connection takes no new calls, and will end."""
        return self.backend.ended_connections() != self._ended

    def take_over(self, other: "StreamGroup") -> None:
        """Counts the streams of another one as its own."""
        for stream in other.streams:
            stream.group = self
        self.streams = other.streams | self.streams
        self.going += other.going
        self.movable += other.movable


class ResumableStreams:
    """Asks the resumable streams of a channel to move. Owned by a balancer.

    `picker` picks for streams without a key. `count` is the number of open streams, and
    `asked` how often one was asked to move.
    """

    def __init__(
        self,
        context: ChannelContext,
        connections: Connections,
        outliers: Outliers["Backend"],
        picker: object,
        on_loop: Callable[..., None],
    ) -> None:
        """`picker` is the channel's, which may know the homes of keys. `on_loop` calls
        a function on the loop's thread, in which this is made."""
        config, rng = context.config, context.rng
        self.picker = FewestStreams(rng, config.slow_start, self._own)
        self.count = self.asked = 0
        self._moves: StreamMoves[Backend | StreamGroup] = StreamMoves(
            rng, config.stream_move_rate, context.clock()
        )
        # Streams with keys, the one that was looked at last at the end.
        self._bound: dict[OpenStream, None] = {}
        self.serve(picker)
        self._thread, self._on_loop = get_ident(), on_loop
        self._connections = connections
        self._outliers = outliers
        self._clock = context.clock
        self._label = context.label
        self._rng = rng
        self._open: dict[Node, StreamGroup] = {}
        # Their connection has ended; the backend may have another, or refuse one.
        self._left: dict[StreamGroup, None] = {}
        self._methods = Counter[int]()  # open streams by `OpenStream.method`
        self._going: dict[OpenStream, None] = {}  # in the order of being asked
        self._has_failed = False
        self._look = Alarm(context.tasks, self._look_at_all)

    def serve(self, picker: object) -> None:
        """Uses this picker of the channel from now on."""
        self._home_of = home_of(picker)
        if self._home_of is None:
            self._bound.clear()

    def begun(
        self, call: StreamCall, backend: "Backend", inner: Any, hints: CallHints | None
    ) -> None:
        """A stream is on its way to a backend; `inner` is grpc.aio's call."""
        group = self._open.get(backend)
        if group is not None and group.outlived_connection():
            self._left[group], group = None, None
        if group is None:
            group = self._open[backend] = StreamGroup(backend)
        stream = OpenStream(call, group, hints, self._clock())
        group.streams[stream] = None
        group.movable += not stream.is_bound
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
        group = stream.group
        del group.streams[stream]
        self._bound.pop(stream, None)
        self.count -= 1
        self._methods[stream.method] -= 1
        if not self._methods[stream.method]:
            del self._methods[stream.method]
        if stream.asked_at is None:
            group.movable -= not stream.is_bound
        else:
            self._forget_going(stream)
        if not group.streams:
            self._left.pop(group, None)
            if self._open.get(backend) is group:
                del self._open[backend]

    def _forget_going(self, stream: OpenStream) -> None:
        """A stream that was asked to move is over, or stays where it is."""
        if stream in self._going:
            del self._going[stream]
            stream.group.going -= 1

    def _own(self, node: Node) -> tuple[int, int]:
        """This client's streams on a backend, and those of them that can be asked."""
        group = self._open.get(node)
        if group is None:
            return 0, 0
        return len(group.streams) - group.going, group.movable

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
            group = key if isinstance(key, StreamGroup) else self._open.get(key)
            if group is not None:
                self._ask_some(group, count, leaves=not seen[key].worth, now=now)
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
        return home is not None and home is not stream.group.backend

    def _seen(self, now: float) -> dict["Backend | StreamGroup", BackendStreams]:
        pool = self._connections.pool
        self._find_left(pool.nodes.values())
        staying = tuple(
            node
            for node in pool.nodes.values()
            if pool.takes(node)
            and not any(self._outliers.is_ejected(key, node) for key in self._methods)
        )
        even = self.picker.look(staying, now) if staying else {}
        seen: dict[Backend | StreamGroup, BackendStreams] = dict(even.items())
        for backend in (*pool.nodes.values(), *self._connections.draining.values()):
            leaves = _leaves(backend)
            if leaves or self._connections.is_draining(backend):
                seen[backend] = _of_leaving(self._open.get(backend), leaves)
        for group in self._left:
            if group.leaves:
                seen[group] = _of_leaving(group, leaves=True)
        return seen

    def _find_left(self, backends: Collection["Backend"]) -> None:
        """Tells streams whose backend leaves, or has been replaced at its address, from
        those whose connection is merely renewed: a proxy does that all the time."""
        for key, group in list(self._open.items()):
            group.leaves = _leaves(group.backend)
            if group.outlived_connection():
                self._left[self._open.pop(key)] = None
        for group in list(self._left):
            backend = group.backend
            is_back = backend.state is State.READY
            stays = backend in backends and (is_back or _renews(backend))
            group.leaves = group.leaves or not stays
            if is_back and not group.leaves:
                del self._left[group]
                new = StreamGroup(group.backend)
                self._open.setdefault(group.backend, new).take_over(group)

    def _ask_some(
        self, group: StreamGroup, count: int, leaves: bool, now: float
    ) -> None:
        for stream in list(group.streams):
            if count <= 0:
                return
            if stream not in group.streams:
                continue  # ended by the application, as another one was asked
            if stream.asked_at is None and (leaves or not stream.is_bound):
                count -= 1
                self._ask(stream, now)

    def _ask(self, stream: OpenStream, now: float) -> None:
        stream.asked_at = now
        self._going[stream] = None
        stream.group.going += 1
        stream.group.movable -= not stream.is_bound
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


def _leaves(backend: "Backend") -> bool:
    return backend.state is State.LAME_DUCK and not _renews(backend)


def _renews(backend: "Backend") -> bool:
    """Whether it ended its connection, and a new one has neither come nor failed."""
    return backend.lifecycle.is_expected_back()


def _of_leaving(group: StreamGroup | None, leaves: bool) -> BackendStreams:
    """Streams with a key can be asked, too: another backend is its home now."""
    if group is None:
        return BackendStreams(0, 0, worth=0.0, leaves=leaves)
    own = len(group.streams) - group.going
    movable = sum(one.asked_at is None for one in group.streams)
    return BackendStreams(own, movable, worth=0.0, leaves=leaves)
