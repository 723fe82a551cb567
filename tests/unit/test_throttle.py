"""When a client refuses its own requests, and what it tells of that."""

from collections.abc import Callable
from math import ceil, exp, log
from random import Random

import pytest

from lbclient.core.criticality import Criticality
from lbclient.core.model import Verdict
from lbclient.core.throttles.throttle import (
    COLD,
    EVIDENCE,
    GROWTH,
    INACTIVE_BELOW,
    PROBES,
    REFUSAL,
    WINDOW,
    Throttle,
)

CRITICAL, SHEDDABLE = Criticality.CRITICAL, Criticality.SHEDDABLE


@pytest.fixture
def throttle() -> Throttle:
    return Throttle(Random(1))


def request(
    throttle: Throttle, verdict: Verdict, now: float, of: Criticality = CRITICAL
) -> bool:
    """Whether a request was sent; it ends at once."""
    sent = throttle.admits(of, now)
    if sent:
        throttle.observe(of, verdict, now)
    return sent


def overload(throttle: Throttle, of: Criticality = CRITICAL, rate: int = 100) -> float:
    """Two minutes in which nothing is accepted; returns their end."""
    for i in range(int(rate * WINDOW)):
        request(throttle, Verdict.REJECTED, i / rate, of)
    return WINDOW


def test_a_cold_client_is_not_throttled(throttle: Throttle) -> None:
    for _ in range(ceil(COLD)):
        assert throttle.probability(CRITICAL, 0.0) == 0.0
        assert request(throttle, Verdict.REJECTED, 0.0)
    assert throttle.probability(CRITICAL, 0.0) > 0.0
    assert not all(throttle.admits(CRITICAL, 0.0) for _ in range(9))


def test_a_sparse_client_is_never_throttled(throttle: Throttle) -> None:
    rate = 0.99 * INACTIVE_BELOW
    for i in range(int(10 * WINDOW * rate)):
        assert request(throttle, Verdict.REJECTED, i / rate)


def test_the_probability_is_that_of_the_book() -> None:
    throttle = Throttle(Random(1), k=2.0)
    for i in range(1000):
        throttle.observe(
            CRITICAL, Verdict.SERVED if i % 10 == 0 else Verdict.REJECTED, 0.0
        )
    assert throttle.probability(CRITICAL, 0.0) == (1000 - 2.0 * 100) / (1000 + 1)


def test_what_is_refused_here_counts_as_a_request(throttle: Throttle) -> None:
    now = overload(throttle)
    here, there, accepted = throttle.counts(CRITICAL, now - 1.0)
    assert accepted == 0
    assert here > there
    assert here + there == pytest.approx((WINDOW - 1.0) * 100, rel=0.02)


def test_whoever_is_refused_everything_still_asks_now_and_then(
    throttle: Throttle,
) -> None:
    now = overload(throttle)
    asked = sum(
        request(throttle, Verdict.REJECTED, now + i / 100) for i in range(60 * 100)
    )
    assert asked == pytest.approx(60 * PROBES, rel=0.5)


def test_each_criticality_has_its_own_history(throttle: Throttle) -> None:
    now = overload(throttle, SHEDDABLE)
    assert throttle.probability(SHEDDABLE, now) > 0.9
    assert throttle.probability(CRITICAL, now) == 0.0
    assert throttle.counts(CRITICAL, now) == (0, 0, 0)


def test_a_request_under_way_is_no_refusal(throttle: Throttle) -> None:
    """Ten seconds of a thousand a second, none of which has ended yet."""
    assert all(throttle.admits(CRITICAL, i / 1000) for i in range(10_000))


def test_of_few_requests_one_accepted_is_chance(throttle: Throttle) -> None:
    """A thousand were refused there, so accepting is rarer than `EVIDENCE` asks."""
    for _ in range(1000):
        throttle.observe(CRITICAL, Verdict.REJECTED, 0.0)
    assert log(1000) > EVIDENCE
    throttle.observe(CRITICAL, Verdict.SERVED, 1.0)
    want_much(throttle, 1.0)
    assert throttle.probability(CRITICAL, 1.0) == (1001 - PROBES * WINDOW) / 1002


def want_much(throttle: Throttle, now: float) -> None:
    """So that the demand has not fallen to what is accepted."""
    for _ in range(10_000):
        throttle._demand.want(CRITICAL, now)


def convince(throttle: Throttle, odds: float, accepted: int) -> int:
    """After 2,000 refusals, all at 1.0; returns how many were accepted in all."""
    for verdict in [Verdict.SERVED] * accepted + [Verdict.REJECTED] * 2000:
        throttle.observe(CRITICAL, verdict, 1.0)
    believed = 0.0
    while believed <= odds:
        accepted += 1
        throttle.observe(CRITICAL, Verdict.SERVED, 1.0)
        believed += log((2000 + accepted) / accepted)
    return accepted


def growth(throttle: Throttle, accepted: int, now: float) -> float:
    """How many times as much as by the book may be sent, where more is wanted."""
    want_much(throttle, now)
    requests = 2000 + accepted
    held_back = throttle.probability(CRITICAL, now) * (requests + 1)
    return (requests - held_back) / (throttle.k * accepted)


@pytest.mark.parametrize(
    ("odds", "grown"), [(EVIDENCE, False), (EVIDENCE + REFUSAL, True)]
)
def test_what_may_be_sent_grows_faster_the_surer_it_is(
    throttle: Throttle, odds: float, grown: bool
) -> None:
    accepted = convince(throttle, odds, 900)
    throttle.observe(CRITICAL, Verdict.SERVED, 2.0)
    factor = growth(throttle, accepted + 1, 2.0)
    full = exp(1.0 / GROWTH)
    assert factor == pytest.approx(full) if grown else 1.0 < factor < full - 0.05


def test_silence_is_no_evidence(throttle: Throttle) -> None:
    accepted = convince(throttle, EVIDENCE + REFUSAL, 500)
    throttle.observe(CRITICAL, Verdict.SERVED, 60.0)
    assert growth(throttle, accepted + 1, 60.0) == pytest.approx(
        exp(1.0 / PROBES / GROWTH)
    )


def test_without_refusals_there_for_two_minutes_accepting_is_evidence_still() -> None:
    """However near K is to 1, and however many were refused here."""
    throttle = Throttle(Random(1), k=1.0)
    convince(throttle, 0.0, 500)
    for _ in range(5000):
        throttle.admits(CRITICAL, WINDOW / 2)
    now = 1.0 + WINDOW
    here, there, accepted = throttle.counts(CRITICAL, now)
    assert here > 3000
    assert there == accepted == 0
    for i in range(600):
        throttle.observe(CRITICAL, Verdict.SERVED, now + i / 20)
    assert throttle.probability(CRITICAL, now + 30.0) == 0.0


@pytest.mark.parametrize(
    ("verdict", "counts"),
    [
        (Verdict.SERVED, (0, 0, 1)),
        (Verdict.FAILED, (0, 0, 1)),
        (Verdict.REJECTED, (0, 1, 0)),
        (Verdict.ABANDONED, (0, 0, 0)),
    ],
)
def test_refusals_alone_count_as_refusals(
    throttle: Throttle, verdict: Verdict, counts: tuple[int, int, int]
) -> None:
    throttle.observe(CRITICAL, verdict, 0.0)
    assert throttle.counts(CRITICAL, 0.0) == counts
    assert throttle.refused == sum(counts[:2])


@pytest.mark.parametrize(
    "read",
    [
        lambda throttle, now: throttle.probability(CRITICAL, now),
        lambda throttle, now: throttle.counts(CRITICAL, now),
    ],
)
def test_looking_changes_nothing(
    throttle: Throttle, read: Callable[[Throttle, float], object]
) -> None:
    now = overload(throttle)
    before = throttle.counts(CRITICAL, now)
    read(throttle, now + 10 * WINDOW)
    assert throttle.counts(CRITICAL, now) == before


def test_two_minutes_later_all_is_forgotten(throttle: Throttle) -> None:
    now = overload(throttle)
    assert throttle.probability(CRITICAL, now + WINDOW) == 0.0
    assert throttle.counts(CRITICAL, now + WINDOW) == (0, 0, 0)
    assert all(throttle.admits(CRITICAL, now + WINDOW) for _ in range(100))


def test_a_throttle_reads_as_english(throttle: Throttle) -> None:
    for verdict in (Verdict.REJECTED, Verdict.REJECTED, Verdict.SERVED):
        request(throttle, verdict, 1.0)
    request(throttle, Verdict.SERVED, 1.0, SHEDDABLE)
    assert repr(throttle) == "<K = 2: 0 refused here, 2 there, 2 accepted>"
