"""What a client that sends little makes of what its backends say they refuse."""

from math import e, exp
from random import Random

import pytest

from lbclient.core.criticality import Criticality
from lbclient.core.load import Load
from lbclient.core.model import LoadReport, Verdict
from lbclient.core.throttles.sparse_throttle import (
    FORGET,
    FRESH,
    GROWTH,
    PERIOD,
    SparseThrottle,
)
from lbclient.core.throttles.throttle import TOLD_BELOW, WINDOW, Throttle

CRITICAL = Criticality.CRITICAL


def said(refused: float | None) -> LoadReport:
    shares = None if refused is None else (0.0, 0.0, refused, 0.0)
    return LoadReport(0.5, refused=shares)


class Heard:
    """A sparse throttle, and the loads of its backends."""

    def __init__(self, backends: int = 1, k: float = 2.0) -> None:
        self.loads = [Load() for _ in range(backends)]
        self.throttle = SparseThrottle(Random(1), k, CRITICAL, lambda: self.loads)

    def sends(self, now: float, *refused: float | None) -> float:
        """The share that it sends once each backend has said so."""
        for load, share in zip(self.loads, refused, strict=False):
            load.observe(said(share), now)
        if self.throttle.has_reports(now):
            self.throttle.admits(now)
        return 1.0 - self.throttle.probability(now)


@pytest.mark.parametrize(("k", "sent"), [(2.0, 0.2), (1.1, 0.11)])
def test_the_first_word_is_the_equation(k: float, sent: float) -> None:
    assert Heard(k=k).sends(10.0, 0.9) == pytest.approx(sent)


def test_where_half_is_refused_it_stays_as_it_is_with_k_2() -> None:
    heard = Heard()
    heard.sends(10.0, 0.9)
    assert heard.sends(20.0, 0.5) == pytest.approx(0.2)
    assert heard.sends(30.0, 0.75) == pytest.approx(0.1)


def test_it_corrects_by_as_much_as_time_has_passed_but_no_news_is_no_news() -> None:
    heard = Heard()
    heard.sends(10.0, 0.9)
    assert heard.sends(10.0 + PERIOD / 2, 0.75) == pytest.approx(0.2 * 0.5**0.5)
    assert heard.sends(12.0 + PERIOD) == pytest.approx(0.2 * 0.5**0.5)
    assert heard.sends(60.0 + PERIOD, 0.75) == pytest.approx(0.2 * 0.5**1.5)


def test_what_is_sent_grows_from_when_hardly_anything_is_refused() -> None:
    heard = Heard()
    heard.sends(10.0, 0.9)
    assert heard.sends(20.0, 0.1) == pytest.approx(0.2)
    assert heard.sends(20.0 + GROWTH) == pytest.approx(0.2 * exp(1.0))
    assert heard.sends(20.0 + 2 * GROWTH) == 1.0


def test_a_contrary_word_ends_the_growth() -> None:
    heard = Heard()
    heard.sends(10.0, 0.9)
    heard.sends(20.0, 0.0)
    grown = heard.sends(20.0 + GROWTH, 0.5)
    assert grown == pytest.approx(0.2 * exp(1.0))
    assert heard.sends(21.0 + GROWTH) == pytest.approx(grown)


def test_the_mean_of_backends_counts_and_the_newest_most() -> None:
    assert Heard(2).sends(10.0, 1.0, 0.8) == pytest.approx(0.2)
    heard = Heard(2)
    heard.loads[0].observe(said(0.0), 10.0)
    assert heard.sends(40.0, None) == 1.0  # which of the two is newer tells nothing
    heard.loads[1].observe(said(0.9), 70.0)
    assert heard.throttle.has_reports(70.0)
    assert heard.throttle.refused == pytest.approx(0.9, abs=0.01)


def test_a_report_that_is_5_s_older_counts_a_third_at_any_time() -> None:
    heard, at = Heard(2), 1e6
    heard.loads[0].observe(said(0.9), at)
    heard.loads[1].observe(said(0.5), at + FRESH)
    assert heard.throttle.has_reports(at + FRESH)
    mean = (0.9 / e + 0.5) / (1 / e + 1)
    assert heard.throttle.refused == pytest.approx(mean)


def test_while_more_is_refused_than_where_all_is_well_it_does_not_grow() -> None:
    heard = Heard()
    assert heard.sends(10.0, 0.3) == 1.0  # it never sends more than all
    assert heard.sends(20.0, 0.9) == pytest.approx(0.2)
    assert heard.sends(30.0, 0.2) == pytest.approx(0.2 * 1.6)
    assert heard.sends(30.0 + GROWTH) == pytest.approx(0.2 * 1.6)


def test_what_has_grown_is_sent() -> None:
    heard = Heard()
    heard.throttle = SparseThrottle(Half(), 2.0, CRITICAL, lambda: heard.loads)
    heard.sends(10.0, 0.9)
    heard.sends(20.0, 0.0)
    assert not heard.throttle.admits(20.0 + 0.5 * GROWTH)  # a third
    assert heard.throttle.admits(20.0 + 1.2 * GROWTH)  # two thirds


def test_one_that_tells_nothing_is_unknown_and_not_well() -> None:
    assert Heard(3).sends(10.0, 0.9, None) == pytest.approx(0.2)
    assert not Heard(3).throttle.has_reports(10.0)


def test_what_is_not_repeated_is_forgotten() -> None:
    heard = Heard()
    heard.sends(10.0, 0.9)
    assert heard.throttle.is_told(9.9 + FORGET)
    assert not heard.throttle.has_reports(10.0 + FORGET)


def test_looking_changes_nothing() -> None:
    heard = Heard()
    heard.sends(10.0, 0.9)
    heard.sends(20.0, 0.0)
    before = heard.throttle.probability(21.0)
    heard.throttle.probability(90.0)
    assert heard.throttle.probability(21.0) == before


def test_it_reads_as_english() -> None:
    heard = Heard()
    assert repr(heard.throttle) == "<sends 100%, nobody tells>"
    heard.sends(10.0, 0.9)
    assert repr(heard.throttle) == "<sends 20%, 90% refused>"


# --- as a part of a throttle ---------------------------------------------------------


def throttle(refused: float | None) -> Throttle:
    load = Load()
    load.observe(said(refused), 0.0)
    return Throttle(Random(1), 2.0, lambda: [load])


def test_who_was_not_refused_does_not_listen() -> None:
    told = throttle(0.99)
    told.observe(CRITICAL, Verdict.SERVED, 0.0)
    assert all(told.admits(CRITICAL, 1.0) for _ in range(100))
    assert told.probability(CRITICAL, 1.0) == 0.0


def test_who_was_refused_listens_and_counts_what_it_refuses() -> None:
    told = throttle(0.9)
    told.observe(CRITICAL, Verdict.REJECTED, 0.0)
    sent = sum(told.admits(CRITICAL, 1.0) for _ in range(300))
    assert sent == pytest.approx(60, abs=20)
    assert told.probability(CRITICAL, 1.0) == pytest.approx(0.8)
    assert told.counts(CRITICAL, 1.0) == (300 - sent, 1, 0)


def test_who_is_accepted_more_than_refused_is_not_throttled() -> None:
    told = throttle(0.99)
    for verdict in (Verdict.REJECTED, Verdict.SERVED, Verdict.SERVED):
        told.observe(CRITICAL, verdict, 0.0)
    assert told.admits(CRITICAL, 1.0)


class Half(Random):
    """Chance that is always in the middle."""

    def random(self) -> float:
        return 0.5


def seen(refused: float, accepted: int, there: int, k: float = 2.0) -> Throttle:
    """Told that so much is refused; it saw these."""
    load = Load()
    load.observe(said(refused), 0.0)
    told = Throttle(Half(), k, lambda: [load])
    for verdict, times in ((Verdict.SERVED, accepted), (Verdict.REJECTED, there)):
        for _ in range(times):
            told.observe(CRITICAL, verdict, 0.0)
    return told


@pytest.mark.parametrize("there", [50, 100])
def test_who_is_accepted_as_often_as_k_asks_is_held_back_by_no_report(
    there: int,
) -> None:
    told = seen(0.99, accepted=0, there=1)
    assert not told.admits(CRITICAL, 0.0)  # now it has listened
    for verdict, times in ((Verdict.SERVED, 102), (Verdict.REJECTED, there)):
        for _ in range(times):
            told.observe(CRITICAL, verdict, 1.0)
    assert told.probability(CRITICAL, 1.0) == 0.0
    assert told.admits(CRITICAL, 1.0)


@pytest.mark.parametrize(("k", "accepted", "sent"), [(2.0, 40, 0.2), (1.1, 400, 0.11)])
def test_of_reports_that_its_own_outcomes_contradict_it_believes_none(
    k: float, accepted: int, sent: float
) -> None:
    told = seen(0.9, accepted=0, there=10, k=k)
    now = 0.4  # too soon after a refusal to tell whether the demand has fallen
    for _ in range(150):
        assert not told.admits(CRITICAL, now)
    for _ in range(accepted - 1):
        told.observe(CRITICAL, Verdict.SERVED, now)
    assert told.probability(CRITICAL, now) == pytest.approx(1.0 - sent)
    assert not told.admits(CRITICAL, now)
    told.observe(CRITICAL, Verdict.SERVED, now)
    assert told.probability(CRITICAL, now) == 0.0
    assert told.admits(CRITICAL, now)


def test_with_nine_requests_a_second_it_goes_by_its_own_outcomes() -> None:
    requests = round(TOLD_BELOW * WINDOW)
    few = seen(0.9, accepted=requests // 3, there=requests * 2 // 3 - 1)
    assert not few.admits(CRITICAL, 1.0)
    few = seen(0.9, accepted=requests // 3, there=requests * 2 // 3 - 2)
    few.admits(CRITICAL, 1.0)
    assert few.probability(CRITICAL, 1.0) == pytest.approx(0.8)
    many = seen(0.9, accepted=requests // 3, there=requests * 2 // 3)
    assert many.admits(CRITICAL, 1.0)
    assert many.probability(CRITICAL, 1.0) == pytest.approx(1 / 3, abs=0.01)


def test_two_minutes_after_its_last_refusal_a_client_asks_again() -> None:
    told = throttle(1.0)
    told.observe(CRITICAL, Verdict.REJECTED, 0.0)
    refused = [not told.admits(CRITICAL, second) for second in range(1, 118)]
    assert sum(refused) > 110
    assert told.admits(CRITICAL, WINDOW + 1.0)


def test_who_sends_much_goes_by_its_own_outcomes() -> None:
    told = throttle(0.0)
    for _ in range(round(TOLD_BELOW * WINDOW)):
        told.observe(CRITICAL, Verdict.REJECTED, 0.0)
    assert told.probability(CRITICAL, 1.0) > 0.9
