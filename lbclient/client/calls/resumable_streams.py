"""Asks resumable streams to move: those of backends that have too many, or that leave.

Which and how many decides `core.routing.stream_moves`. Here is who they are, and the
look, about once a second, while there are any. The application ends a stream that was
asked and opens another, which is picked anew.
"""

import weakref
from collections import Counter
from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

from lbclient.background.tasks import Alarm, is_fatal
from lbclient.client.backends.connections import Connections
from lbclient.client.channel_context import ChannelContext
from lbclient.core.backoff import Backoff
from lbclient.core.model import State
from lbclient.core.outliers.outliers import Outliers
from lbclient.core.protocols import Node
from lbclient.core.resumable import OnMove
from lbclient.core.routing.stream_moves import BackendStreams, StreamMoves
from lbclient.log import Log
from lbclient.pickers.fewest_streams import FewestStreams

if TYPE_CHECKING:
    from lbclient.client.backends.backend import Backend

logger = Log("lbclient.balancer")  # as documented, for the whole channel

LOOKS = Backoff(1.0, 1.0, jitter=0.25)  # seconds between two looks
# Seconds that the application has to end a stream; then it counts as one that stays.
PATIENCE = 30.0


class StreamCall(Protocol):
    """What is asked of a call: whom it tells that it should move, and the counts of its
    method, by which outliers know that."""

    counts: dict[int, int]

    @property
    def on_move(self) -> OnMove | None: ...


class OpenStream:
    """A resumable stream on a backend. Its call is not kept: who drops it ends it."""

    __slots__ = ("asked_at", "backend", "call", "is_bound", "method")

    def __init__(self, call: StreamCall, backend: "Backend", is_bound: bool) -> None:
        self.call = weakref.ref(call)
        self.backend = backend
        self.method = id(call.counts)
        self.is_bound = is_bound  # by a key
        self.asked_at: float | None = None


class _OnBackend:
    """The streams of one backend, oldest first. `going` were asked and are not gone,
    and `movable` can be asked: all but these and those with a key."""

    __slots__ = ("going", "movable", "streams")

    def __init__(self) -> None:
        self.streams: dict[OpenStream, None] = {}
        self.going = self.movable = 0


NONE = _OnBackend()


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
        on_loop: Callable[..., None],
    ) -> None:
        """`on_loop` does what another thread asks for. Made in the loop's thread."""
        config, rng = context.config, context.rng
        self.picker = FewestStreams(rng, config.slow_start, self._own)
        self.count = self.asked = 0
        self._moves: StreamMoves[Backend] = StreamMoves(
            rng, config.stream_move_rate, context.clock()
        )
        self._thread, self._on_loop = get_ident(), on_loop
        self._connections = connections
        self._outliers = outliers
        self._clock = context.clock
        self._label = context.label
        self._rng = rng
        self._open: dict[Node, _OnBackend] = {}
        self._methods = Counter[int]()  # of those that are open
        self._going: dict[OpenStream, None] = {}  # asked, in this order, and not gone
        self._has_failed = False
        self._look = Alarm(context.tasks, self._look_at_all)

    def begun(
        self, call: StreamCall, backend: "Backend", inner: Any, keyed: bool
    ) -> None:
        """A stream is on its way to a backend; `inner` is grpc.aio's call."""
        stream = OpenStream(call, backend, keyed)
        found = self._open.get(backend)
        if found is None:
            found = self._open[backend] = _OnBackend()
        found.streams[stream] = None
        found.movable += not keyed
        self._methods[stream.method] += 1
        self.count += 1
        inner.add_done_callback(partial(self._over, stream))
        if not self._look.is_set():
            self._look.set(LOOKS.varied(LOOKS.first, self._rng))

    def _over(self, stream: OpenStream, inner: Any) -> None:
        if get_ident() != self._thread:
            self._on_loop(self._over, stream, inner)
            return
        found = self._open[stream.backend]
        del found.streams[stream]
        self.count -= 1
        self._methods[stream.method] -= 1
        if not self._methods[stream.method]:
            del self._methods[stream.method]
        if stream.asked_at is None:
            found.movable -= not stream.is_bound
        else:
            self._forget_going(stream)
        if not found.streams:
            del self._open[stream.backend]

    def _forget_going(self, stream: OpenStream) -> None:
        """It has gone, or it stays."""
        if stream in self._going:
            del self._going[stream]
            self._open[stream.backend].going -= 1

    def _own(self, node: Node) -> tuple[int, int]:
        """This client's streams on a backend, and those of them that can be asked."""
        found = self._open.get(node, NONE)
        return len(found.streams) - found.going, found.movable

    # --- who is asked -------------------------------------------------------------

    def _look_at_all(self) -> None:
        if not self._open:
            return
        self._look.set(LOOKS.varied(LOOKS.first, self._rng))
        now = self._clock()
        for stream in list(self._going):
            asked_at = stream.asked_at
            if asked_at is not None and now - asked_at >= PATIENCE:
                self._forget_going(stream)
        asked = self._moves.to_ask(self._seen(now), len(self._going), now)
        for backend, count in asked.items():
            self._ask_some(backend, count, now)

    def _seen(self, now: float) -> dict["Backend", BackendStreams]:
        pool = self._connections.pool
        staying = tuple(
            node
            for node in pool.nodes.values()
            if pool.takes(node)
            and not any(self._outliers.is_ejected(key, node) for key in self._methods)
        )
        seen = self.picker.look(staying, now) if staying else {}
        for backend in (*pool.nodes.values(), *self._connections.draining.values()):
            if backend.state is State.LAME_DUCK:
                own, movable = self._own_of_leaving(backend)
                seen[backend] = BackendStreams(own, movable, worth=0.0, leaves=True)
            elif self._connections.is_draining(backend):
                own, movable = self._own_of_leaving(backend)
                seen[backend] = BackendStreams(own, movable, worth=0.0)
        return seen

    def _own_of_leaving(self, backend: "Backend") -> tuple[int, int]:
        """Those with a key can be asked, too: it has another backend now."""
        own, _ = self._own(backend)
        streams = self._open.get(backend, NONE).streams
        return own, sum(one.asked_at is None for one in streams)

    def _ask_some(self, backend: "Backend", count: int, now: float) -> None:
        leaves = backend.state is State.LAME_DUCK
        leaves = leaves or self._connections.is_draining(backend)
        found = self._open.get(backend, NONE)
        for stream in list(found.streams):
            if count <= 0:
                return
            if stream.asked_at is None and (leaves or not stream.is_bound):
                count -= 1
                stream.asked_at = now
                self._going[stream] = None
                found.going += 1
                found.movable -= not stream.is_bound
                self.asked += 1
                self._ask(stream)

    def _ask(self, stream: OpenStream) -> None:
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
