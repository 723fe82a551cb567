"""The numbers of a channel, and who may change them."""

from lbclient.core.counting.histogram import Histogram
from lbclient.core.model import Verdict
from lbclient.core.retries.retry import Decision
from lbclient.core.statistics.counters import Counters

OK, UNAVAILABLE = 0, 14
RETRY = Decision(0.0, "attempt 2 of 3 at once", attempt=1)
RESEND = Decision(0.0, "not sent: again at once", is_resend=True)
GIVEN_UP = Decision(None, "all 3 attempts failed")


def make() -> tuple[Counters, dict[int, int]]:
    counters = Counters((OK, UNAVAILABLE), ("full", "throttled"))
    return counters, counters.by_method.of("unary_unary", "/a.B/C")


def test_a_call_is_counted_once_however_many_attempts_it_took() -> None:
    counters, counts = make()
    counters.attempt_over(counts, UNAVAILABLE, 0.1, RETRY)
    counters.attempt_over(counts, OK, 0.2, None)
    assert counters.calls == counts == {OK: 1, UNAVAILABLE: 0}
    expected = Histogram()
    for latency in (0.1, 0.2):
        expected.observe(latency)
    assert counters.latency.counts == expected.counts
    assert counters.latency.sum == expected.sum


def test_what_follows_an_attempt_is_counted_with_it() -> None:
    counters, counts = make()
    for then in (RETRY, RESEND, RESEND):
        counters.attempt_over(counts, UNAVAILABLE, 0.1, then)
    assert (counters.retries, counters.resends, counters.total()) == (1, 2, 0)
    counters.attempt_over(counts, UNAVAILABLE, 0.1, GIVEN_UP)
    assert (counters.retries, counters.resends, counters.sent) == (1, 2, 1)
    assert counters.calls == counts == {OK: 0, UNAVAILABLE: 1}


def test_attempts_are_counted_by_the_number_that_servers_are_told() -> None:
    counters, counts = make()
    for number in (1, 2, 3):
        counters.attempt_over(counts, UNAVAILABLE, 0.1, RETRY._replace(attempt=number))
    counters.attempt_over(counts, UNAVAILABLE, 0.1, RESEND)
    assert counters.sent_attempts() == [0, 1, 2]  # the call is not over
    counters.attempt_over(counts, OK, 0.1, None)
    assert counters.sent_attempts() == [1, 1, 2]
    for number in (0, 1, 2, 3):
        counters.attempt_refused(number)
    assert counters.refused_attempts == [1, 1, 2]


def test_what_was_not_sent_is_a_call_but_brings_no_retries() -> None:
    counters, counts = make()
    counters.call_over(counts, UNAVAILABLE, was_sent=False)
    counters.call_over(counts, UNAVAILABLE, was_sent=True)
    counters.attempt_over(counts, OK, 0.2, None)
    assert (counters.total(), counters.sent) == (3, 2)
    assert counters.calls == counts == {OK: 1, UNAVAILABLE: 2}
    assert repr(counters) == "<3 calls, 2 of them sent>"


def test_attempts_of_backends_that_are_gone_still_count() -> None:
    counters, _ = make()
    counters.retire({Verdict.SERVED: 2, Verdict.FAILED: 1})
    left = [{Verdict.SERVED: 3}, {Verdict.ABANDONED: 1}]
    for _ in range(2):  # to read changes nothing
        assert counters.attempts(left) == {
            Verdict.SERVED: 5,
            Verdict.REJECTED: 0,
            Verdict.FAILED: 1,
            Verdict.ABANDONED: 1,
            Verdict.DECLINED: 0,
        }


def test_the_rest_adds_up() -> None:
    counters, _ = make()
    counters.begun_after(0.5)
    counters.begun_after(1.0)
    counters.refuse("full")
    assert (counters.waited, counters.waited_seconds) == (2, 1.5)
    assert counters.refused == {"full": 1, "throttled": 0}
