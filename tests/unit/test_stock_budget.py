"""What a server grants to clients that keep no retry budget."""

import pytest

from lbclient.core.retries.retry import RATIO
from lbclient.core.retries.stock_budget import (
    BURST,
    COME_BACK,
    FORGETS,
    GROWTH,
    ROUND,
    ROUND_LASTS,
    StockBudget,
)

PACE = 0.02  # seconds between two requests; all are refused


class Refusing:
    """A task that refuses every request; so many of the granted retries come back."""

    def __init__(self, come_back: float) -> None:
        self.budget = StockBudget()
        self.come_back = come_back
        self.now = self.requests = self.granted = 0.0
        self.retries = 0.0

    def refuse(self, times: int) -> int:
        """Returns how many retries were granted."""
        before = self.granted
        for _ in range(times):
            self.now += PACE
            self.requests += 1
            retries, requests = int(self.retries), int(self.requests)
            granted = self.budget.withdraw(requests, retries, self.now)
            self.granted += granted
            self.retries += granted * self.come_back
        return int(self.granted - before)


def test_where_all_retries_come_back_a_tenth_is_granted() -> None:
    task = Refusing(come_back=1.0)
    assert task.refuse(1000) == pytest.approx(BURST + RATIO * 1000, abs=1.0)
    assert task.budget.ratio == RATIO
    assert task.budget.withheld == 1000 - task.granted


def test_while_few_come_back_all_are_granted_after_three_rounds() -> None:
    task = Refusing(come_back=COME_BACK / 2)
    task.refuse(round(ROUND / RATIO + ROUND / (GROWTH * RATIO) + 2 * ROUND))
    ratio = task.budget.ratio
    assert ratio == pytest.approx(min(1.0, RATIO * GROWTH**2))
    task.refuse(round(ROUND_LASTS / PACE) + 2 * ROUND)
    assert task.budget.ratio == 1.0
    assert task.refuse(100) == 100


def test_when_the_others_refuse_too_it_is_a_tenth_again_soon() -> None:
    task = Refusing(come_back=0.0)
    task.refuse(1000)
    assert task.budget.ratio == 1.0
    task.come_back = 1.0
    task.refuse(round(5 * ROUND_LASTS / PACE))
    assert task.budget.ratio == RATIO


def test_no_round_is_judged_before_a_client_can_have_retried() -> None:
    task = Refusing(come_back=0.0)
    for _ in range(1000):  # at once
        task.now -= PACE
        task.refuse(1)
    assert task.budget.ratio == RATIO
    assert task.granted <= BURST + RATIO * 1000


def test_what_others_cause_while_nothing_is_refused_here_does_not_count() -> None:
    task = Refusing(come_back=0.0)
    task.refuse(ROUND)  # some are granted, not yet a round
    task.now += 2 * FORGETS
    task.retries += 1000
    task.refuse(round(ROUND / RATIO) + 1)
    assert task.budget.ratio > RATIO


def test_what_was_learned_is_forgotten_after_a_minute_without_refusals() -> None:
    task = Refusing(come_back=0.0)
    task.refuse(1000)
    assert task.budget.ratio == 1.0
    task.now += 2 * FORGETS
    task.refuse(1)
    assert task.budget.ratio == RATIO


def test_no_more_is_saved_than_a_burst() -> None:
    task = Refusing(come_back=1.0)
    task.requests = 10**6  # were served
    assert task.refuse(round(BURST)) == BURST
    assert task.refuse(5) <= 1


def test_an_older_count_from_another_thread_takes_nothing_away() -> None:
    budget = StockBudget()
    assert budget.withdraw(1000, 0, 0.0)
    assert budget.withdraw(10, 0, 0.0)
    assert budget.withdraw(1010, 0, 0.0)
