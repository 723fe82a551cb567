"""Limits unary requests in flight to what `core.overload.concurrency` finds useful.

A request begins where its handler is looked up, before it is read. It ends with the
asyncio task in which grpcio serves it. Whoever knows how it ended notes that before, in
the request's context: a request that was refused after all, for instance by a quota,
takes next to no time, and must not look like a quick one. Streams take no place: they
last as long as their clients like.
"""

from asyncio import Task, current_task
from collections.abc import Callable
from contextvars import Context, ContextVar
from functools import partial
from math import inf
from random import Random

from grpc import StatusCode

from lbclient.core.counting.tally import Tally
from lbclient.core.criticality import Criticality
from lbclient.core.overload.admission import Places
from lbclient.core.overload.concurrency import (
    ConcurrencyLimit,
    RequestInFlight,
    RequestOutcome,
)
from lbclient.core.overload.latency_window import MethodBaseline
from lbclient.core.protocols import Clock

MOST_METHODS = 1024  # clients may invent names for a generic handler; others share one

# Share of the limit that is kept for the more critical at most. Ours: with half of it
# kept, what is sheddable leaves places of a small pool idle.
MOST_KEPT = 1 / 3

_request: ContextVar[RequestInFlight | None] = ContextVar(
    "limited request", default=None
)

_OUTCOMES = {
    StatusCode.OK: RequestOutcome.SERVED,
    StatusCode.CANCELLED: RequestOutcome.GIVEN_UP,
    StatusCode.DEADLINE_EXCEEDED: RequestOutcome.GIVEN_UP,
}


def note_status(status: StatusCode, context: Context | None = None) -> None:
    """Notes how the request of this context, or of the given one, ends."""
    note_outcome(_OUTCOMES.get(status, RequestOutcome.FAILED), context)


def note_outcome(outcome: RequestOutcome, context: Context | None = None) -> None:
    request = _request.get() if context is None else context.get(_request)
    if request is not None:
        request.outcome = outcome


class AdaptiveConcurrency:
    """Applies the adaptive concurrency limit to unary requests. Owned by the gate, used
    on the loop's thread only."""

    def __init__(self, clock: Clock, mix: Tally, rng: Random) -> None:
        self._clock = clock
        self._make: Callable[[int], Places] = lambda limit: Places(
            limit, mix, rng, MOST_KEPT
        )
        self._methods: dict[str, MethodBaseline] = {}
        self._others: MethodBaseline | None = None
        self._places: Places | None = None
        self.limit = ConcurrencyLimit()

    def take_time(self, seconds: float) -> None:
        """Takes how long requests have until their deadline, typically."""
        self.limit.take_time(seconds)

    def method(self, path: str) -> MethodBaseline:
        method = self._methods.get(path)
        if method is not None:
            return method
        if len(self._methods) < MOST_METHODS:
            method = self._methods[path] = self.limit.method()
            return method
        self._others = self._others or self.limit.method()
        return self._others

    def refuses(self, method: MethodBaseline, criticality: Criticality) -> bool:
        """Whether the limit has no place for the request that the calling task serves.

        If it has, the request has begun.
        """
        now, limit = self._clock(), self.limit
        most = limit.limit_at(now)
        if (
            most < inf
            and limit.takes_place(method)
            and self._is_full(int(most), criticality)
        ):
            limit.refuse(now)
            return True
        task = current_task()
        assert task is not None
        request = limit.begin(method, now)
        _request.set(request)
        task.add_done_callback(partial(self._ended, request))
        return False

    def _is_full(self, most: int, criticality: Criticality) -> bool:
        places, active = self._places, self.limit.active
        if places is None or places.limit != most:
            places = self._places = self._make(most)
        return places.refuses(criticality, active)

    def _ended(self, request: RequestInFlight, _task: Task[object]) -> None:
        self.limit.end(request, self._clock())

    @property
    def taken(self) -> float:
        """Requests in flight as a share of the limit."""
        return self.limit.active / self.limit.limit

    def signal(self) -> tuple[float, float]:
        """That share, and the share from which on some requests are refused."""
        if not self.limit.is_engaged:
            return 0.0, 1.0
        places = self._make(int(self.limit.limit))
        return self.taken, places.start / places.limit

    def __repr__(self) -> str:
        return repr(self.limit)
