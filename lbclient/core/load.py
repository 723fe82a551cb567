"""The client's view of one backend's load: calls sent, outcomes, its last report.

Written by attempts (`begin`, `finish`) and by health reports (`observe`), read by
pickers. It draws no conclusion: a picker's formula lives in the picker.
"""

from collections.abc import Callable
from math import inf
from operator import attrgetter

from lbclient.core.counting.ewma import DecayingCount
from lbclient.core.model import LoadReport, Outcome, Verdict

ERROR_MEMORY = 10.0  # seconds; benchmarks.fleet --failing 1 shows what it does
# 10,000 errors of that age count 0.5; most often it spares reading the count.
FORGOTTEN_AFTER = 10 * ERROR_MEMORY
# Seconds since the last error for which errors count as requests in flight. 100 errors
# of one moment, as of a crash, would keep a backend from all calls for 53 s where few
# come; one that fails still costs a call in so long.
HELD_FOR = 2 * ERROR_MEMORY
RATIO_MEMORY = 2.0  # seconds; as servers smooth what they report of errors
LATENCY_GAIN = 0.02  # of each OK, in the mean latency: some 50 of them count
FIRST_GAIN = 0.05  # of each stream, in the mean time to its first message
LEAST_TOLD = 0.05  # recent errors; fewer would be shown as 0.0


# A member is looked up in Python up to 3.11: 0.2 us at every call.
SERVED = Verdict.SERVED
# Neither a success nor a failure of the backend.
NEUTRAL = (Verdict.ABANDONED, Verdict.DECLINED)


class Load:
    """The load of one backend as this client sees it. Owned by its backend.

    A picker that caches what it computed from it is told of writes: see `tell`. A pool
    is told when the backend gets full, and when it has room again: see `limit`.
    """

    __slots__ = (
        "_errors",
        "_failures",
        "_finishes",
        "_fold_at",
        "_limit",
        "_on_limit",
        "_served",
        "_utilization_of",
        "_written",
        "counts",
        "erred_at",
        "first_message",
        "in_flight",
        "is_written",
        "latency",
        "ready_at",
        "recent_errors",
        "report",
        "reported_at",
        "sent_since_report",
        "squared_latency",
        "timed_at",
    )

    def __init__(
        self, utilization_of: Callable[[LoadReport], float] = attrgetter("utilization")
    ) -> None:
        self._utilization_of = utilization_of
        self.in_flight = 0
        self.counts = dict.fromkeys(Verdict, 0)
        self.latency = 0.0  # mean of what was served, in seconds; 0.0: none yet
        self.first_message = 0.0  # of streams, seconds, the mean; 0.0: none yet
        self.squared_latency = 0.0  # mean of squares, of ten served a second at most
        self.erred_at = -inf  # when `recent_errors` last grew
        self.report: LoadReport | None = None
        self.reported_at = 0.0
        self.sent_since_report = 0
        self.ready_at: float | None = None  # since when without a break
        self.timed_at = (
            0.0  # from then on its next answer is to be timed, see `Outliers`
        )
        self._errors = DecayingCount(ERROR_MEMORY)
        # At a given time: errors seen by this client and `owe`d, fading with time.
        self.recent_errors: Callable[[float], float] = self._errors.read
        self._failures = DecayingCount(RATIO_MEMORY)
        self._finishes = DecayingCount(RATIO_MEMORY)
        self.is_written = True  # and nobody cleared it: so nobody is told
        self._written: list[Load] = []
        self._served = 0  # and not yet among `_finishes`
        self._fold_at = 0.0
        self._limit = 0  # none
        self._on_limit: Callable[[], None] = lambda: None

    def limit(self, requests: int, on_limit: Callable[[], None]) -> None:
        """Calls `on_limit` when so many requests are in flight, and when one of them
        ends."""
        self._limit, self._on_limit = requests, on_limit

    def tell(self, written: "list[Load]") -> None:
        """Appends itself to `written` at its next write other than `begin`, once.

        Whoever takes it out clears `is_written`, to be told of the next write.
        """
        self._written = written
        self.is_written = False

    def _note(self) -> None:
        self.is_written = True
        self._written.append(self)

    def begin(self) -> None:
        """Counts one more request on its way to the backend."""
        self.sent_since_report += 1
        self.in_flight += 1
        if self.in_flight == self._limit:
            self._on_limit()

    def forget(self) -> None:
        """Takes back a `begin`, instead of `finish`: nothing was sent."""
        if not self.is_written:
            self._note()
        self.in_flight -= 1
        self.sent_since_report = max(0, self.sent_since_report - 1)
        if self.in_flight + 1 == self._limit:
            self._on_limit()

    def finish(self, outcome: Outcome, now: float) -> None:
        """Takes the outcome of an attempt; to be called once for each `begin`."""
        verdict, latency, report, _, _ = outcome
        if not self.is_written:
            self._note()
        self.in_flight -= 1
        if self.in_flight + 1 == self._limit:
            self._on_limit()
        self.counts[verdict] += 1
        if verdict is SERVED:
            self._served += 1
            if now >= self._fold_at:
                self._fold(now)
                square = latency * latency
                before = self.squared_latency or square
                self.squared_latency = before + (square - before) * LATENCY_GAIN
            # A failure's latency is left out: a fast failure must not look fast.
            mean = self.latency
            self.latency = mean + (latency - mean) * LATENCY_GAIN if mean else latency
        elif verdict not in NEUTRAL:
            self.erred_at = now
            self._fold(now)
            self._finishes.add(now)
            self._failures.add(now)
            self._errors.add(now)
        if report is not None:
            self.report = report
            self.reported_at = now
            self.sent_since_report = 0

    def hear_first(self, seconds: float) -> None:
        """Takes the seconds from sending a stream until its first message."""
        mean = self.first_message
        change = (seconds - mean) * FIRST_GAIN
        self.first_message = mean + change if mean else seconds

    def owe(self, seconds: float, now: float) -> None:
        """Counts an answer other than OK that is no failure: for the time by which it
        was quicker than an OK, it counts as a request in flight.

        Else a backend that fails fast would look idle. The time is spread over
        `ERROR_MEMORY`, as errors are.
        """
        if not self.is_written:
            self._note()
        self.erred_at = now
        self._errors.add(now, seconds / ERROR_MEMORY)

    def forgive(self, errors: float, now: float) -> None:
        """Takes back this many counted errors, or all that are left of them."""
        if not self.is_written:
            self._note()
        self._errors.add(now, -min(errors, self._errors.read(now)))

    def _fold(self, now: float) -> None:
        # By the tenth of a second: to let a count fade at every call costs more than
        # all else here, and changes a ratio over 2 s by 5 % at most.
        self._finishes.add(now, self._served)
        self._served = 0
        self._fold_at = now + 0.1

    def observe(self, report: LoadReport, now: float) -> None:
        """Takes a load report, from a response or a health check."""
        if not self.is_written:
            self._note()
        self.report = report
        self.reported_at = now
        self.sent_since_report = 0

    def enter_ready(self, now: float) -> None:
        """Notes that the backend is ready; a report may have come a little before."""
        if not self.is_written:
            self._note()
        self.ready_at = now

    def leave_ready(self) -> None:
        """Notes that the backend left, or was lost; it may come back as another task.

        Its report is discarded: gRFC A58 restarts its blackout for this reason.
        """
        if not self.is_written:
            self._note()
        self.ready_at = None
        self.report = None
        self.sent_since_report = 0

    def utilization(self) -> float:
        """Returns the utilization in the last report; 0.0 is unknown, not idle."""
        return 0.0 if self.report is None else self._utilization_of(self.report)

    @property
    def started(self) -> int:
        """Number of requests that were ever sent to the backend."""
        return self.in_flight + sum(self.counts.values())

    def traffic(self) -> tuple[int, int]:
        """Number of requests in flight, and of those that were ever answered."""
        counts = self.counts
        answered = counts[SERVED] + counts[Verdict.REJECTED] + counts[Verdict.DECLINED]
        return self.in_flight, answered

    def failure_ratio(self, now: float) -> float:
        """The share of recent attempts that failed, as this client saw it: 0.0 to 1.0.

        A failure also fades if nothing has finished since.
        """
        if failures := self._failures.read(now):
            finishes = self._finishes.read(now) + self._served
            return min(1.0, failures / max(1.0, finishes))
        return 0.0

    def __repr__(self) -> str:
        return f"<{self.in_flight} in flight, {self.started} started>"


def errors_held(recent_errors: float) -> str:
    """The errors held against a backend, in words; "" if there are next to none.

    >>> errors_held(2.14), errors_held(0.04)
    ('2.1 recent errors held against it', '')
    """
    if recent_errors < LEAST_TOLD:
        return ""
    return f"{recent_errors:.1f} recent errors held against it"
