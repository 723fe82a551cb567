"""What share of its requests a task says it refuses, and when that is news."""

from lbclient.core.criticality import Criticality
from lbclient.core.overload.refused_shares import CALM, NEWS_GAP, RefusedShares

TICK = 0.1


class Task:
    """Samples ten times a second, with so many requests of a criticality in each."""

    def __init__(self) -> None:
        self.shares = RefusedShares()
        self.arrived = [0] * len(Criticality)
        self.refused = [0] * len(Criticality)
        self.lost = 0
        self.now = 100.0
        self.news = 0
        self.play(TICK, {})

    def play(
        self,
        seconds: float,
        came: dict[Criticality, tuple[int, int]],
        lost: int = 0,
        is_calm: bool = False,
    ) -> tuple[int, ...]:
        for _ in range(round(seconds / TICK)):
            self.now += TICK
            for one, (arrived, refused) in came.items():
                self.arrived[one] += arrived
                self.refused[one] += refused
            self.lost += lost
            self.shares.sample(self.now, self.arrived, self.refused, self.lost, is_calm)
            self.news += self.shares.is_news
        return self.shares.percents


CRITICAL, SHEDDABLE = Criticality.CRITICAL, Criticality.SHEDDABLE


def test_who_refuses_nothing_says_so() -> None:
    assert Task().play(10.0, {CRITICAL: (5, 0)}) == (0,)


def test_shares_are_by_criticality_and_end_with_the_last_that_is_not_zero() -> None:
    came = {SHEDDABLE: (10, 9), CRITICAL: (10, 4), Criticality.CRITICAL_PLUS: (5, 0)}
    assert Task().play(10.0, came) == (90, 0, 40)


def test_one_refused_of_one_is_chance() -> None:
    assert Task().play(TICK, {CRITICAL: (1, 1)}) == (0, 0, 25)


def test_what_is_refused_of_few_requests_is_kept_until_others_come() -> None:
    task = Task()
    task.play(2.0, {CRITICAL: (1, 1)})
    assert task.play(20.0, {}) == (0, 0, 100)
    *_, still = task.play(0.2, {CRITICAL: (10, 0)})
    assert still < 60
    assert task.play(6.0, {CRITICAL: (10, 0)}) in ((0,), (0, 0, 1))


def test_a_task_at_ease_forgets_without_any_request() -> None:
    task = Task()
    task.play(5.0, {CRITICAL: (4, 3)})
    assert task.play(CALM, {}, is_calm=True) == (0, 0, 75)
    assert task.play(8.0, {}, is_calm=True) == (0, 0, 1)


def test_requests_that_nobody_saw_were_of_each_criticality() -> None:
    """Half of what came was lost, and half of the other half refused."""
    task = Task()
    came = {SHEDDABLE: (4, 2), CRITICAL: (4, 0)}
    assert task.play(10.0, came, lost=8) == (75, 0, 50)
    task = Task()
    assert task.play(10.0, {}, lost=8) == (0, 0, 100)


def test_recovery_is_news_once_and_not_again_too_soon() -> None:
    task = Task()
    task.play(3.0, {CRITICAL: (10, 9)})
    task.play(TICK, {CRITICAL: (10_000, 0)})
    assert task.news == 1
    task.play(2.0, {CRITICAL: (1000, 900)})
    task.play(TICK, {CRITICAL: (1_000_000, 0)})
    assert task.news == 1
    task.play(NEWS_GAP, {CRITICAL: (10, 0)})
    assert task.news == 2
    task.play(60.0, {CRITICAL: (10, 0)})
    assert task.news == 2


def test_a_stray_refusal_is_no_news() -> None:
    task = Task()
    for _ in range(10):
        task.play(1.0, {CRITICAL: (10, 0)})
        task.play(TICK, {CRITICAL: (10, 1)})
    assert task.news == 0


def test_it_reads_as_english() -> None:
    task = Task()
    task.play(10.0, {SHEDDABLE: (10, 9)})
    assert repr(task.shares) == "<refuses 90% of SHEDDABLE>"
    assert repr(RefusedShares()) == "<refuses nothing>"
