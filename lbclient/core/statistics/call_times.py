"""Durations of calls and attempts, and sizes of messages, by method and status.

They are kept while somebody exports them.

Plain numbers that only grow: metrics read them, Prometheus' at a scrape and
OpenTelemetry's at an export. What is counted, and the bounds, are those of gRPC's own
OpenTelemetry metrics: gRFC A66, and A96 for retries. Bounded as `call_counts` is.
"""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, NamedTuple, TypeVar

from lbclient.core.counting.call_counts import LONGEST, MOST, OTHERS, Method
from lbclient.core.model import Verdict
from lbclient.core.retries.retry import Decision
from lbclient.core.text import is_printable

# Seconds; gRFC A66: "Latency Buckets".
# fmt: off
BOUNDS = (
    0.0, 0.00001, 0.00005, 0.0001, 0.0003, 0.0006, 0.0008, 0.001, 0.002, 0.003, 0.004,
    0.005, 0.006, 0.008, 0.01, 0.013, 0.016, 0.02, 0.025, 0.03, 0.04, 0.05, 0.065, 0.08,
    0.1, 0.13, 0.16, 0.2, 0.25, 0.3, 0.4, 0.5, 0.65, 0.8, 1.0, 2.0, 5.0, 10.0, 20.0,
    50.0, 100.0,
)
# fmt: on
ONE_RESPONSE = frozenset({"unary_unary", "stream_unary"})

OK = 0  # the status

# Bytes; gRFC A66: "Size Buckets".
SIZE_BOUNDS = (0.0, 1024.0, 2048.0, *(float(4**power) for power in range(6, 17)))
RETRY_BOUNDS = (1.0, 2.0, 3.0, 4.0, 5.0)  # retries; gRFC A96
RESEND_BOUNDS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0)  # transparent retries; gRFC A96


# Calls of a method that are not counted yet: they are at a read, or when so many are.
MOST_UNCOUNTED = 256


class Trace(NamedTuple):
    """The trace, and the span in it, within which a call was made."""

    trace_id: int
    span_id: int


class Exemplar(NamedTuple):
    """One of the values of a bucket, observed `at` that time of the channel's clock."""

    value: float
    trace: Trace
    at: float


Lock = AbstractContextManager[object]
NO_LOCK: Lock = nullcontext()

Ended = tuple[int, float, float, Trace | None, float]
"""A call of one attempt: its status, seconds of the attempt and of the call, the trace,
and when it ended."""

Sized = tuple[int, int, int]
"""A status, bytes sent, and bytes received."""


class Times:
    """A histogram, with the last exemplar of each bucket."""

    __slots__ = ("bounds", "counts", "exemplars", "highest", "lowest", "sum")

    def __init__(self, bounds: tuple[float, ...] = BOUNDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.lowest, self.highest = float("inf"), float("-inf")
        self.exemplars: dict[int, Exemplar] = {}  # by bucket

    def observe(self, value: float, trace: Trace | None = None, now: float = 0) -> None:
        bucket = bisect_left(self.bounds, value)
        self.counts[bucket] += 1
        self.sum += value
        if value < self.lowest:
            self.lowest = value
        if value > self.highest:
            self.highest = value
        if trace is not None:
            self.exemplars[bucket] = Exemplar(value, trace, now)

    def observe_all(self, values: Sequence[float]) -> None:
        """Observes many at once, and at least one, in half of the time for each."""
        bounds, counts = self.bounds, self.counts
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        self.sum += sum(values)
        self.lowest = min(self.lowest, *values)
        self.highest = max(self.highest, *values)

    def observe_often(self, values: Sequence[float]) -> None:
        """The same where most are alike, as sizes are."""
        for value, count in Counter(values).items():
            self.counts[bisect_left(self.bounds, value)] += count
        self.sum += sum(values)
        self.lowest = min(self.lowest, *values)
        self.highest = max(self.highest, *values)

    def add(self, other: "Times") -> None:
        """What another one of the same bounds has observed."""
        counts = list(other.counts)
        self.counts = [a + b for a, b in zip(self.counts, counts, strict=True)]
        self.sum += other.sum
        self.lowest = min(self.lowest, other.lowest)
        self.highest = max(self.highest, other.highest)
        for bucket, exemplar in list(other.exemplars.items()):
            known = self.exemplars.get(bucket)
            if known is None or known.at < exemplar.at:
                self.exemplars[bucket] = exemplar

    def last_exemplar(self, first: int, last: int) -> Exemplar | None:
        """The latest one of these buckets, both ends included."""
        found = (self.exemplars.get(bucket) for bucket in range(first, last + 1))
        known = [exemplar for exemplar in found if exemplar is not None]
        return max(known, key=lambda exemplar: exemplar.at, default=None)

    def __repr__(self) -> str:
        return f"<{sum(self.counts)} observed, {self.sum:.3f} in all>"


T = TypeVar("T")


def _taken(uncounted: deque[T]) -> list[T]:
    """Takes as many as there are now, as the loop may go on adding.

    Fewer if a signal's handler reads meanwhile, in the same thread, and takes the rest.
    """
    taken: list[T] = []
    with suppress(IndexError):
        for _ in range(len(uncounted)):
            taken.append(uncounted.popleft())  # noqa: PERF401 - keeps those taken
    return taken


def _observe_all(
    by_code: dict[int, Times],
    code: int,
    bounds: tuple[float, ...],
    values: Sequence[float],
) -> None:
    times = by_code.get(code)
    if times is None:
        times = by_code[code] = Times(bounds)
    times.observe_all(values)


class MethodTimes:
    """Histograms of one method. `calls` and `attempts` are by the number of their
    status.

    `started` attempts include those in flight. `retries`, `resends` and `delays` are of
    calls that had any: of transparent retries, and seconds between two attempts. `sent`
    and `received` are bytes of all messages of an attempt, or of a request.

    What most calls come to is in `took`, `messages`, `ended` and `sized` first, and
    `count` counts many at once: as a call runs with cold caches, it takes a fifth of
    the time.
    """

    __slots__ = ("attempts", "calls", "delays", "ended", "lock", "messages", "plain",
                 "received", "resends", "retries", "sent", "sized", "started",
                 "took")  # fmt: skip

    def __init__(self, lock: Lock = NO_LOCK) -> None:
        """`lock`: held while something is counted, as threads read."""
        self.lock = lock
        self.started = 0
        self.plain = PlainCalls(self)
        # Of calls that were sent at once and served: seconds, and bytes each way.
        self.took: deque[float] = deque()
        self.messages: deque[tuple[int, int]] = deque()
        self.ended: deque[Ended] = deque()  # calls of one attempt
        self.sized: deque[Sized] = deque()
        self.calls: dict[int, Times] = {}
        self.attempts: dict[int, Times] = {}
        self.sent: dict[int, Times] = {}
        self.received: dict[int, Times] = {}
        self.retries = Times(RETRY_BOUNDS)
        self.resends = Times(RESEND_BOUNDS)
        self.delays = Times()

    def count(self) -> None:
        """Counts what is not counted yet. From any thread."""
        with self.lock:
            untraced: dict[int, list[Ended]] = {}
            for one in _taken(self.ended):
                code, took, whole, trace, now = one
                if trace is None:
                    untraced.setdefault(code, []).append(one)
                else:
                    self.attempt_over(code, took, trace, now)
                    self.call_over(code, whole, trace, now)
            for code, ones in untraced.items():
                _observe_all(self.attempts, code, BOUNDS, [one[1] for one in ones])
                _observe_all(self.calls, code, BOUNDS, [one[2] for one in ones])
            self._count_served()
            sized: dict[int, list[Sized]] = {}
            for size in _taken(self.sized):
                sized.setdefault(size[0], []).append(size)
            for code, sizes in sized.items():
                _observe_all(self.sent, code, SIZE_BOUNDS, [one[1] for one in sizes])
                _observe_all(
                    self.received, code, SIZE_BOUNDS, [one[2] for one in sizes]
                )

    def _count_served(self) -> None:
        if took := _taken(self.took):
            times = Times()
            times.observe_all(took)
            for by_code in (self.attempts, self.calls):
                by_code.setdefault(OK, Times()).add(times)
        if messages := _taken(self.messages):
            sent, received = zip(*messages, strict=True)
            self.sent.setdefault(OK, Times(SIZE_BOUNDS)).observe_often(sent)
            self.received.setdefault(OK, Times(SIZE_BOUNDS)).observe_often(received)

    def attempt_over(
        self, code: int, took: float, trace: Trace | None, now: float
    ) -> None:
        times = self.attempts.get(code)
        if times is None:
            times = self.attempts[code] = Times()
        times.observe(took, trace, now)

    def call_over(
        self, code: int, took: float, trace: Trace | None = None, now: float = 0.0
    ) -> None:
        times = self.calls.get(code)
        if times is None:
            times = self.calls[code] = Times()
        times.observe(took, trace, now)

    def sizes_over(self, code: int, sent: int, received: int) -> None:
        """Bytes of all messages; of the code that a duration is told with."""
        for sizes, size in ((self.sent, sent), (self.received, received)):
            known = sizes.get(code)
            if known is None:
                known = sizes[code] = Times(SIZE_BOUNDS)
            known.observe(size)

    def read(self) -> Iterator[tuple[str, int, Times]]:
        """What was timed, the status or -1, and the times. From any thread."""
        self.count()
        for code, times in list(self.calls.items()):
            yield "call", code, times
        for code, times in list(self.attempts.items()):
            yield "attempt", code, times
        for code, times in list(self.sent.items()):
            yield "sent", code, times
        for code, times in list(self.received.items()):
            yield "received", code, times
        yield "retries", -1, self.retries
        yield "resends", -1, self.resends
        yield "delays", -1, self.delays

    def __repr__(self) -> str:
        return f"<{self.started} attempts>"


class CallTimes:
    """Histograms of all methods of a channel or a server; on its loop's thread but for
    `read`.

    `find_trace` returns the trace in whose context it is called; None: there is none.
    `measures`: calls that begin now are told their messages, whose sizes are kept.
    """

    def __init__(
        self, find_trace: Callable[[], Trace | None], lock: Lock = NO_LOCK
    ) -> None:
        self._find_trace = find_trace
        self._lock = lock
        self.measures = False
        self._methods: dict[Method, MethodTimes] = {}

    def begin(self, method: Method, now: float) -> "CallTimer":
        """A call begins; it ends with `over`, or with its last attempt."""
        return self._timer(method, now, self._find_trace())

    def begin_sent(
        self,
        method: Method,
        now: float,
        address: str,
        metadata: Any,
        size: int,
        awaited: list[Any],
    ) -> "tuple[CallTimer | PlainCalls | MeasuredCall, Any]":
        """The same, and it is sent at once; its request is of so many bytes."""
        trace = self._find_trace()
        if trace is None:
            known = self._methods.get(method) or self.of(method)
            known.started += 1
            if self.measures:
                return MeasuredCall(known, size, awaited), metadata
            return known.plain, metadata
        timer = self._timer(method, now, trace)
        timer.attempt_begins(address, 1, 0.0, now, None)
        if timer.measures:
            timer.request_sent(size, awaited)
        return timer, metadata

    def _timer(self, method: Method, now: float, trace: Trace | None) -> "CallTimer":
        known = self._methods.get(method) or self.of(method)
        if not self.measures:
            return CallTimer(known, now, trace)
        return CallTimer(known, now, trace, True, method[0] in ONE_RESPONSE)

    def of(self, method: Method) -> MethodTimes:
        known = self._methods.get(method)
        if known is None:
            _, path = method
            is_full = len(self._methods) >= MOST
            if is_full or len(path) > LONGEST or not is_printable(path):
                method = OTHERS
            known = self._methods.setdefault(method, MethodTimes(self._lock))
        return known

    def read(self) -> list[tuple[Method, MethodTimes]]:
        """May be called from any thread; the times go on changing."""
        return list(self._methods.items())

    def __repr__(self) -> str:
        return f"<times of {len(self._methods)} methods>"


class PlainCalls:
    """What all calls of a method tell that were sent at once, without a trace: of such
    a call nothing has to be kept until it fails, see `of_one`."""

    __slots__ = ("_method",)
    measures = False

    def __init__(self, method: MethodTimes) -> None:
        self._method = method

    def of_one(self, sent_at: float) -> "CallTimer":
        """The timer of one of these calls, which may be sent again."""
        return CallTimer(self._method, sent_at, None)

    def attempt_over(
        self,
        code: int,
        took: float,
        verdict: Verdict,
        then: Decision | None,
        now: float,
    ) -> None:
        method = self._method
        if not code:
            method.took.append(took)
        else:
            method.ended.append((code, took, took, None, now))
        if len(method.took) >= MOST_UNCOUNTED or len(method.ended) >= MOST_UNCOUNTED:
            method.count()

    def __repr__(self) -> str:
        return f"<calls of one attempt: {self._method!r}>"


class MeasuredCall:
    """A unary call that was sent at once, without a trace, and is told its messages:
    how large its request was is all that has to be kept until its end."""

    __slots__ = ("_awaited", "_method", "_sent")
    measures = True

    def __init__(self, method: MethodTimes, sent: int, awaited: list[Any]) -> None:
        """`awaited` are calls that are over, but for their response."""
        self._method, self._sent, self._awaited = method, sent, awaited

    def of_one(self, sent_at: float) -> "CallTimer":
        timer = CallTimer(self._method, sent_at, None, True, True)
        timer.attempt = 1
        timer.request_sent(self._sent, self._awaited)
        return timer

    def attempt_over(
        self,
        code: int,
        took: float,
        verdict: Verdict,
        then: Decision | None,
        now: float,
    ) -> None:
        method = self._method
        if code:
            method.ended.append((code, took, took, None, now))
            method.sized.append((code, self._sent, 0))
        else:
            method.took.append(took)
            self._awaited.append(self)  # for its response
        if len(method.took) >= MOST_UNCOUNTED or len(method.ended) >= MOST_UNCOUNTED:
            method.count()

    def message_received(self, size: int) -> None:
        self._method.messages.append((self._sent, size))

    def __repr__(self) -> str:
        return f"<measured call: {self._method!r}>"


class CallTimer:
    """Times one call from its beginning to its end. The call's attempts tell it."""

    __slots__ = (
        "_again",
        "_awaited",
        "_began_at",
        "_has_one_response",
        "_is_owed",
        "_method",
        "_of",
        "_received",
        "_sent",
        "_trace",
        "attempt",
        "measures",
    )

    def __init__(
        self,
        method: MethodTimes,
        now: float,
        trace: Trace | None,
        measures: bool = False,
        has_one_response: bool = False,
    ) -> None:
        self._method = method
        self._began_at = now
        self._trace = trace
        self.measures = measures  # whether it is told of messages
        self.attempt = 0
        if measures:
            self._of: CallTimer | None = None  # the call's own, of a hedge
            self._awaited: list[Any] | None = None
            self._has_one_response = has_one_response
            self._is_owed = False  # the response of an attempt that was served
            self._sent, self._received = 0, -1  # bytes of one attempt; -1: no message
        self._again: _Again | None = None

    def attempt_begins(
        self, address: str, number: int, waited: float, now: float, metadata: Any
    ) -> Any:
        """After so many seconds of looking for a backend, which are the attempt's."""
        self._method.started += 1
        self.attempt = number
        if self.measures:
            self._sent, self._received, self._awaited = 0, -1, None
        if self._again is not None:
            self._again.begins(now - waited)
        return metadata

    def attempt_over(
        self,
        code: int,
        took: float,
        verdict: Verdict,
        then: Decision | None,
        now: float,
    ) -> None:
        """`then` says whether another follows; if none does, the call is over, too."""
        method, trace = self._method, self._trace
        measures = self.measures
        call = (self._of or self) if measures else self
        if then is None and call._again is None:  # as almost always
            ended = method.ended
            ended.append((code, took, now - call._began_at, trace, now))
            if measures:
                if not code and self._received < 0 and self._awaited is not None:
                    self._is_owed = True  # as in `_sizes_over`, without its frame
                    self._awaited.append(self)
                else:
                    self._sizes_over(code)
            if len(ended) >= MOST_UNCOUNTED:
                method.count()
            return
        with method.lock:
            method.attempt_over(code, took, trace, now)
        if measures:
            self._sizes_over(code)
            if len(method.sized) >= MOST_UNCOUNTED:
                method.count()
        if then is None or then.delay is None:
            call.over(code, now)
        elif not then.is_left_to_other:
            if call._again is None:
                call._again = _Again()
            call._again.follows(now, then.is_resend or then.is_declined)

    def of_one(self, sent_at: float) -> "CallTimer":
        return self

    def for_hedge(self) -> "CallTimer":
        """The timer of the call's hedge: one more attempt, with messages of its own."""
        if not self.measures:
            return self
        hedge = CallTimer(
            self._method, self._began_at, self._trace, True, self._has_one_response
        )
        hedge._of = self
        return hedge

    def _sizes_over(self, code: int) -> None:
        received = self._received
        if not code and received < 0 and self._has_one_response:
            # grpc.aio ends a call before it deserializes a single response.
            self._is_owed = True
            if self._awaited is not None:
                self._awaited.append(self)
        else:
            self._method.sized.append((code, self._sent, max(0, received)))
            self.attempt = 0

    def request_sent(self, size: int, awaited: list[Any]) -> None:
        """The single request of an attempt whose response is told to the last one of
        those `awaited`."""
        self._sent, self._awaited = size, awaited

    def message_sent(self, size: int) -> None:
        if self.measures:
            self._sent += size

    def message_received(self, size: int) -> None:
        if not self.measures:  # another observer of the channel does
            return
        self._received = max(0, self._received) + size
        if self._is_owed:
            self._is_owed = False
            self._method.sized.append((0, self._sent, self._received))

    def over(self, code: int, now: float) -> None:
        method, trace, again = self._method, self._trace, self._again
        with method.lock:
            method.call_over(code, now - self._began_at, trace, now)
            if again is not None:
                again.count(method, trace, now)

    def __repr__(self) -> str:
        return f"<call, attempt {self.attempt}; further ones: {self._again!r}>"


class _Again:
    """The further attempts of one call, of which most calls have none."""

    __slots__ = ("_delay", "_idle_since", "_resends", "_retries")

    def __init__(self) -> None:
        self._idle_since: float | None = None
        self._retries = self._resends = 0
        self._delay = 0.0

    def follows(self, now: float, is_resend: bool) -> None:
        """An attempt is over, and another will begin."""
        self._idle_since = now
        if is_resend:
            self._resends += 1
        else:
            self._retries += 1

    def begins(self, now: float) -> None:
        if self._idle_since is not None:
            self._delay += max(0.0, now - self._idle_since)
            self._idle_since = None

    def count(self, method: MethodTimes, trace: Trace | None, now: float) -> None:
        if self._retries:
            method.retries.observe(self._retries, trace, now)
        if self._resends:
            method.resends.observe(self._resends, trace, now)
        if self._delay > 0.0:
            method.delays.observe(self._delay, trace, now)

    def __repr__(self) -> str:
        return f"<{self._retries} retries, {self._resends} not taken>"
