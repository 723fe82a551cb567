"""Counts requests by method and status, their durations and sizes of messages.

Served requests are counted in bulk: to count many at once takes a fifth of the time, as
a request runs with cold caches. So whoever reads counts calls `count_served` first.
"""

from collections.abc import Callable
from threading import RLock, get_ident
from typing import Any

from grpc import StatusCode

from lbclient.core.counting.call_counts import OTHERS, CallCounts
from lbclient.core.counting.histogram import Histogram
from lbclient.core.model import Verdict
from lbclient.core.overload.admission import Quickest
from lbclient.core.protocols import Clock
from lbclient.core.report.load_monitor import LoadMonitor, Sizes
from lbclient.core.statistics.call_times import CallTimes, MethodTimes, Trace
from lbclient.core.statistics.recent import Recent
from lbclient.wire.codes import verdict_of

Counts = dict[str, int]
"""Finished requests of one method, by the name of their status code."""

# The hot path has no enum in it: a member's lookup, hash and name are slow.
_OK = StatusCode.OK


class MethodTally:
    """Counts and times of one method's requests.

    `quickest` is None where a request takes what its client takes, as with streams.
    `measures`: its messages are counted.
    """

    __slots__ = ("counts", "measures", "quickest")

    def __init__(
        self,
        counts: Counts,
        quickest: Quickest | None = None,
        measures: bool = False,
    ) -> None:
        self.counts = counts
        self.quickest = quickest
        self.measures = measures


class RequestTally:
    """Counts and times all requests of a server. `count_served` may be called in any
    thread, all else on the loop's."""

    def __init__(self, clock: Clock, monitor: LoadMonitor) -> None:
        self._clock = clock
        self._monitor = monitor
        self.call_counts = CallCounts(code.name for code in StatusCode)
        self.recent: Recent | None = None  # as long as somebody looks
        self.latency = Histogram()
        self.times: CallTimes | None = None  # as long as somebody exports them
        self.measures = False  # as long as somebody exports sizes of messages
        self._handlers: list[dict[str, Any]] = []
        # By the id of a method's counts: these are kept, so nothing else has their id.
        self._times_of: dict[int, MethodTimes] = {}
        self._quickest_of: dict[int, Quickest] = {}
        self._thread = get_ident()  # of the loop
        self._counting = RLock()

    def finish(
        self,
        code: StatusCode,
        begun_at: float,
        method: MethodTally,
        is_error: bool = True,
        sizes: Sizes | None = None,
    ) -> None:
        """Ends one of the active requests; the report then leaves it out.

        What is no error of this task is in no rate. `sizes`: None if not measured.
        """
        took = self._clock() - begun_at
        monitor = self._monitor
        if code is _OK:
            monitor.active -= 1
            monitor.uncounted.append((method, monitor.active, took, sizes))
            return
        verdict = verdict_of(code) if is_error else Verdict.ABANDONED
        monitor.finish(verdict)
        method.counts[code.name] += 1
        with self._counting:
            if verdict is not Verdict.ABANDONED:
                self._observe(took)
            if self.times is not None:
                self._time(self.times, method.counts, code.value[0], took, sizes)

    def refuse(self, code: StatusCode, counts: Counts, is_error: bool) -> None:
        """A request that never began: an error to whoever looks for one."""
        monitor = self._monitor
        monitor.active += 1
        monitor.finish(Verdict.REJECTED if is_error else Verdict.ABANDONED)
        counts[code.name] += 1
        if self.times is not None:
            sizes = (0, 0) if self.measures else None
            with self._counting:
                self._time(self.times, counts, code.value[0], 0.0, sizes)

    def keep_times(
        self, find_trace: Callable[[], Trace | None], measures: bool = False
    ) -> CallTimes:
        """How long requests take, from now on; once more is never too much. `measures`:
        sizes of messages, too, of requests whose handler is looked up from now on."""
        if self.times is None:
            self.count_served()
            self.times = CallTimes(find_trace)
        if measures and not self.measures:
            self.measures = True
            for handlers in self._handlers:
                handlers.clear()
        return self.times

    def kept_handlers(self) -> dict[str, Any]:
        """For handlers that are wrapped once, by method: emptied when `measures` turns
        true, as they are wrapped otherwise then."""
        handlers: dict[str, Any] = {}
        self._handlers.append(handlers)
        return handlers

    def quickest_of(self, counts: Counts) -> Quickest:
        """What is known of a method, of which each handler is told: an interceptor may
        make one for each request. Methods that are counted together share none."""
        known = self._quickest_of.get(id(counts))
        if known is None:
            known = Quickest()
            if self.call_counts.method_of(counts) != OTHERS:
                self._quickest_of[id(counts)] = known
        return known

    def _time(
        self,
        times: CallTimes,
        counts: Counts,
        code: int,
        took: float,
        sizes: Sizes | None,
    ) -> None:
        known = self._times_of.get(id(counts))
        if known is None:
            known = times.of(self.call_counts.method_of(counts))
            self._times_of[id(counts)] = known
        known.started += 1  # told when it has ended, as with what is served
        known.call_over(code, took)
        if sizes is not None:
            received, sent = sizes
            known.sizes_over(code, sent, received)

    def count_served(self) -> None:
        """Counts served requests for `statistics`, in any thread."""
        uncounted, counted = self._monitor.uncounted, self._monitor.counted
        observe = self._observe if self.recent else self.latency.observe
        times = self.times
        with self._counting:
            while uncounted:
                try:
                    one = uncounted.popleft()
                except IndexError:  # a signal's handler has asked, too
                    return
                method, _, took, sizes = one
                method.counts["OK"] += 1
                observe(took)
                if times is not None:
                    self._time(times, method.counts, 0, took, sizes)
                counted.append(one)

    def learn_served(self) -> None:
        """Counts served requests for statistics and for load reports.

        Does nothing in another thread than the loop's.
        """
        if get_ident() != self._thread:
            return
        self.count_served()
        now, waiting = self._clock(), self._monitor.waiting
        for method, _, took, _ in self._monitor.take_counted():
            quickest = method.quickest
            if quickest is None:
                continue
            if waiting is not None:
                waiting.served(took)
            if took < quickest.ample or now >= quickest.turns_at:
                quickest.observe(took, now)

    def sample(self) -> None:
        """The same; the calling thread is the loop's from here on."""
        self._thread = get_ident()
        self.learn_served()

    def keep_recent(self) -> Recent:
        """Returns recent latencies, and keeps them for a minute from now on."""
        self.count_served()
        self.recent = Recent.keep(self.recent, self._clock())
        return self.recent

    def _observe(self, took: float) -> None:
        self.latency.observe(took)
        if self.recent is not None:
            self._remember(took)

    def _remember(self, took: float) -> None:
        now, recent = self._clock(), self.recent
        if recent is None or recent.is_over(now):
            self.recent = None
        else:
            recent.latencies.add(took, now)

    def __repr__(self) -> str:
        uncounted = len(self._monitor.uncounted)
        return f"<{sum(self.latency.counts)} counted, {uncounted} not yet>"
