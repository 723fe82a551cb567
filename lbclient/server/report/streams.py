"""Who holds a stream of health or load reports, and when each is told next.

Bounded by connection, by server, by how fast streams begin, and by how many reports
are sent a second; the rest is refused and told so. One timer, the sampler's, serves
all: each stream is kept by the tick in which it is due. Streams are woken a few in
each turn of the loop, also for news that all are to hear. A stream whose client reads
slowly is skipped: it sends the latest report when it can, and nobody waits for it.
"""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from itertools import islice
from typing import TypeVar

from lbclient.core.protocols import Clock

TICK = 0.1  # seconds; as often as there is something new to tell: see the sampler
SLICE = 50  # streams that are woken in a turn of the loop; each takes it for 0.05 ms
# Seconds between the reports of a stream. Few, so that the floor below is soon found.
PACES = (
    0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0,
    12.0, 16.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0,
)  # fmt: skip
# Reports a second, for the pace of all streams. One takes 0.05 to 0.07 ms of a
# processor, nearly all of it in grpcio: some 3 %.
REPORTS = 500.0
# Streams of a kind that may begin a second: once as many have begun as may be held,
# and while the task is at half of the load that it refuses at. One takes some 0.4 ms,
# and to refuse one takes half of that.
OPENINGS, OPENINGS_IF_STRAINED = 200.0, 20.0
# What begins an address whose port tells connections apart. All clients of a Unix
# socket are one peer, "unix:", for which there is only the server's bound.
NUMBERED = ("ipv4:", "ipv6:")


K = TypeVar("K")


class StreamKind(Enum):
    HEALTH = "health"  # lbclient.v1.BackendHealth/Watch
    LOAD = "load"  # ORCA's StreamCoreMetrics
    SERVING = "serving"  # grpc.health.v1.Health/Watch: only when something changes


WATCHES = (StreamKind.HEALTH, StreamKind.SERVING)  # an ORCA client looks at no state


class Full(Enum):
    """Why a stream is refused."""

    CONNECTION = "connection"
    SERVER = "server"
    OPENINGS = "openings"
    SLOTS = "slots"


def pace_within(interval: float) -> float:
    """The slowest pace that is no slower, or the fastest.

    >>> pace_within(1.9), pace_within(2.0), pace_within(0.0), pace_within(1e9)
    (1.5, 2.0, 0.1, 3600.0)
    """
    return PACES[max(0, bisect_right(PACES, interval) - 1)]


def pace_beyond(interval: float) -> float:
    """The fastest pace that is no faster, or the slowest.

    >>> pace_beyond(1.9), pace_beyond(2.0), pace_beyond(0.0), pace_beyond(1e9)
    (2.0, 2.0, 0.1, 3600.0)
    """
    return PACES[min(len(PACES) - 1, bisect_left(PACES, interval))]


def floor_of(paced: Mapping[float, int]) -> float:
    """The least seconds between two reports of a stream, so that all of them together
    send at most `REPORTS` a second.

    `paced` counts the streams by their pace; slower ones keep theirs. 0.0 if the
    streams keep to the rate anyway.

    >>> floor_of({1.0: 500}), floor_of({1.0: 1000}), floor_of({0.1: 500, 60.0: 600})
    (0.0, 2.0, 1.0204081632653061)
    """
    rest = sum(count / pace for pace, count in paced.items())
    if rest <= REPORTS:
        return 0.0
    floor, held = 0.0, 0
    for pace in sorted(paced):
        if floor and floor <= pace:
            break  # this one and what follows are slower anyway
        rest -= paced[pace] / pace
        held += paced[pace]
        floor = held / (REPORTS - rest) if rest < REPORTS else 0.0
    return floor


class Stream:
    """A stream that was let in. `due_at` and `tick` are written by `ReportStreams`."""

    __slots__ = ("_is_due", "_next", "due_at", "kind", "pace", "peer", "tick")

    def __init__(self, kind: StreamKind, peer: str, pace: float, now: float) -> None:
        self.kind = kind
        self.peer = peer
        self.pace = pace  # 0.0: it is told when something changes, and only then
        self.due_at = now
        self.tick = 0  # in which it is due, in numbers of TICK
        self._is_due = False
        self._next: asyncio.Future[None] | None = None

    async def due(self) -> None:
        """Waits until there is something to tell; it may have come up meanwhile."""
        if not self._is_due:
            self._next = asyncio.get_running_loop().create_future()
            await self._next
        self._is_due = False

    def wake(self) -> None:
        self._is_due = True
        if self._next is not None and not self._next.done():
            self._next.set_result(None)


class Openings:
    """How fast streams of a kind may begin."""

    __slots__ = ("_filled_at", "_left", "_most")

    def __init__(self, most: int, now: float) -> None:
        self._left = self._most = float(most)
        self._filled_at = now

    def has_one(self, now: float, is_strained: bool) -> bool:
        rate, most = OPENINGS, self._most
        if is_strained:
            rate, most = OPENINGS_IF_STRAINED, min(most, OPENINGS_IF_STRAINED)
        earned = max(0.0, now - self._filled_at) * rate
        self._left = min(self._left + earned, most)
        self._filled_at = now
        return self._left >= 1.0

    def spend(self) -> None:
        self._left -= 1.0


class ReportStreams:
    """Limits the streams of health and load reports, and says when each is due. Owned
    by the server, used on its loop's thread only.

    At most `most` streams are open at a time, and `per_connection` of each kind on a
    connection. 0: none, where calls need the few streams that a connection may have.
    """

    def __init__(
        self,
        most: int,
        per_connection: int,
        clock: Clock,
        is_strained: Callable[[], bool],
    ) -> None:
        self.held = dict.fromkeys(StreamKind, 0)
        self.refused = dict.fromkeys(Full, 0)
        self.floor = 0.0  # seconds between reports, at least; as of the last tick
        self.most = most
        self.per_connection = per_connection
        self._clock = clock
        self._is_strained = is_strained
        self._openings = {kind: Openings(most, clock()) for kind in StreamKind}
        self._all: dict[Stream, None] = {}
        self._on: dict[tuple[str, StreamKind], int] = {}  # by connection
        # By connection, those by which its client hears that this task leaves.
        self.watched: dict[str, int] = {}
        self._paced: dict[float, int] = {}
        self._by_tick: dict[int, dict[Stream, None]] = {}
        self._to_wake: dict[Stream, None] = {}
        self._is_waking = False

    def __len__(self) -> int:
        return len(self._all)

    # Who gets in

    def closed_to(self, kind: StreamKind) -> Full | None:
        """Why no stream of this kind may begin now, or None. Counts the refusal.

        Many may ask before the first of them enters, so `enter` asks again.
        """
        if not self.per_connection:
            return self._refuse(Full.SLOTS)
        if len(self._all) >= self.most:
            return self._refuse(Full.SERVER)
        # gRPC clients stop health checking after UNIMPLEMENTED, so SERVING streams are
        # exempt from the strained rate.
        is_strained = kind is not StreamKind.SERVING and self._is_strained()
        if not self._openings[kind].has_one(self._clock(), is_strained):
            return self._refuse(Full.OPENINGS)
        return None

    def enter(self, kind: StreamKind, peer: str, pace: float) -> Stream | Full:
        """Lets a stream in, or returns why it is refused. The caller must call `leave`.

        The first report is to be sent at once. `pace`: one of PACES, or 0.0.
        """
        if (reason := self.closed_to(kind)) is not None:
            return reason
        if peer.startswith(NUMBERED):
            on = (peer, kind)
            held = self._on.get(on, 0)
            if held >= self.per_connection:
                return self._refuse(Full.CONNECTION)
            self._on[on] = held + 1
        self._openings[kind].spend()
        stream = Stream(kind, peer, pace, self._clock())
        self._all[stream] = None
        self.held[kind] += 1
        if kind in WATCHES:
            self.watched[peer] = self.watched.get(peer, 0) + 1
        if pace:
            self._paced[pace] = self._paced.get(pace, 0) + 1
            self._schedule(stream, stream.due_at)
        return stream

    def leave(self, stream: Stream) -> None:
        del self._all[stream]
        self.held[stream.kind] -= 1
        _less(self._on, (stream.peer, stream.kind))
        if stream.kind in WATCHES:
            _less(self.watched, stream.peer)
        _less(self._paced, stream.pace)
        self._to_wake.pop(stream, None)
        same_tick = self._by_tick.get(stream.tick, {})
        same_tick.pop(stream, None)
        if not same_tick:
            self._by_tick.pop(stream.tick, None)

    def _refuse(self, reason: Full) -> Full:
        self.refused[reason] += 1
        return reason

    # When they are told

    def tick(self, now: float) -> None:
        """Wakes who is due; to be called every TICK, when there is a new report."""
        self.floor = floor_of(self._paced)
        late = [tick for tick in self._by_tick if tick <= int(now / TICK)]
        due = [stream for tick in late for stream in self._by_tick.pop(tick)]
        for stream in due:
            self._schedule(stream, now)
        self._wake(due)

    def push(self, kind: StreamKind | None = None) -> None:
        """Wakes all, or all of one kind: they have something to tell."""
        self._wake(one for one in self._all if kind is None or one.kind is kind)

    def _schedule(self, stream: Stream, now: float) -> None:
        every = max(stream.pace, self.floor)
        stream.due_at += every
        if stream.due_at <= now:
            stream.due_at = now + every
        stream.tick = int(stream.due_at / TICK)
        self._by_tick.setdefault(stream.tick, {})[stream] = None

    def _wake(self, streams: Iterable[Stream]) -> None:
        self._to_wake.update(dict.fromkeys(streams))
        if not self._is_waking:
            self._wake_some()

    def _wake_some(self) -> None:
        for stream in list(islice(self._to_wake, SLICE)):
            del self._to_wake[stream]
            stream.wake()
        self._is_waking = bool(self._to_wake)
        if self._is_waking:
            asyncio.get_running_loop().call_soon(self._wake_some)

    def __repr__(self) -> str:
        held = ", ".join(f"{held} {kind.value}" for kind, held in self.held.items())
        return f"<{held} streams>"


def _less(counts: dict[K, int], key: K) -> None:
    """Decrements a count, and removes it at 0."""
    left = counts.get(key, 0) - 1
    if left > 0:
        counts[key] = left
    else:
        counts.pop(key, None)
