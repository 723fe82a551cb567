"""A task that notices itself that its requests cost more, and what only looks so."""

from math import inf, nan

import pytest

from lbclient.core.model import LoadReport
from lbclient.core.outliers.fleet_cost import FRESH, MOST_CLIENTS, FleetCost, tell_after
from lbclient.core.outliers.relative_costs import TUNING as RELATIVE_COSTS

EVERY = 5.0  # seconds
QPS = 100.0
CLIENTS = 5


class Task:
    """One of a fleet, whose clients tell a mean of 15 s, and each in its turn."""

    def __init__(self, clients: int = CLIENTS) -> None:
        self.cost = FleetCost()
        self.own, self.fleet = 0.006, 0.003  # seconds; a slow machine
        self.seen = self.fleet  # by clients
        self.liars = 0
        self.clients = clients
        self.now = 1000.0
        self.news: list[bool] = []

    def run(self, seconds: float) -> None:
        for turn in range(int(seconds / EVERY)):
            self.now += EVERY
            self.seen += (self.fleet - self.seen) * EVERY / 15.0
            for client in range(self.clients):
                if (turn + client) % 4 == 0:
                    told = 1e5 if client < self.liars else self.seen
                    self.cost.hear(f"c{client}", told, self.now)
            if self.cost.observe(LoadReport(self.own * QPS, QPS), self.now):
                cost = self.cost.read(self.now)
                self.news.append(cost is not None and cost.is_slowed)

    def rise(self) -> float | None:
        cost = self.cost.read(self.now)
        return None if cost is None else cost.rise


def test_a_slow_machine_costs_more_as_ever_and_that_is_no_news() -> None:
    task = Task()
    task.run(RELATIVE_COSTS.learning)
    assert task.rise() is None
    task.run(1800)
    cost = task.cost.read(task.now)
    assert cost is not None
    assert cost.relative == pytest.approx(2.0)
    assert task.news == []
    assert repr(task.cost) == "<rise 1.00, 5 clients>"


@pytest.mark.parametrize("clients", [1, 2, CLIENTS, 200])
def test_an_antagonist_is_noticed_within_a_minute_and_so_is_its_end(
    clients: int,
) -> None:
    task = Task(clients)
    task.run(600)
    task.own *= 2.0
    task.run(75)
    assert task.news == [True]
    task.own /= 2.0
    task.run(120)
    assert task.news == [True, False]


@pytest.mark.parametrize("factor", [1 / 3, 3.0])
def test_other_requests_everywhere_are_no_antagonist(factor: float) -> None:
    """Though clients tell it with a delay."""
    task = Task()
    task.run(600)
    task.own, task.fleet = task.own * factor, task.fleet * factor
    task.run(900)
    assert task.news == []


def test_what_a_few_clients_tell_wrongly_changes_nothing() -> None:
    task = Task()
    task.run(600)
    task.liars = 2
    task.run(600)
    assert task.news == []
    assert task.rise() == pytest.approx(1.0)


def test_if_nobody_tells_it_is_unknown() -> None:
    task = Task(clients=0)
    task.run(600)
    assert task.rise() is None
    task.clients = 1
    task.run(600)
    assert task.rise() == pytest.approx(1.0)
    task.clients = 0
    task.run(4 * FRESH)
    assert task.rise() is None


@pytest.mark.parametrize("told", [0.0, -1.0, nan, inf, 1e300, 1e-300])
def test_what_cannot_be_a_cost_is_ignored(told: float) -> None:
    cost = FleetCost()
    cost.hear("a", told, 1.0)
    assert cost.clients(1.0) == 0


def test_what_clients_told_is_bounded_and_the_last_ones_count() -> None:
    cost = FleetCost()
    for number in range(1000):
        cost.hear(f"c{number}", 0.001, 1.0)
    assert cost.clients(1.0) == MOST_CLIENTS


def test_a_task_hears_as_much_however_many_clients_it_has() -> None:
    assert 1000 / tell_after(1000) == 10 / tell_after(10) == 0.5
