"""Finds how many requests at a time are useful where handlers wait for a pool.

A pool of 8 connections serves 8 requests at a time, whatever is in flight. The others
queue in the pool, and under overload all of them end late. Little's law gives the size
of the pool from outside:

    places = throughput while all places are taken * latency of a request that finds one

Throughput is measured while at least as many requests are in flight as there seem to be
places. Latency is that of requests that begin while at most three quarters of them are
taken. Sustained overload leaves none of these, so every 2 s the limit is lowered until
the queue has drained and some requests have begun: a probe. Both figures are measured
anew all the time, so no error lasts. If the estimate is too high, the next probe
measures latency at three quarters of it; if it is too low, throughput grows with the
limit.

There is no limit until requests take twice as long as those that found a free place.

Sources: BBR (ACM Queue, 2016) for the two figures that need different loads; Envoy's
adaptive_concurrency and Netflix' concurrency-limits, which have a gradient of latencies
in place of Little's law.
"""

from math import inf

# limit / places. Some requests must queue, so that a place that becomes free is taken
# at once. Ours, from tests/laws/test_concurrency.py: with 8 places and Poisson arrivals
# at twice the capacity, 1.35 keeps 98 % of the places busy.
HEADROOM = 1.35
CALM = 0.75  # in flight / places, up to which the latency of a new request counts
FIRST = 32  # places, before anything is known

# A throughput is a mean over at least so many latencies and requests. 64 exponential
# service times have a mean within 1/8; requests that end in step, 8 at a time, too.
WINDOW, ENDS = 8.0, 64
UNLIMITED = 0.5  # seconds of a window without a limit
GAIN = 0.2  # weight of a window that confirms the estimate
BAND = 1.25  # ratio between two windows and the estimate: the pool has been resized
GROWTH = 1.15  # the same where it has become larger: there is less to be seen of that
QUEUED = 0.5  # latency of a free place / latency, below which there is a limit
LEAST = 0.5  # the least ratio that is believed: a pool may have stood still

# A probe begins at most every PAUSE seconds and PAUSES latencies, until PROBE requests
# have begun, half as many as may be in flight. With 8 places it takes 1 % of the
# throughput.
PAUSE, PAUSES = 2.0, 40.0
PROBE, MOST = 12, 64
KEPT = 5  # probes, whose latencies make a mean
OUTLIER = 8.0  # times the mean: what a longer latency counts as; all stood still
# A probe that replaces all latencies: requests, and how many of them at a time.
FRESH, FEW = 32, 8
# Seconds and latencies, after which a probe ends without all of its requests.
PATIENT, PATIENCE = 2.0, 12.0
# Seconds without a limit, if the first probe did not get its requests: twice as many
# after the next one.
REST, LONGEST_REST = 2.0, 600.0
FRESH_EVERY = 8  # probes: whatever misled the latencies, it is forgotten

# Seconds. Requests that take longer, such as long polls, take no place: where they wait
# there is room for all of them, and to wait for their end would be to know nothing.
LONG = 10.0
APART = 8  # requests in flight of a method that takes no place, whose latency counts


class Method:
    """The requests of one method: their latency where they find a free place."""

    __slots__ = ("apart", "ends", "known", "latency")

    def __init__(self) -> None:
        self.apart: dict[int, float] = {}  # requests that take no place: since when
        self.latency = 0.0
        self.known = 0  # latencies in the mean
        self.ends = 0  # in this window, while all places were taken

    def observe(self, latency: float, kept: int) -> None:
        if self.known >= PROBE:
            latency = min(latency, OUTLIER * self.latency)
        self.known = min(self.known + 1, kept)
        self.latency += (latency - self.latency) / self.known

    @property
    def is_counted(self) -> bool:
        """Its requests take places, as far as is known."""
        return 0.0 < self.latency <= LONG


class ConcurrencyLimit:
    """Owned by a server. Its requests call `begin` and `end`, or `refuse`."""

    def __init__(self) -> None:
        self.places = float(FIRST)
        self.limit = inf  # requests in flight; a probe has less
        self._methods: list[Method] = []
        self._all = Method()
        self._taken = FIRST  # in flight: no place is free
        self._calm = FEW
        # When counted requests in flight began, the oldest first; negative if their
        # latency does not count.
        self._begun: dict[int, float] = {}
        self._number = 0
        self._forgets_at = 0.0
        self._since = 0.0  # latencies count of requests that began later
        # This window, while all places were taken: seconds, and in flight * seconds.
        self._at = self._seconds = self._sum = 0.0
        self._ends = self._refused = 0
        self._lasted = 0.0  # seconds, those that ended
        self._window = UNLIMITED
        self._lasting = 0.0  # seconds, a request of the last window
        self._rest, self._rests_until = REST, 0.0
        self._ratio = 1.0  # of what the last window found to the estimate
        self._probes_at = 0.0
        self._probes_until = 0.0  # 0.0: no probe
        self._probes = 0
        self._probed, self._wanted = 0, PROBE  # requests
        self._kept = KEPT * PROBE  # latencies
        # Whether the latencies may be of requests that queued: until a window confirms
        # the estimate, once a probe has replaced them all.
        self._doubts = self._is_fresh = False
        self._is_confirmed = False  # that requests queue, by a probe

    @property
    def active(self) -> int:
        """Requests in flight that take places."""
        return len(self._begun)

    @property
    def is_engaged(self) -> bool:
        return self.limit < inf

    def method(self) -> Method:
        """For a method that is new."""
        method = Method()
        self._methods.append(method)
        return method

    def limit_at(self, now: float) -> float:
        """How many requests may be in flight, a new one included."""
        if self._probes_until:
            if self._probed < self._wanted and now < self._probes_until:
                return self._calm
            self._pause(now)
        elif (self._refused or self._is_fresh) and now >= self._probes_at:
            if self._probes % FRESH_EVERY == FRESH_EVERY - 1 and not self._doubts:
                self._doubt(now)
            if self._probed < self._wanted:
                longest = PATIENT + PATIENCE * self._all.latency
                self._probes_until = now + longest + 2.0 * self._lasting
                self._probed = 0
                return self._calm
            self._pause(now)  # enough requests found a free place without a probe
        return self.limit

    def _pause(self, now: float) -> None:
        """Until the next probe."""
        self._probes_at = now + max(PAUSE, PAUSES * self._all.latency)
        self._probes_until = 0.0
        self._probes += 1
        if self._is_fresh:
            self._is_fresh = False
            self._begin_window()
            if self._probed < self._wanted and not self._is_confirmed:
                self._release()
                self._rests_until = now + self._rest
                self._rest = min(LONGEST_REST, self._rest * 2.0)
                return
        self._be_calm()

    def _release(self) -> None:
        """No limit, as before: no request queues, or nobody can tell."""
        self.limit = inf
        self._doubts = False
        self._ratio = 1.0
        self._taken, self._calm = FIRST, FEW
        self._begin_window()

    def _be_calm(self) -> None:
        """How many requests a probe needs, and how many of them at a time."""
        self._probed = 0
        self._calm = max(1, int(CALM * self.places))
        self._wanted = min(MOST, max(PROBE, self._calm // 2))
        self._kept = KEPT * self._wanted
        if self._doubts:
            self._calm = min(FEW, self._calm)
        if self._is_fresh:
            self._wanted = FRESH

    def refuse(self, now: float) -> None:
        """A request was refused as there were as many as `limit_at` says, or nearly."""
        self._refused += 1
        if now >= self._forgets_at:
            self._forget(now)

    def begin(self, method: Method, now: float) -> int:
        """Returns what `end` is to be told."""
        self._number = number = self._number + 1
        if not 0.0 < method.latency <= LONG:
            if len(method.apart) < APART:
                method.apart[number] = now
            return number
        active = len(self._begun)
        if self._taken <= active <= self.limit:
            passed = now - self._at
            self._seconds += passed
            self._sum += active * passed
        self._at = now
        if active < self._calm:
            self._probed += 1
            self._begun[number] = now
        else:
            self._begun[number] = -now
        return number

    def end(self, method: Method, number: int, now: float) -> None:
        """However it ended: what has gone takes no place."""
        active = len(self._begun)
        begun = self._begun.pop(number, None)
        if begun is None:
            if method.apart and (begun := method.apart.pop(number, None)) is not None:
                method.observe(now - begun, self._kept)
            return
        if self._taken <= active <= self.limit:
            passed = now - self._at
            self._seconds += passed
            self._sum += active * passed
            self._ends += 1
            self._lasted += now - abs(begun)
            method.ends += 1
        self._at = now
        if begun >= self._since:
            method.observe(now - begun, self._kept)
            self._all.observe(now - begun, self._kept)
        if self._ends >= ENDS and self._seconds >= self._window:
            self._conclude(now)

    def _forget(self, now: float) -> None:
        """Requests that take long, or will never end."""
        self._forgets_at = now + PAUSE
        for number, begun in list(self._begun.items()):
            if now - abs(begun) <= LONG:
                return
            del self._begun[number]

    def _conclude(self, now: float) -> None:
        """At the end of a window."""
        in_flight = self._sum / self._seconds
        alone = sum(method.ends * method.latency for method in self._methods)
        # By how much longer requests took than alone, which does not mistake requests
        # that have not ended yet for such as queue; and by throughput.
        found = in_flight * alone / max(self._lasted, 1e-9)
        if self.is_engaged:
            found = max(found, alone / self._seconds)
        # There may be more places than requests, but who knows.
        found = min(found, in_flight)
        was_refused = self._refused > 0
        self._lasting = self._lasted / self._ends
        self._begin_window()
        if not self.is_engaged:
            ratio, before = found / in_flight, self._ratio
            self._ratio = ratio
            if max(ratio, before) < QUEUED and now >= self._rests_until:
                # Or a free place has become slower, which a probe will tell.
                self._is_confirmed = False
                self._move(in_flight / HEADROOM)
                self._doubt(now)
        elif self._is_fresh:
            return
        elif not self._is_confirmed and found > QUEUED * in_flight:
            self._release()
        else:
            self._is_confirmed = True
            # Where nobody was refused nobody would have taken more places. But the
            # first limit is what was in flight: a fixed number of clients meets it.
            least = LEAST if was_refused else 1.0
            if self._doubts:
                least = 0.0
            self._follow(max(least, found / self.places), now)

    def _begin_window(self) -> None:
        for method in self._methods:
            method.ends = 0
        self._ends = self._refused = 0
        self._seconds = self._sum = self._lasted = 0.0
        self._window = WINDOW * self._all.latency if self.is_engaged else UNLIMITED

    def _follow(self, ratio: float, now: float) -> None:
        before, self._ratio = self._ratio, ratio
        if self._doubts:
            before = ratio
        if min(ratio, before) > GROWTH:
            self._move(self.places * ratio)
        elif max(ratio, before) < 1.0 / BAND:
            self._move(self.places * ratio)
            if not self._doubts:
                self._doubt(now)
        else:
            self._move(self.places * (1.0 + GAIN * (ratio - 1.0)))
            if self._doubts:
                self._doubts = False
                self._be_calm()

    def _move(self, places: float) -> None:
        self.places = places = max(1.0, places)
        self._taken = round(places)
        self.limit = max(self._taken + 1, round(HEADROOM * places))
        if not self._doubts:
            self._calm = max(1, int(CALM * places))

    def _doubt(self, now: float) -> None:
        """The latencies so far may be of requests that queued: measures them anew."""
        self._doubts = self._is_fresh = True
        self._since = self._probes_at = now
        self._probes_until = 0.0
        self._ratio = 1.0
        self._be_calm()
        for method in (self._all, *self._methods):
            method.known = 0

    def __repr__(self) -> str:
        if not self.is_engaged:
            return f"<no limit, {self.active} in flight>"
        return f"<{self.places:.1f} places, {self.active} in flight of {self.limit:g}>"
