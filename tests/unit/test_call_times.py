"""What is counted of calls and attempts, and in which bucket."""

from collections import deque
from typing import Any

from lbclient.client.observers import Observers
from lbclient.core.counting.call_counts import MOST, OTHERS
from lbclient.core.model import Verdict
from lbclient.core.retries.retry import Decision
from lbclient.core.statistics.call_times import (
    MOST_UNCOUNTED,
    CallTimer,
    CallTimes,
    Ended,
    Times,
    Trace,
)

METHOD = ("unary_unary", "/search.Search/Search")
OK, UNAVAILABLE, DEADLINE_EXCEEDED = 0, 14, 4
RETRY = Decision(0.5, "attempt 2 of 3", attempt=1)
RESEND = Decision(0.0, "no server took it", is_resend=True)


def seconds(times: Times) -> tuple[int, float]:
    return sum(times.counts), round(times.sum, 6)


class Calls:
    def __init__(self, trace: Trace | None = None) -> None:
        self.times = CallTimes(lambda: trace)

    def begin(self, now: float) -> CallTimer:
        return self.times.begin(METHOD, now)

    def begin_sent(self, size: int = 0, awaited: Any = None) -> Any:
        call, _ = self.times.begin_sent(METHOD, 1.0, "b:1", None, size, awaited)
        return call

    def read(self, what: str, code: int = -1) -> tuple[int, float]:
        found = self.times.of(METHOD).read()
        return next((seconds(t) for w, c, t in found if (w, c) == (what, code)), (0, 0))


def test_a_call_with_one_attempt_takes_as_long_as_the_attempt() -> None:
    calls = Calls()
    call = calls.begin(1.0)
    call.attempt_begins("b:1", 1, 0.25, 1.25, None)
    call.attempt_over(OK, 2.0, Verdict.SERVED, None, 3.0)
    assert calls.read("call", OK) == calls.read("attempt", OK) == (1, 2.0)
    assert calls.read("retries") == calls.read("delays") == (0, 0)


def test_a_signals_handler_may_read_while_calls_are_counted() -> None:
    times = Observers().keep_times(lambda: None)
    for _ in range(MOST_UNCOUNTED - 1):
        one_attempt(times)
    of_method, reads = times.of(METHOD), 0

    class Handler(deque[Ended]):
        """As if a signal came when ten were taken."""

        def popleft(self) -> Ended:
            nonlocal reads
            if len(self) == MOST_UNCOUNTED - 11 and not reads:
                reads = 1
                of_method.count()
            return super().popleft()

    of_method.ended = Handler(of_method.ended)
    found = {(what, code): seconds(t)[0] for what, code, t in of_method.read()}
    assert reads
    assert found["call", OK] == found["attempt", OK] == MOST_UNCOUNTED - 1


def one_attempt(times: CallTimes) -> None:
    call = times.begin(METHOD, 0.0)
    call.attempt_begins("b:1", 1, 0.0, 0.0, None)
    call.attempt_over(OK, 1.0, Verdict.SERVED, None, 1.0)


def test_a_retried_call_lasts_from_its_beginning_with_the_pause_between() -> None:
    calls = Calls()
    call = calls.begin(0.0)
    call.attempt_begins("b:1", 1, 0.0, 0.0, None)
    call.attempt_over(UNAVAILABLE, 1.0, Verdict.FAILED, RESEND, 1.0)
    call.attempt_begins("b:2", 2, 0.0, 1.0, None)
    call.attempt_over(UNAVAILABLE, 1.0, Verdict.FAILED, RETRY, 2.0)
    call.attempt_begins("b:1", 3, 0.25, 2.75, None)  # it waited for a backend, too
    call.attempt_over(OK, 1.25, Verdict.SERVED, None, 3.75)
    assert calls.read("call", OK) == (1, 3.75)
    assert calls.read("attempt", UNAVAILABLE) == (2, 2.0)
    assert calls.read("attempt", OK) == (1, 1.25)
    assert calls.read("retries") == calls.read("resends") == (1, 1)
    assert calls.read("delays") == (1, 0.5)
    assert calls.times.of(METHOD).started == 3


def test_a_call_that_was_sent_at_once_is_told_apart_when_it_fails() -> None:
    calls = Calls()
    served, _, failed = (calls.begin_sent() for _ in range(3))
    served.attempt_over(OK, 0.5, Verdict.SERVED, None, 1.5)
    served.attempt_over(OK, 2.5, Verdict.SERVED, None, 3.5)
    one = failed.of_one(2.0)
    one.attempt_over(UNAVAILABLE, 1.0, Verdict.FAILED, RETRY, 3.0)
    one.attempt_begins("b:2", 2, 0.0, 4.0, None)
    one.attempt_over(OK, 1.0, Verdict.SERVED, None, 5.0)
    assert calls.read("call", OK) == (3, 6.0)
    assert calls.read("attempt", OK) == (3, 4.0)
    assert calls.read("attempt", UNAVAILABLE) == (1, 1.0)
    assert calls.read("retries") == (1, 1)
    assert calls.times.of(METHOD).started == 4


def test_a_measured_call_that_was_sent_at_once_has_sizes_however_it_ends() -> None:
    calls, awaited = Calls(), list[Any]()
    calls.times.measures = True
    served, failed = calls.begin_sent(300, awaited), calls.begin_sent(20, awaited)
    served.attempt_over(OK, 0.5, Verdict.SERVED, None, 1.5)
    [told] = awaited
    told.message_received(4000)
    one = failed.of_one(2.0)
    one.attempt_over(UNAVAILABLE, 1.0, Verdict.FAILED, None, 3.0)
    assert calls.read("call", OK) == calls.read("attempt", OK) == (1, 0.5)
    assert calls.read("sent", OK) == (1, 300)
    assert calls.read("received", OK) == (1, 4000)
    assert calls.read("call", UNAVAILABLE) == (1, 1.0)
    assert calls.read("sent", UNAVAILABLE) == (1, 20)
    assert calls.read("received", UNAVAILABLE) == (1, 0)
    assert calls.times.of(METHOD).started == 2


def test_a_call_that_never_found_a_backend_has_a_duration_and_no_attempt() -> None:
    calls = Calls()
    calls.begin(1.0).over(DEADLINE_EXCEEDED, 6.0)
    assert calls.read("call", DEADLINE_EXCEEDED) == (1, 5.0)
    assert calls.times.of(METHOD).started == 0


def test_a_bucket_keeps_the_last_trace_of_it() -> None:
    trace = Trace(7, 8)
    calls = Calls(trace)
    for began_at in (0.0, 1.0):
        calls.begin(began_at).over(OK, began_at + 0.007)
    times = calls.times.of(METHOD).calls[OK]
    (bucket,) = times.exemplars
    assert times.bounds[bucket - 1] < 0.007 <= times.bounds[bucket]
    last = times.last_exemplar(0, bucket)
    assert last is not None
    assert (last.trace, last.at) == (trace, 1.007)
    assert times.last_exemplar(bucket + 1, len(times.bounds)) is None


def test_times_add_up_and_the_later_exemplar_stays() -> None:
    one, other = Times((1.0,)), Times((1.0,))
    one.observe(0.5, Trace(1, 1), 1.0)
    other.observe(0.75, Trace(2, 2), 2.0)
    other.observe(4.0)
    one.add(other)
    assert (one.counts, one.sum, one.lowest, one.highest) == ([2, 1], 5.25, 0.5, 4.0)
    assert one.exemplars[0].trace == Trace(2, 2)


def test_methods_are_bounded_and_the_rest_share_one_entry() -> None:
    times = CallTimes(lambda: None)
    for number in range(MOST + 10):
        times.begin(("unary_unary", f"/s/m{number}"), 0.0).over(OK, 1.0)
    times.begin(("unary_unary", "/s/" + "x" * 1000), 0.0).over(OK, 1.0)
    known = dict(times.read())
    assert len(known) == MOST + 1
    assert sum(known[OTHERS].calls[OK].counts) == 11


def test_few_calls_that_were_sent_at_once_wait_to_be_counted() -> None:
    calls = Calls()
    of_method = calls.times.of(METHOD)
    for code in (OK, UNAVAILABLE) * MOST_UNCOUNTED:
        call = calls.begin_sent()
        call.attempt_over(code, 1.0, Verdict.SERVED, None, 1.0)
        assert len(of_method.ended) + len(of_method.took) < 2 * MOST_UNCOUNTED
    of_method.count()
    assert seconds(of_method.calls[OK]) == seconds(of_method.attempts[UNAVAILABLE])


def test_few_calls_wait_to_be_counted_however_they_end() -> None:
    calls = Calls()
    calls.times.measures = True
    of_method = calls.times.of(METHOD)
    for number in range(3 * MOST_UNCOUNTED):
        call = calls.begin(0.0)
        call.attempt_begins("b:1", 1, 0.0, 0.0, None)
        if number % 2:
            call.attempt_over(UNAVAILABLE, 1.0, Verdict.FAILED, RETRY, 1.0)
            call.attempt_begins("b:2", 2, 0.0, 1.0, None)
        call.message_received(7)
        call.attempt_over(OK, 1.0, Verdict.SERVED, None, 2.0)
        assert len(of_method.ended) + len(of_method.sized) <= 2 * MOST_UNCOUNTED
    assert calls.read("call", OK)[0] == calls.read("received", OK)[0] == number + 1
    assert not of_method.ended
    assert not of_method.sized


def test_what_is_counted_at_once_is_what_is_counted_one_by_one() -> None:
    at_once, one_by_one = Times(), Times()
    values = [0.3, 0.0, 0.1, 200.0, 0.1, 0.007]
    at_once.observe_all(values)
    for value in values:
        one_by_one.observe(value)
    for name in ("counts", "sum", "lowest", "highest"):
        assert getattr(at_once, name) == getattr(one_by_one, name)
