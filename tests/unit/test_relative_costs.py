"""A backend whose requests cost more than usual, and what only looks like one."""

import pytest

from lbclient.core.load import Load
from lbclient.core.model import LoadReport
from lbclient.core.outliers.relative_costs import TUNING as RELATIVE_COSTS
from lbclient.core.outliers.relative_costs import RelativeCosts

EVERY = 5.0  # seconds between two looks
SHARES = {"a": 0.3, "b": 0.3, "c": 0.3, "slow": 0.6}  # utilization at 100 requests/s


class Fleet:
    """Backends whose requests cost what a test says; time goes by looks."""

    def __init__(self, *names: str) -> None:
        self.costs = RelativeCosts()
        self.loads = {name: Load() for name in names or SHARES}
        self.shares = {name: SHARES[name] for name in self.loads}
        self.qps = dict.fromkeys(self.loads, 100.0)
        self.eps = 0.0
        self.now = 1000.0
        self.news: list[tuple[str, bool]] = []

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds / EVERY)):
            self.now += EVERY
            for name, load in self.loads.items():
                qps = self.qps[name]
                utilization = self.shares[name] * qps / 100.0
                load.observe(LoadReport(utilization, qps, self.eps), self.now)
            self.look()

    def look(self) -> None:
        for name, cost in self.costs.observe(self.loads.items(), self.now):
            self.news.append((name, cost.is_slowed))

    def rise(self, name: str) -> float | None:
        cost = self.costs.read(name, self.now)
        return None if cost is None else cost.rise

    def relative(self, name: str) -> float | None:
        cost = self.costs.read(name, self.now)
        return None if cost is None else cost.relative


def test_a_slow_machine_costs_more_as_ever_and_that_is_no_news() -> None:
    fleet = Fleet()
    fleet.run(1800)
    assert fleet.relative("slow") == pytest.approx(2.0)
    assert fleet.relative("a") == pytest.approx(1.0)
    assert fleet.rise("slow") == pytest.approx(1.0)
    assert fleet.news == []
    assert repr(fleet.costs) == "<0 of 4 backends slowed>"


@pytest.mark.parametrize("name", ["a", "slow"])
def test_an_antagonist_is_noticed_and_when_it_goes_this_is_noticed_too(
    name: str,
) -> None:
    fleet = Fleet()
    fleet.run(600)
    fleet.shares[name] *= 2.0
    fleet.run(30)
    assert fleet.news == [(name, True)]
    rise = fleet.rise(name)
    assert rise is not None
    assert 1.5 < rise < 2.0
    fleet.shares[name] /= 2.0
    fleet.run(60)
    assert fleet.news == [(name, True), (name, False)]


def test_what_is_common_to_all_is_no_antagonist() -> None:
    """A new release, or other requests."""
    fleet = Fleet()
    fleet.run(600)
    fleet.shares = {name: share * 3.0 for name, share in fleet.shares.items()}
    fleet.run(600)
    assert fleet.news == []


def test_more_requests_are_no_antagonist() -> None:
    fleet = Fleet()
    fleet.run(600)
    fleet.qps["a"] = 300.0
    fleet.run(600)
    assert fleet.news == []


def test_between_the_two_thresholds_nothing_changes() -> None:
    fleet = Fleet()
    fleet.run(1800)
    fleet.shares["a"] *= 1.4
    fleet.run(60)
    assert fleet.news == []
    fleet.shares["a"] *= 1.4
    fleet.run(60)
    fleet.shares["a"] /= 1.4
    fleet.run(60)
    assert fleet.news == [("a", True)]


def test_what_lasts_becomes_usual() -> None:
    fleet = Fleet()
    fleet.run(1800)
    fleet.shares["a"] *= 2.0
    fleet.run(3600)
    assert fleet.news == [("a", True), ("a", False)]


def test_requests_that_fail_are_not_served() -> None:
    fleet = Fleet()
    fleet.eps = 100.0
    fleet.run(600)
    assert fleet.rise("a") is None


@pytest.mark.parametrize("names", [("a",), ("a", "slow")])
def test_of_two_backends_nobody_can_say_which_has_changed(names: tuple[str]) -> None:
    fleet = Fleet(*names)
    fleet.run(600)
    assert fleet.rise("a") is None


def test_it_takes_a_minute_until_something_is_usual() -> None:
    fleet = Fleet()
    fleet.run(RELATIVE_COSTS.learning)
    assert fleet.rise("a") is None
    fleet.run(EVERY)
    assert fleet.rise("a") == pytest.approx(1.0)


def test_a_backend_that_is_nearly_idle_is_left_out() -> None:
    """Most of what it uses is not for requests."""
    fleet = Fleet()
    fleet.run(600)
    fleet.qps["a"], fleet.shares["a"] = 10.0, 0.9
    fleet.run(600)
    assert fleet.rise("a") is None
    assert fleet.rise("b") == pytest.approx(1.0)
    assert fleet.news == []


def test_old_reports_are_not_used_and_no_report_twice() -> None:
    fleet = Fleet()
    fleet.run(600)
    fleet.shares["a"] *= 2.0
    fleet.run(EVERY)
    rise = fleet.rise("a")
    for _ in range(20):
        fleet.now += 0.1
        fleet.look()
    assert fleet.rise("a") == rise
    fleet.now += 60.0
    fleet.look()
    assert fleet.rise("a") is None
    assert fleet.news == []


def test_a_backend_that_was_not_ready_begins_anew() -> None:
    fleet = Fleet()
    fleet.run(600)
    load = fleet.loads.pop("a")
    fleet.run(EVERY)
    fleet.loads["a"] = load
    fleet.shares["a"] *= 2.0
    fleet.run(600)
    assert fleet.news == []
    assert fleet.rise("a") == pytest.approx(1.0)
