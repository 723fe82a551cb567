"""An adaptive concurrency limit, for handlers that share a pool, say of connections.

A pool of 8 connections serves 8 requests at a time, whatever is in flight. The others
queue in the pool, and under overload all of them end late. Little's law gives the size
of the pool from outside (see `latency_window`), from two latencies: the
one while the pool is full, which windows measure, and the baseline, which probes
measure. A probe lowers the limit until the queue has drained and a few requests have
found a free place.

There is no limit at first. Once requests take twice their baseline the limit verifies:
a probe measures the baselines anew. Until it has begun, no more are in flight than can
be served in time. If requests did queue, the pool's size is known.
From then on each window corrects it, and a short probe every 2 s the baselines.

Sources: BBR (ACM Queue, 2016), whose two figures need different loads, too; Envoy's
adaptive_concurrency filter, whose minRTT is our baseline.
"""

from dataclasses import dataclass
from enum import Enum, auto
from math import inf

from lbclient.core.backoff import Backoff
from lbclient.core.overload.deadlines import ASSUMED
from lbclient.core.overload.latency_probe import LatencyProbe
from lbclient.core.overload.latency_window import LatencyWindow, MethodBaseline


@dataclass(frozen=True, slots=True)
class ConcurrencyTuning:
    """The numbers of `ConcurrencyLimit`. Ours, but for `first_places`;
    tests/laws/test_concurrency.py plays them."""

    # limit / places. Some requests must queue, so that a place that becomes free is
    # taken at once. Ours, from tests/laws/test_concurrency.py: with 8 places and
    # Poisson arrivals at twice the capacity, 1.35 keeps 98 % of the places busy.
    headroom: float = 1.35

    # Without a limit.
    crowd: int = 32  # requests in flight, below which there is no need of one
    queued: float = 2.0  # latency / baseline, beyond which requests may queue

    # Until a probe has told whether they do, no more are in flight than are served in
    # this part of the time that requests have. If they queue, the others would end too
    # late, and the probe would have to wait for them.
    in_time: float = 0.5

    # With a limit.
    gain: float = 0.2  # weight of a window's estimate

    # A window's estimate / places. Twice beyond these, the pool has been resized, or
    # the baselines are wrong. One that grew shows less: the limit hides all further
    # places.
    shrunk: float = 0.75
    grown: float = 1.15

    # Of the places, at most: all requests of a probe find one, and few places are idle.
    # Estimates that are too high by up to 1/7 do no harm. Ours, from
    # tests/laws/test_concurrency.py: with 8 places at twice the capacity 3/4 left 1.3 %
    # of the throughput unused.
    probe_limit: float = 0.875

    # Verification. It knows no size yet. If there seem to be no more places than in
    # flight, these requests may have queued themselves: the next probe has half as
    # many.
    verify_limit: int = 8  # requests in flight
    clearly_more: float = 2.0  # places / requests in flight; windows of a flood err
    # Places, at least, of a first limit; Envoy's min_concurrency
    first_places: float = 3.0

    # Seconds. Requests that take longer, such as long polls, take no place: where they
    # wait there is room for all of them, and a probe cannot wait for their end.
    long_request: float = 10.0


TUNING = ConcurrencyTuning()
RESTS = Backoff(2.0, 600.0)  # seconds after a verification that failed


class RequestOutcome(Enum):
    SERVED = auto()
    GIVEN_UP = auto()  # by its client or at its deadline, with or without a place
    FAILED = auto()  # perhaps at once, as if refused: its latency says nothing


@dataclass(slots=True, eq=False)
class RequestInFlight:
    """A request in flight. Whoever ends it sets `outcome`."""

    method: MethodBaseline
    began_at: float
    takes_place: bool
    is_measured: bool  # its latency is one of the baseline
    outcome: RequestOutcome = RequestOutcome.SERVED


class ConcurrencyLimit:
    """Adapts the number of requests that may be in flight. Owned by a server, whose
    requests call `begin` and `end`, or `refuse`."""

    def __init__(self) -> None:
        self.places = inf
        self.limit = inf  # requests in flight; a probe has fewer
        self._in_flight: dict[RequestInFlight, None] = {}  # the oldest first
        self._methods: list[MethodBaseline] = []
        self._baseline = MethodBaseline()  # of all methods together
        # This window. Time counts while the pool is full as far as is known.
        self._window = LatencyWindow()
        self._at = 0.0
        self._full = TUNING.crowd
        self._has_refused = False
        self._trend = 0  # of the window before: -1 too many places, 1 too few
        self._probe = LatencyProbe(TUNING.verify_limit)
        # Verification.
        self._suspect: LatencyWindow | None = None  # which a probe is to judge
        self._measures_since = 0.0  # requests that began earlier are not measured
        self._rest, self._rests_until = RESTS.first, 0.0
        self.time = ASSUMED  # seconds that requests have until their deadline
        self._suspected = inf  # requests in flight, at most, as they seem to queue
        self._rate = 0.0  # at which they were served, in the last window

    @property
    def active(self) -> int:
        """Requests in flight that take places."""
        return len(self._in_flight)

    @property
    def is_engaged(self) -> bool:
        return self.limit < inf

    def take_time(self, seconds: float) -> None:
        """Takes how long requests have until their deadline, typically."""
        self.time = seconds

    def method(self) -> MethodBaseline:
        """The baseline of a new method."""
        method = MethodBaseline()
        self._methods.append(method)
        return method

    def takes_place(self, method: MethodBaseline) -> bool:
        """Whether its requests count: if their latency is known and short."""
        return 0.0 < method.baseline <= TUNING.long_request

    def limit_at(self, now: float) -> float:
        """How many requests may be in flight, a new one included."""
        probe = self._probe
        if probe.is_running:
            if not probe.is_over(now):
                return probe.limit
            self._end_probe(now)
        elif self.is_engaged and self._has_refused and probe.is_due(now):
            if not probe.has_all:
                probe.begin(now, self._baseline.baseline)
                return probe.limit
            self._end_probe(now)  # requests found free places without a probe
        return min(self.limit, self._suspected)

    def refuse(self, now: float) -> None:
        """Records a request that was refused because of the limit."""
        self._has_refused = True
        # Requests that take long, or will never end, must not fill the limit for ever.
        while self._in_flight:
            oldest = next(iter(self._in_flight))
            if now - oldest.began_at <= TUNING.long_request:
                break
            del self._in_flight[oldest]

    def begin(self, method: MethodBaseline, now: float) -> RequestInFlight:
        """Begins a request, and returns the object that `end` takes."""
        if not self.takes_place(method):
            is_measured = method.sampling < TUNING.verify_limit
            method.sampling += is_measured
            request = RequestInFlight(method, now, False, is_measured)
            method.early[request] = None
            return request
        active = len(self._in_flight)
        self._pass_time(active, now)
        request = RequestInFlight(method, now, True, active < self._probe.limit)
        self._in_flight[request] = None
        return request

    def end(self, request: RequestInFlight, now: float) -> None:
        """Ends a request, whatever its outcome, and frees its place."""
        method, latency = request.method, now - request.began_at
        is_measured = request.is_measured and request.outcome is RequestOutcome.SERVED
        if not request.takes_place:
            method.sampling -= request.is_measured
            method.early.pop(request, None)
            if is_measured:
                method.observe(latency)
                self._place_early(method, now)
            return
        if request not in self._in_flight:
            return  # forgotten
        active = len(self._in_flight)
        self._pass_time(active, now)
        del self._in_flight[request]
        if active >= self._full and request.outcome is not RequestOutcome.FAILED:
            self._window.end(method, latency, request.outcome is RequestOutcome.SERVED)
        if is_measured and request.began_at >= self._measures_since:
            method.observe(latency)
            self._baseline.observe(latency)
            self._probe.measure()
        if self._window.is_complete:
            window, self._window = self._window, LatencyWindow()
            if self._suspect is None:
                self._conclude(window, now)
            self._has_refused = False

    def _place_early(self, method: MethodBaseline, now: float) -> None:
        """Has requests take places that began before their latency was known."""
        if not self.takes_place(method):
            return
        early, method.early = method.early, {}
        method.sampling = 0
        for request in early:
            request.takes_place = True
        self._pass_time(len(self._in_flight), now)
        oldest_first = sorted((*self._in_flight, *early), key=lambda one: one.began_at)
        self._in_flight = dict.fromkeys(oldest_first)

    def _pass_time(self, active: int, now: float) -> None:
        if active >= self._full:
            self._window.pass_time(now - self._at, active)
        elif (
            self._suspected < inf
            and active < TUNING.crowd / 2
            and self._suspect is None
        ):
            # If there was a queue it is over.
            self._window, self._trend, self._suspected = LatencyWindow(), 0, inf
        self._at = now

    # What a window says

    def _conclude(self, window: LatencyWindow, now: float) -> None:
        estimate = window.places
        if not self.is_engaged:
            trend = -1 if window.slowdown > TUNING.queued or window.has_collapsed else 0
            before, self._rate = self._rate, window.rate
            in_time = max(
                TUNING.crowd, TUNING.in_time * self.time * max(before, window.rate)
            )
            self._suspected = in_time if trend and now >= self._rests_until else inf
        else:
            ratio = estimate / self.places
            if not self._has_refused:  # nobody would have taken more places
                ratio = max(1.0, ratio)
            trend = -1 if ratio < TUNING.shrunk else 1 if ratio > TUNING.grown else 0
            if trend == self._trend == 1:
                self._resize(estimate)
            else:
                self._resize(self.places * (1.0 + TUNING.gain * (ratio - 1.0)))
        lasts, self._trend = trend == self._trend, trend
        if trend == -1 and lasts and now >= self._rests_until:
            self._verify(window, TUNING.verify_limit, now)

    def _resize(self, places: float) -> None:
        self.places = places = max(1.0, places)
        self._full = round(places)
        self.limit = max(self._full + 1, round(TUNING.headroom * places))
        # 7 of 7.9, 3 of 3.9, and always fewer than seem to be there: a probe with all
        # of them would find the same places again, however wrong.
        share = int(TUNING.probe_limit * places + 0.25)
        self._probe.limit = max(1, min(share, self._full - 1))

    # What a probe says

    def _end_probe(self, now: float) -> None:
        has_all = self._probe.has_all
        self._probe.end(now, self._baseline.baseline)
        window, self._suspect = self._suspect, None
        if window is not None:
            self._judge(window, has_all, now)

    def _verify(self, window: LatencyWindow, limit: int, now: float) -> None:
        """Measures the baselines anew: they may be of requests that queued."""
        self._suspect = window
        self._measures_since = now
        for method in (self._baseline, *self._methods):
            method.samples = 0
        self._probe = LatencyProbe(limit)
        self._probe.begin(now, window.latency)

    def _judge(self, window: LatencyWindow, is_verified: bool, now: float) -> None:
        """Ends a verification: what the new baselines make of the window."""
        limit, places = self._probe.limit, window.places
        if not self.is_engaged:
            places = min(places, window.busy_places)
        self._probe.limit = TUNING.verify_limit
        self._window, self._trend, self._suspected = LatencyWindow(), 0, inf
        if not is_verified:
            self._rests_until = now + self._rest
            self._rest = RESTS.longer(self._rest)
            if self.is_engaged:
                self._resize(self.places)
        elif places < TUNING.clearly_more * limit and limit > 1:
            self._verify(window, limit // 2, now)
        elif self.is_engaged or TUNING.queued * places < window.in_flight:
            # Of a flood in which all gave up nothing is known: the next windows tell.
            self._resize(
                places if self.is_engaged else max(places, limit, TUNING.first_places)
            )

    def __repr__(self) -> str:
        if not self.is_engaged:
            return f"<no limit, {self.active} in flight>"
        return f"<{self.places:.1f} places, {self.active} in flight of {self.limit:g}>"
